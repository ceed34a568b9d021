"""The manual's figures of recovery are those that the bench has kept."""

from __future__ import annotations

from pathlib import Path

import orjson

from benchmarks.recovery import STORED, table


def test_the_table_is_the_benchs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    assert table(orjson.loads(STORED.read_bytes())) in page
