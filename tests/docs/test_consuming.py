"""The consuming page's first section works as it stands there, killed consumer and all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.playing import play, write_files


@pytest.mark.servers
def test_from_zero_to_a_consumer_that_survives(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {
        '"postgresql://postgres@127.0.0.1:5432/shop"': f'"{database}"',
        "127.0.0.1:9092": kafka,
        'name = "shop"': f'name = "{unique}"',
        "outbox.event.Order": f"outbox.event.{unique}",
        "'Order'": f"'{unique}'",
        '"inventory",': f'"{unique}-inventory",',
    }
    page = blocks(ROOT / "docs" / "consuming.md")
    write_files(page, own, tmp_path)
    printed = play(page, own, tmp_path)
    assert printed.endswith(next(block.text for block in page if block.language == "text")), printed
