"""Build the manual's site, `make docs`: the pages as they are, in one place with an order to read them; a warning is an error.

Strategy: the pages are copied below `build/docs/source` with the folders that they have here, so their links need no change; what
they link to beside them (a test, a file of the deployment) becomes a page with its lines. Sphinx reads Markdown by MyST, in
the dialect that a reader of the repository sees. Nothing on the site is loaded from elsewhere.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from tests.docs.pages import PAGES, ROOT
from tests.docs.states import drawing

FOLDER = ROOT / "build" / "docs"

NAVIGATION: Mapping[str, tuple[str, ...]] = {
    "Begin": ("docs/concepts.md", "docs/tutorial.md", "docs/faq.md", "docs/comparison.md", "docs/glossary.md"),
    "Events": ("docs/writing.md", "docs/events-fat-and-thin.md", "docs/schemas.md", "docs/consuming.md"),
    "Operate": (
        *("docs/operating.md", "docs/deploying.md", "docs/security.md", "docs/configuration.md", "docs/metrics.md"),
        *("docs/alerts.md", "docs/sizing.md"),
    ),
    "Move": ("docs/from-debezium.md", "docs/from-polling.md"),
    "Understand": (
        *("docs/guarantees.md", "docs/architecture.md", "docs/performance.md", "docs/adr/README.md", "docs/changes/README.md"),
        "CONTRIBUTING.md",
    ),
}
"""The order of reading; a page that nobody has put here stands at the end."""

DECISIONS = ROOT / "docs" / "adr"
"""The folder whose other pages are reached from its README."""

SETTINGS = """
project = "cdc"
html_title = "cdc"
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["strikethrough"]
myst_heading_anchors = 4
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_extra_path = ["../extra"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
nitpicky = True
"""

_LINK = re.compile(r"(?<!!)\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """The pages of the site: all but the notes that the next release will gather."""
    return [page for page in PAGES if page.parent.name != "changes" or page.name == "README.md"]


def build() -> int:
    """Write the site to `build/docs/site`; return Sphinx's exit code."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    source, extra = FOLDER / "source", FOLDER / "extra"
    files = set[Path]()
    for page in pages():
        name = page.relative_to(ROOT)
        text = _prepared(page, files)
        if str(name) == "README.md":
            text += _contents()
        elif page == DECISIONS / "README.md":
            text += _tree("", tuple(each.name for each in PAGES if each.parent == DECISIONS and each != page))
        _write(source / name, text)
    for picture in (ROOT / "docs").rglob("*.png"):
        _write(source / picture.relative_to(ROOT), picture.read_bytes())
    for file in files:
        _write(extra / "source" / f"{file.relative_to(ROOT)}.html", _listing(file))
    _write(source / "conf.py", SETTINGS)
    command: list[str | Path] = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["-d", FOLDER / "doctrees", source, FOLDER / "site"]
    return subprocess.run(command, check=False).returncode


def _prepared(page: Path, files: set[Path]) -> str:
    """Return a page whose links to what is no page lead to its listing; adds those files to `files`."""

    def link(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        target = (page.parent / path).resolve()
        if not path or re.match(r"[a-z]+:", path) or target.suffix in {".md", ".png"}:
            return found[0]
        if target.is_dir():
            inside = [file for file in sorted(target.iterdir()) if file.suffix in {".py", ".yml", ".yaml", ".toml", ".md"}]
            target = inside[0] if inside else ROOT / "pyproject.toml"
        files.add(target)
        up = "/".join([".."] * len(page.relative_to(ROOT).parent.parts))
        line = f"#line-{_line(target, anchor)}" if anchor else ""
        return f"]({up or '.'}/source/{target.relative_to(ROOT)}.html{line})"

    parts = re.split(r"(^[ ]*```.*?^[ ]*```$)", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    drawn = ["<figure>\n" + drawing() + "\n</figure>" if part.lstrip().startswith("```mermaid") else part for part in parts]
    return "".join(_raw(_LINK.sub(link, part)) if i % 2 == 0 else part for i, part in enumerate(drawn))


def _raw(text: str) -> str:
    """Write links to listings as HTML: Sphinx knows pages, and would look for these among its own."""
    pattern = r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.|(?:\.\./?)*)/source/[^)]+)\)"
    return re.sub(pattern, lambda found: f'<a href="{found[2].removeprefix("./")}">{_inline(found[1])}</a>', text)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _contents() -> str:
    """Return the navigation: every page is in it, or reached from one that is."""
    names = [str(page.relative_to(ROOT)) for page in pages() if page.parent != DECISIONS]
    listed = {"README.md", *(name for group in NAVIGATION.values() for name in group)}
    late = tuple(name for name in names if name not in listed)
    groups = {**NAVIGATION, "More": late} if late else NAVIGATION
    return "".join(_tree(group, members) for group, members in groups.items())


def _tree(caption: str, names: tuple[str, ...]) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else []), ":maxdepth: 2", ""]
    return "\n".join(["", "```{toctree}", *options, *(name.removesuffix(".md") for name in names), "```", ""])


def _line(file: Path, name: str) -> int:
    """Return the line of a function."""
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node.lineno
    return 1


def _listing(file: Path) -> str:
    """Return a file as a page with numbered lines."""
    text = file.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(full=True, linenos="inline", lineanchors="line", anchorlinenos=True, title=str(file.relative_to(ROOT)))
    return str(highlight(text, lexer, formatter))


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    code = build()
    if not code:
        sys.stderr.write(f"{FOLDER / 'site' / 'README.html'}\n")
    sys.exit(code)
