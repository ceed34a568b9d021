"""The consuming page's first section works as it stands there, killed consumer and all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.playing import addresses, as_written


@pytest.mark.servers
def test_from_zero_to_a_consumer_that_survives(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {
        **addresses(database, kafka),
        'name = "shop"': f'name = "{unique}"',
        "outbox.event.Order": f"outbox.event.{unique}",
        "'Order'": f"'{unique}'",
        '"inventory",': f'"{unique}-inventory",',
    }
    page = blocks(ROOT / "docs" / "consuming.md")
    printed = as_written(page, own, tmp_path)
    assert printed.endswith(next(block.text for block in page if block.language == "text")), printed
