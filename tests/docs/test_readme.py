"""The README's quick start works, step by step, as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.playing import addresses, as_written


@pytest.mark.servers
def test_the_quick_start(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {
        **addresses(database, kafka),
        'name = "shop"': f'name = "{unique}"',
        "outbox.event.Order": f"outbox.event.{unique}",
        "'Order'": f"'{unique}'",
        '"reader"': f'"{unique}"',
    }
    page = blocks(ROOT / "README.md")
    printed = as_written(page, own, tmp_path)
    assert printed.endswith([block.text for block in page if block.language == "text"][-1]), printed
