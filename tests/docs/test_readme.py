"""The README's quick start works, step by step, as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.playing import play, write_files


@pytest.mark.servers
def test_the_quick_start(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {
        '"postgresql://postgres@127.0.0.1:5432/shop"': f'"{database}"',
        "127.0.0.1:9092": kafka,
        'name = "shop"': f'name = "{unique}"',
        "outbox.event.Order": f"outbox.event.{unique}",
        "'Order'": f"'{unique}'",
        '"reader"': f'"{unique}"',
    }
    page = blocks(ROOT / "README.md")
    write_files(page, own, tmp_path)
    printed = play(page, own, tmp_path)
    assert printed.endswith([block.text for block in page if block.language == "text"][-1]), printed
