"""The tutorial works as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.playing import addresses, as_written


@pytest.mark.servers
def test_two_listeners_and_a_kill(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {
        **addresses(database, kafka),
        'name = "users"': f'name = "{unique}"',
        "outbox.event.User": f"outbox.event.{unique}",
        'aggregatetype = "User"': f'aggregatetype = "{unique}"',
        '"welcome",': f'"{unique}-welcome",',
        '"loyalty",': f'"{unique}-loyalty",',
    }
    page = blocks(ROOT / "docs" / "tutorial.md")
    printed = as_written(page, own, tmp_path)
    assert printed.endswith([block.text for block in page if block.language == "text"][-1]), printed
