"""The first steps of docs/writing.md work as they stand there, on what the README's quick start makes."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.playing import play, write_files


@pytest.mark.servers
def test_from_zero_to_an_event(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {'"postgresql://postgres@127.0.0.1:5432/shop"': f'"{database}"', "127.0.0.1:9092": kafka, 'name = "shop"': f'name = "{unique}"'}
    page = blocks(ROOT / "docs" / "writing.md")
    write_files([*blocks(ROOT / "README.md"), *page], own, tmp_path)
    printed = play(page, own, tmp_path, "cdc schemas add --all", "cdc init --create-table")
    assert re.search(r"^Event\(type='OrderPlaced', id=UUID\('[0-9a-f-]+'\)\)$", printed, re.MULTILINE), printed
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT aggregatetype, aggregateid, type, payload, schema_version, headers FROM outbox").fetchall()
        assert found == [
            ("Order", "43", "OrderPlaced", {"orderId": "43", "totalCents": 2490, "note": None}, 1, {"correlationid": "request-7"})
        ]
        [example] = [block.text for block in page if block.language == "sql"]
        connection.execute(example.encode())
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (2,)
