"""From a table that somebody made by hand to a record that any client reads, on the oldest usual server and on the newest."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cdc.devstack.postgres import PostgresServer, client
from tests.conftest import Pipelines, drop_database
from tests.pipeline import SCHEMA, decode, write_schemas

pytestmark = pytest.mark.servers

DEBEZIUM = """CREATE TABLE outbox (
    id uuid NOT NULL PRIMARY KEY,
    aggregatetype character varying(255) NOT NULL,
    aggregateid character varying(255) NOT NULL,
    type character varying(255) NOT NULL,
    payload jsonb
)"""

EVENT_ID = "406c07f3-26f0-4eea-a50c-109940064b8f"


@pytest.mark.parametrize("version", [15, 18])
def test_an_insert_with_psql_becomes_a_record(
    version: int, pipelines: Pipelines, unique: str, kafka: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if version == 15:
        server: PostgresServer = request.getfixturevalue("postgres15")
        admin_dsn, dsn = server.dsn(), server.dsn(unique)
    else:
        admin_dsn = request.getfixturevalue("postgres_dsn")
        dsn = psycopg.conninfo.make_conninfo(admin_dsn, dbname=unique)
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
        pipeline = pipelines(dsn, kafka)
        try:
            pipeline.execute(DEBEZIUM)
            write_schemas(tmp_path / "schemas", locked=False)

            added = pipeline.command("schemas", "add", "--all", "--json")
            assert added.code == 0, added.err
            assert json.loads(added.out.splitlines()[-1])["added"] == [{"subject": "Thing", "version": 1, "id": 1}]
            made = pipeline.command("init")
            assert made.code == 0, made.err
            checked = pipeline.command("check")
            assert checked.code == 0, checked.err + checked.out
            pipeline.started()

            began = time.time()
            insert = f"INSERT INTO outbox VALUES ('{EVENT_ID}', 'thing', '42', 'Thing', '{{\"n\": 7, \"text\": \"Grüße\"}}')"
            psql: list[str | Path] = [client("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-c", insert, dsn]
            assert subprocess.run(psql, check=True, capture_output=True, text=True).stdout == "INSERT 0 1\n"
            pipeline.wait_numbers([7])
            again = pipeline.command("init")
            assert again.code == 0, again.err
            assert "nothing was changed" in again.err
            pipeline.stop()
        finally:
            if pipeline.processes:
                pipeline.kill()
            pipeline.connection.close()
            drop_database(admin, unique)

    [event] = pipeline.events()
    assert event.topic == f"{unique}.thing"
    assert event.key == b"42"
    assert decode(event.value, SCHEMA) == {"n": 7, "text": "Grüße"}
    assert (event.value or b"")[:5] == b"\0\0\0\0\1"
    assert abs(event.timestamp_ms / 1000 - began) < 10
    headers = {name: value.decode() for name, value in event.headers.items()}
    assert headers.pop("ce_time")[:4] == time.strftime("%Y", time.gmtime(began))
    sequence = headers.pop("ce_sequence")
    assert len(sequence) == 28
    assert sequence.startswith("0000")
    assert sequence.endswith("00000000")
    assert headers == {
        "ce_specversion": "1.0",
        "ce_id": EVENT_ID,
        "ce_source": f"/{unique}",
        "ce_type": "Thing",
        "content-type": "application/avro",
        "ce_dataschema": "Thing/1",
    }
