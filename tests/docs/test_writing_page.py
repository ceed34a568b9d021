"""The first steps of docs/writing.md work as they stand there, on what the README's quick start makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import ROOT, blocks
from tests.pipeline import environment


@pytest.mark.servers
def test_from_zero_to_an_event(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {'"postgresql://postgres@127.0.0.1:5432/shop"': f'"{database}"', "127.0.0.1:9092": kafka, 'name = "shop"': f'name = "{unique}"'}
    page = blocks(ROOT / "docs" / "writing.md")
    for block in [*blocks(ROOT / "README.md"), *page]:
        if block.mark.startswith("file: "):
            text = block.text
            for theirs, ours in own.items():
                text = text.replace(theirs, ours)
            file = tmp_path / block.mark.removeprefix("file: ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    script = ["set -e", "cdc schemas add --all", "cdc init --create-table", *(block.text for block in page if block.mark == "run")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", "-c", "\n".join(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env={**environment(), "PATH": path})
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Event\(type='OrderPlaced', id=UUID\('[0-9a-f-]+'\)\)$", done.stdout, re.MULTILINE), done.stdout
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT aggregatetype, aggregateid, type, payload, schema_version, headers FROM outbox").fetchall()
        assert found == [
            ("Order", "43", "OrderPlaced", {"orderId": "43", "totalCents": 2490, "note": None}, 1, {"correlationid": "request-7"})
        ]
        [example] = [block.text for block in page if block.language == "sql"]
        connection.execute(example.encode())
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (2,)
