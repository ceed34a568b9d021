"""The manual says what is there, and all of it."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from cdc import errors
from cdc.cli import COMMANDS, app, load_command
from cdc.kafka.properties import client_properties
from cdc.settings import load
from tests.docs.pages import PAGES, ROOT, anchors, blocks, links
from tests.docs.states import diagram

OPERATING = ROOT / "docs" / "operating.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        assert link.target.exists(), link
        if link.anchor and link.target.suffix == ".py":
            functions = {node.name for node in ast.parse(link.target.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}
            assert link.anchor in functions, link
        elif link.anchor:
            assert link.anchor in anchors(link.target), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            left += [link.target for link in links(page)]
    unreached = {page for page in PAGES if page.parent.name != "changes"} - seen
    assert not unreached


def test_every_guarantee_has_limits_and_tests() -> None:
    guarantees = GUARANTEES.read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(guarantees) >= 8
    for text in guarantees:
        title = text.splitlines()[0]
        assert "*Limits*" in text, title
        assert "*Shown by* [" in text, title
        shown = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)#(test_\w+)\)", text)
        assert len(shown) >= 3, title


def test_every_command_is_documented() -> None:
    page = OPERATING.read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"`cdc {name}" in page, name
    known = {*COMMANDS, "recover", "dead-letters"}
    for path in PAGES:
        for name in re.findall(r"`cdc ([a-z][\w-]*)", path.read_text(encoding="utf-8")):
            assert name in known, f"{path.name}: cdc {name}"


def test_every_exit_code_is_documented() -> None:
    page = OPERATING.read_text(encoding="utf-8")
    codes = {error.exit_code for error in vars(errors).values() if isinstance(error, type) and issubclass(error, errors.CdcError)}
    assert codes == set(range(1, 9))
    for code in {0, *codes}:
        assert re.search(rf"^\| `{code}` \| .+ \| .+ \|$", page, re.MULTILINE), code
    assert all(f"{code} " in str(app.registered_callback.epilog) for code in range(9) if app.registered_callback)


def test_every_http_path_is_documented() -> None:
    page = OPERATING.read_text(encoding="utf-8")
    for path in ("/", "/events", "/metrics", "/health/live", "/health/ready", "/status", "/registry"):
        assert f"| `{path}` |" in page


def test_the_diagram_of_states_is_the_table_of_transitions() -> None:
    drawn = [block.text for block in blocks(ARCHITECTURE) if block.language == "mermaid"]
    assert drawn == [diagram() + "\n"], "python -m tests.docs.states"


def test_what_architecture_names_exists() -> None:
    page = ARCHITECTURE.read_text(encoding="utf-8")
    for path in re.findall(r"`(cdc/[\w/.]*)`", page):
        assert (ROOT / path).exists(), path
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "cdc").rglob("*.py"))
    for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)`", page):
        if owner not in {"Begin", "Commit"}:
            assert f"class {owner}" in source, owner
            assert f"def {member}(" in source, f"{owner}.{member}"


def test_every_room_is_on_the_map() -> None:
    page = ARCHITECTURE.read_text(encoding="utf-8")
    rooms = [path.name for path in (ROOT / "cdc").iterdir() if (path / "__init__.py").exists()]
    for room in set(rooms) - {"resilience"}:
        assert f"`cdc/{room}/`" in page, room


def test_decisions_are_whole_and_listed() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert len(pages) >= 10
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(page.name[:4])}. "), page
        assert all(f"## {part}\n" in text or f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), page
        assert f"({page.name})" in index, page


def test_the_examples_of_help_can_be_parsed() -> None:
    for name, command in COMMANDS.items():
        assert command.examples, name
        for example in command.examples:
            program, called, *arguments = shlex.split(example)
            assert (program, called) == ("cdc", name), example
            parse(name, arguments)


def test_every_command_of_a_group_has_examples_that_can_be_parsed() -> None:
    seen = 0
    for name, command in COMMANDS.items():
        for called, one in getattr(load_command(name, command), "commands", {}).items():
            examples = re.findall(rf"^  cdc {name} {called}\b.*$", one.epilog or "", re.MULTILINE)
            assert examples, f"cdc {name} {called}"
            for example in examples:
                _, _, *arguments = shlex.split(example.partition(" > ")[0])
                parse(name, arguments)
                seen += 1
    assert seen > 15


def parse(name: str, arguments: list[str]) -> None:
    """Parse a command line without running it; raises for one that makes no sense."""
    command = load_command(name, COMMANDS[name])
    parent = get_command(app).make_context("cdc", [], resilient_parsing=True)
    if isinstance(getattr(command, "commands", None), dict):
        called, *arguments = arguments
        command = command.commands[called]
    command.make_context(name, list(arguments), parent=parent)


def test_a_senseless_example_would_be_seen() -> None:
    with pytest.raises(typer.TyperException):
        parse("run", ["--no-such-option"])


def test_commands_in_the_manuals_blocks_can_be_parsed() -> None:
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.splitlines() if block.language == "sh" else ():
                words = shlex.split(line.removesuffix("&"), comments=True) if line.startswith("cdc ") else []
                if words:
                    parse(words[1], words[2:])


def test_settings_in_the_manual_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "kafka-password").write_text("x")
    shown = [block.text for page in PAGES for block in blocks(page) if block.mark == "settings"]
    for text in shown:
        (tmp_path / "cdc.toml").write_text(text.replace("/run/secrets/", ""))
        assert client_properties(load(tmp_path / "cdc.toml", [], {}).kafka)
    assert shown


def test_the_manual_speaks_of_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            name = "".join(target)
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page.name}: make {name}"
