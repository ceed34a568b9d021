"""The manual's pages: their links, anchors and code blocks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


class Link(NamedTuple):
    """A link to a file of the repository: the page, the file, and the place in it (may be empty)."""

    page: Path
    target: Path
    anchor: str


class Block(NamedTuple):
    """A code block: what the comment before it says (`run`, `file: NAME`), its language and its text."""

    mark: str
    language: str
    text: str


def links(page: Path) -> Iterator[Link]:
    """The links of a page that do not leave the repository; code is no link."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield Link(page, (page.parent / file).resolve() if file else page, anchor)


def anchors(page: Path) -> set[str]:
    """The anchors that a reader of Markdown makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, without the indentation of the list that they stand in."""
    pattern = r"(?:^[ ]*<!-- ([^\n]*?) -->\n)?^[ ]*```(\w+)\n(.*?)^[ ]*```$"
    found = re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(mark, language, textwrap.dedent(text)) for mark, language, text in found]
