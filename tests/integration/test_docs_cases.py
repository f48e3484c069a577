"""docs/cases.md against the tests: what it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cases.md"
NAMED = re.compile(r"\[(test_\w+\.py)\]\(([^)]+)\)|`(test_\w+)`")


def named(row: str) -> list[tuple[Path, str]]:
    """The tests of a row, each with the file that is named before it."""
    file, found = Path(), []
    for name, target, test in NAMED.findall(row):
        if test:
            found.append((file, test))
        else:
            file = (PAGE.parent / target).resolve()
            assert file.name == name
    return found


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_case_has_tests_and_they_exist() -> None:
    rows = re.findall(r"^\| (\d+) \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 25 and len(set(rows)) == len(rows)
    for row in re.findall(r"^\| \d+ \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        found = named(row)
        assert found, row
        missing = [test for file, test in found if test not in names_in(file)]
        assert missing == [], row
