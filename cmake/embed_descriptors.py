"""Turns protoc's descriptor set into C: the bytes and indexes that reflection serves, and the field numbers.

Build time only, standard library only: the few fields of descriptor.proto that matter are read by hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Packages whose field numbers the C code uses, and how they are called there.
PREFIXES = {
    "tokenspeed.grpc.scheduler": "TS",
    "tokenspeed.grpc.encoder": "TSE",
    "smg.grpc.common": "SMG",
    "grpc.health.v1": "HEALTH",
    "grpc.reflection.v1": "REFLECTION",
    "roomkeeper.peer.v1": "LINK",
    "google.protobuf": "PB",
}

# Packages that no listener for clients serves: their field numbers are made, reflection knows nothing of them.
UNLISTED = {"roomkeeper.peer.v1"}


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
        elif kind == 2:
            size, at = varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[kind]


def texts(data: bytes, number: int) -> list[str]:
    return [v.decode() for n, v in fields(data) if n == number and isinstance(v, bytes)]


def parts(data: bytes, number: int) -> list[bytes]:
    return [v for n, v in fields(data) if n == number and isinstance(v, bytes)]


def name_of(data: bytes) -> str:
    return texts(data, 1)[0]


@dataclass
class File:
    name: str
    package: str
    data: bytes
    imports: list[str]
    symbols: dict[str, bool] = field(default_factory=dict)  # full name -> is a message
    services: list[str] = field(default_factory=list)
    numbers: list[tuple[str, str, int]] = field(default_factory=list)  # message, field, number


def read_enum(file: File, scope: str, data: bytes) -> None:
    file.symbols[f"{scope}.{name_of(data)}"] = False
    for value in parts(data, 2):  # an enum's values are its siblings
        file.symbols[f"{scope}.{name_of(value)}"] = False


def read_message(file: File, scope: str, data: bytes) -> None:
    full = f"{scope}.{name_of(data)}"
    file.symbols[full] = True
    for part in parts(data, 2):
        file.symbols[f"{full}.{name_of(part)}"] = False
        number = next(v for n, v in fields(part) if n == 3)
        assert isinstance(number, int)
        file.numbers.append((full[len(file.package) + 1 :], name_of(part), number))
    for part in parts(data, 8):  # oneofs; those that protoc makes up begin with _
        if not name_of(part).startswith("_"):
            file.symbols[f"{full}.{name_of(part)}"] = False
    for part in parts(data, 3):
        read_message(file, full, part)
    for part in parts(data, 4):
        read_enum(file, full, part)


def read_file(data: bytes) -> File:
    package = (texts(data, 2) or [""])[0]
    file = File(name_of(data), package, data, texts(data, 3))
    for part in parts(data, 4):
        read_message(file, package, part)
    for part in parts(data, 5):
        read_enum(file, package, part)
    for part in parts(data, 6):
        service = f"{package}.{name_of(part)}"
        file.services.append(service)
        file.symbols[service] = False
        for method in parts(part, 2):
            file.symbols[f"{service}.{name_of(method)}"] = False
    return file


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace(".", "_").upper()


def fields_header(files: list[File]) -> str:
    out = ["/* Made by cmake/embed_descriptors.py: the numbers of the wire's fields. */"]
    out += ["#ifndef RK_PROTO_FIELDS_H", "#define RK_PROTO_FIELDS_H", ""]
    for file in files:
        prefix = PREFIXES.get(file.package)
        if not prefix or not file.numbers:
            continue
        out.append(f"enum {{ /* {file.name} */")
        for message, name, number in file.numbers:
            out.append(f"    RK_{prefix}_{snake(message)}__{name.upper()} = {number},")
        out += ["};", ""]
    listed = sum(file.package not in UNLISTED for file in files)
    out += [f"enum {{ RK_PROTO_FILE_COUNT = {listed} }};", "", "#endif", ""]
    return "\n".join(out)


def byte_rows(data: bytes) -> list[str]:
    return ["    " + "".join(f"{b}," for b in data[at : at + 24]) for at in range(0, len(data), 24)]


def source(files: list[File]) -> str:
    index = {file.name: i for i, file in enumerate(files)}
    out = ["/* Made by cmake/embed_descriptors.py. */", '#include "rk_proto/descriptors.h"', ""]
    for i, file in enumerate(files):
        out += [f"static const uint8_t bytes_{i}[] = {{", *byte_rows(file.data), "};"]
        if file.imports:
            numbers = ", ".join(str(index[name]) for name in file.imports)
            out.append(f"static const uint16_t imports_{i}[] = {{{numbers}}};")
    out += ["", "const rk_proto_file rk_proto_files[] = {"]
    for i, file in enumerate(files):
        imports = f"imports_{i}" if file.imports else "NULL"
        out.append(
            f'    {{"{file.name}", bytes_{i}, sizeof bytes_{i}, {imports}, {len(file.imports)}}},'
        )
    out += ["};", f"const size_t rk_proto_file_count = {len(files)};", ""]
    symbols = sorted((n.encode(), index[f.name], m) for f in files for n, m in f.symbols.items())
    assert len({name for name, _, _ in symbols}) == len(symbols), "a symbol is defined twice"
    out.append("const rk_proto_symbol rk_proto_symbols[] = {")
    out += [f'    {{"{n.decode()}", {i}, {str(m).lower()}}},' for n, i, m in symbols]
    out += ["};", f"const size_t rk_proto_symbol_count = {len(symbols)};", ""]
    services = sorted(name for file in files for name in file.services)
    out.append("const char *const rk_proto_services[] = {")
    out += [f'    "{name}",' for name in services]
    out += ["};", f"const size_t rk_proto_service_count = {len(services)};", ""]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("descriptors", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--fields", type=Path, required=True)
    args = parser.parse_args()
    files = [read_file(data) for data in parts(args.descriptors.read_bytes(), 1)]
    args.source.write_text(source([file for file in files if file.package not in UNLISTED]))
    args.fields.write_text(fields_header(files))


if __name__ == "__main__":
    main()
