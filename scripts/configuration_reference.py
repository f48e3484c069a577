#!/usr/bin/env python3
"""Keeps docs/configuration.md true to the table of keys in roomkeeper/config.h.

The table between the two markers of the page is made from RK_CONFIG_KEYS; all else on the page is
written by hand. `--check` (the default) fails when they differ, `--write` makes them equal.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "servicer" / "include" / "roomkeeper" / "config.h"
PAGE = ROOT / "docs" / "configuration.md"
BEGIN = "<!-- keys: made by scripts/configuration_reference.py, do not edit -->"
END = "<!-- end of keys -->"
TYPES = {
    "BOOL": "switch",
    "INT": "whole number",
    "NUMBER": "number",
    "CHOICE": "choice",
    "TEXT": "text",
}


class Key(NamedTuple):
    """One row of RK_CONFIG_KEYS, as written there, quotes taken off."""

    type: str
    name: str
    default: str
    minimum: str
    maximum: str
    choices: str
    unit: str
    help: str


class TableError(Exception):
    """The table is not as this script expects it."""


def unquote(argument: str) -> str:
    """The text of a C argument: adjacent string literals joined, anything else as it is."""
    literals = re.findall(r'"((?:[^"\\]|\\.)*)"', argument)
    if not literals:
        return argument.strip()
    return re.sub(r"\\(.)", r"\1", "".join(literals))


def arguments(text: str) -> list[str]:
    """Splits macro arguments at commas that are not inside a string."""
    parts = re.findall(r'((?:"(?:[^"\\]|\\.)*"|[^",])+|(?<=,)\s*(?=,))', text)
    return [unquote(part) for part in parts]


def read_keys(header: str) -> list[Key]:
    """All rows of RK_CONFIG_KEYS."""
    joined = header.replace("\\\n", " ")
    found = re.search(r"^#define RK_CONFIG_KEYS\(X\)(.*)$", joined, re.MULTILINE)
    if not found:
        raise TableError("no RK_CONFIG_KEYS(X) in it")
    body = found.group(1)
    rows = re.findall(r'\bX\(((?:"(?:[^"\\]|\\.)*"|[^")])*)\)', body)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", body)
    if not rows or len(rows) != len(re.findall(r"\bX\(", outside)):
        raise TableError("RK_CONFIG_KEYS has a row that is not X(TYPE, name, …)")
    keys = []
    for row in rows:
        fields = arguments(row)
        if len(fields) != len(Key._fields) or fields[0] not in TYPES:
            raise TableError(f"not a row of eight fields with a known type: X({row.strip()})")
        keys.append(Key(*fields))
    return keys


def flag(key: Key) -> str:
    return "--rooms" if key.name == "rooms" else "--room-" + key.name.replace("_", "-")


def default(key: Key) -> str:
    if key.type == "BOOL":
        return {"true": "on", "false": "off"}[key.default]
    return key.default


def allowed(key: Key) -> str:
    if key.type == "BOOL":
        return "`on`, `off`"
    if key.type == "CHOICE":
        return ", ".join(f"`{word}`" for word in key.choices.split("|"))
    if key.type == "TEXT":
        return "one line"
    return f"{key.minimum} to {key.maximum}"


def render(keys: list[Key]) -> str:
    """The part of the page between the markers, markers included."""
    lines = [
        BEGIN,
        "",
        "| key | flag | type | default | allowed | unit | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in keys:
        cells = [
            f"`{key.name}`",
            f"`{flag(key)}`",
            TYPES[key.type],
            f"`{default(key)}`" if default(key) else "(empty)",
            allowed(key),
            key.unit or "-",
            key.help.replace("|", "\\|"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", END])


def with_table(page: str, table: str) -> str:
    """The page with its marked part replaced."""
    begin, end = page.find(BEGIN), page.find(END)
    if begin < 0 or end < begin:
        raise TableError(f'the markers "{BEGIN}" and "{END}" are not both there; put them back')
    return page[:begin] + table + page[end + len(END) :]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="fail when they differ (the default)")
    mode.add_argument("--write", action="store_true", help="bring the page up to date")
    options = parser.parse_args()
    where = HEADER
    try:
        keys = read_keys(HEADER.read_text(encoding="utf-8"))
        where = PAGE
        page = PAGE.read_text(encoding="utf-8")
        wanted = with_table(page, render(keys))
        if options.write and page != wanted:
            PAGE.write_text(wanted, encoding="utf-8")
    except (OSError, TableError) as problem:
        print(f"{where.relative_to(ROOT)}: {problem}", file=sys.stderr)
        return 1
    if options.write or page == wanted:
        return 0
    name = str(PAGE.relative_to(ROOT))
    difference = difflib.unified_diff(
        page.splitlines(), wanted.splitlines(), name, "as the code has it", n=0, lineterm=""
    )
    print("\n".join(difference), file=sys.stderr)
    print(
        f"{name}: differs from RK_CONFIG_KEYS; run scripts/configuration_reference.py --write",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
