"""The descriptors that are built in and shipped, against the tables of the wire that gateways speak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from roomkeeper import wire

TABLES = Path(__file__).parent.parent / "unit/data/wire"
Field = descriptor_pb2.FieldDescriptorProto
Row = tuple[str, ...]

#: Table, and the file that it is about. v1 of reflection differs from v1alpha in its package only.
FILES = {
    "tokenspeed_scheduler.tsv": ["tokenspeed_scheduler.proto"],
    "tokenspeed_encoder.tsv": ["tokenspeed_encoder.proto"],
    "common.tsv": ["common.proto"],
    "health_v1.tsv": ["grpc_health/v1/health.proto"],
    "reflection_v1alpha.tsv": [
        "grpc_reflection/v1alpha/reflection.proto",
        "grpc_reflection/v1/reflection.proto",
    ],
}
CASES = [(table, name) for table, names in FILES.items() for name in names]

SCALARS = {
    Field.TYPE_DOUBLE: "double",
    Field.TYPE_FLOAT: "float",
    Field.TYPE_INT64: "int64",
    Field.TYPE_UINT64: "uint64",
    Field.TYPE_INT32: "int32",
    Field.TYPE_BOOL: "bool",
    Field.TYPE_STRING: "string",
    Field.TYPE_BYTES: "bytes",
    Field.TYPE_UINT32: "uint32",
}


def descriptor(name: str) -> descriptor_pb2.FileDescriptorProto:
    data = wire.descriptors_path().read_bytes()
    files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(data).file}
    return files[name]


def read_table(table: str, version: str) -> tuple[Row, set[Row]]:
    """What the first line says, and the rows of rpcs, fields, enum values and reserved numbers."""
    lines = (TABLES / table).read_text().replace("v1alpha", version).splitlines()
    head = lines[0].removeprefix("# ").split("\t")
    rows = {tuple(line.split("\t")) for line in lines[1:] if not line.startswith("message\t")}
    # Trailing columns are a note; the shape of a row is told by how many columns mean something.
    return tuple(head), {row[:5] if row[0] == "rpc" else row[:6] for row in rows}


def type_of(field: Field, entries: dict[str, descriptor_pb2.DescriptorProto]) -> str:
    if field.type not in (Field.TYPE_MESSAGE, Field.TYPE_ENUM):
        return SCALARS[field.type]
    entry = entries.get(field.type_name)
    if entry is None:
        return field.type_name.removeprefix(".")
    key, value = (type_of(part, entries) for part in entry.field)
    return f"map<{key},{value}>"


def label_of(field: Field, kind: str) -> str:
    if field.proto3_optional:
        return "optional"
    return "repeated" if field.label == Field.LABEL_REPEATED and "<" not in kind else ""


def enum_rows(enum: descriptor_pb2.EnumDescriptorProto, scope: str) -> Iterator[Row]:
    for value in enum.value:
        yield scope + enum.name, str(value.number), value.name, "", "enum value", ""


def message_rows(
    message: descriptor_pb2.DescriptorProto, package: str, scope: str = ""
) -> Iterator[Row]:
    name = scope + message.name
    entries = {
        f".{package}.{name}.{nested.name}": nested
        for nested in message.nested_type
        if nested.options.map_entry
    }
    if not message.field:
        yield name, "", "(no fields)", "", "", ""
    for field in message.field:
        kind = type_of(field, entries)
        oneof = ""
        if field.HasField("oneof_index") and not field.proto3_optional:
            oneof = message.oneof_decl[field.oneof_index].name
        yield name, str(field.number), field.name, label_of(field, kind), kind, oneof
    for span in message.reserved_range:
        yield name, f"{span.start}-{span.end - 1}", "(reserved)", "", "", ""
    for word in message.reserved_name:
        yield name, "", word, "", "(reserved)", ""
    for enum in message.enum_type:
        yield from enum_rows(enum, f"{name}.")
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from message_rows(nested, package, f"{name}.")


def rpc_rows(file: descriptor_pb2.FileDescriptorProto) -> Iterator[Row]:
    for service in file.service:
        for method in service.method:
            sides = [
                ("stream " if streaming else "") + kind.removeprefix(".")
                for streaming, kind in (
                    (method.client_streaming, method.input_type),
                    (method.server_streaming, method.output_type),
                )
            ]
            yield "rpc", f"{file.package}.{service.name}", method.name, *sides


def descriptor_rows(file: descriptor_pb2.FileDescriptorProto) -> set[Row]:
    rows = set(rpc_rows(file))
    for message in file.message_type:
        rows |= set(message_rows(message, file.package))
    for enum in file.enum_type:
        rows |= set(enum_rows(enum, ""))
    return rows


@pytest.mark.parametrize(("table", "name"), CASES)
def test_every_name_number_type_presence_and_oneof_is_the_table_s(table: str, name: str) -> None:
    file = descriptor(name)
    version = "v1" if "/v1/" in name and "reflection" in name else "v1alpha"
    _, wanted = read_table(table, version)
    assert wanted, "the table is empty"
    assert descriptor_rows(file) == wanted


@pytest.mark.parametrize(("table", "name"), CASES)
def test_the_file_its_package_and_its_imports_are_the_table_s(table: str, name: str) -> None:
    file = descriptor(name)
    version = "v1" if "/v1/" in name and "reflection" in name else "v1alpha"
    head, _ = read_table(table, version)
    assert head == (
        f"file {file.name}",
        f"package {file.package}",
        f"syntax {file.syntax}",
        f"imports {' '.join(file.dependency)}",
    )


@pytest.mark.parametrize("name", ["tokenspeed_scheduler", "common"])
def test_the_descriptors_are_those_of_the_gateways_own_package(name: str) -> None:
    """The package that gateways and the engine's own servicer are built with, where it is there."""
    reason = "smg-grpc-proto is not installed (tests/requirements.txt names it)"
    package = pytest.importorskip(f"smg_grpc_proto.generated.{name}_pb2", reason=reason)
    theirs = descriptor_pb2.FileDescriptorProto.FromString(package.DESCRIPTOR.serialized_pb)
    ours = descriptor(f"{name}.proto")
    assert (ours.package, ours.syntax) == (theirs.package, theirs.syntax)
    assert set(ours.dependency) == set(theirs.dependency)
    assert descriptor_rows(ours) == descriptor_rows(theirs)


def test_the_descriptors_are_complete_and_load_in_order() -> None:
    loaded = wire.load()
    for name in (
        *(name for _, name in CASES),
        "google/protobuf/struct.proto",
        "google/protobuf/timestamp.proto",
    ):
        assert loaded.pool.FindFileByName(name).name == name
    health = loaded.services["grpc.health.v1.Health"]
    assert {method.name for method in health} == {"Check", "List", "Watch"}
