"""Every relative link in the documents leads to a file that is there, and its anchor to a heading."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
NOT_OURS = {"build", ".git", "node_modules", ".venv"}


def documents() -> list[Path]:
    """All of them, but those of what was built or installed."""
    found = []
    for folder, below, files in os.walk(ROOT):
        below[:] = [name for name in below if name not in NOT_OURS]
        found += [Path(folder) / name for name in files if name.endswith(".md")]
    return sorted(found)


def anchor(heading: str) -> str:
    """As the forges make one: small letters, words joined by dashes, no punctuation."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@functools.cache
def anchors(page: Path) -> set[str]:
    """A heading that comes twice has -1 at its second place."""
    made: set[str] = set()
    counts: dict[str, int] = {}
    for heading in HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        name = anchor(heading)
        number = counts.get(name, 0)
        counts[name] = number + 1
        made.add(f"{name}-{number}" if number else name)
    return made


def broken(page: Path) -> list[str]:
    """What is wrong with a page's links, a line each."""
    text = INLINE.sub("", CODE.sub("", page.read_text(encoding="utf-8")))
    wrong = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists():
            wrong.append(f"{page.relative_to(ROOT)}: {target}: there is no such file")
        elif fragment and there.suffix == ".md" and fragment not in anchors(there):
            wrong.append(f"{page.relative_to(ROOT)}: {target}: there is no such heading")
    return wrong


def test_every_relative_link_and_anchor_leads_somewhere() -> None:
    pages = documents()
    assert ROOT / "README.md" in pages and len(pages) > 15
    assert [line for page in pages for line in broken(page)] == []


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n## A\n## A\n[ok](#a-b-c) [ok](#a-1) [out](https://x.y)\n"
        "```\n# no heading\n[code](gone.md)\n```\n`[code](gone.md)`\n"
        "[bad](gone.md) [bad](page.md#no-heading)\n"
    )
    assert broken(page) == [
        "page.md: gone.md: there is no such file",
        "page.md: page.md#no-heading: there is no such heading",
    ]
