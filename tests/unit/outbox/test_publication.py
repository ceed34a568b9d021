"""What a publication hides, from facts; and which of its faults are refused rather than told."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import PostgresRefused
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.publication import check_publication, problems
from cdc.postgres.catalog import Published, TableColumn
from cdc.postgres.slot import Table

TABLE = Table("public", "outbox")
COLUMNS = [
    TableColumn(name, "text", not_null=False, generated=name == "computed")
    for name in ("id", "aggregatetype", "aggregateid", "type", "payload", "unused", "computed")
]
ROW = {"pubinsert": True, "pubupdate": False, "pubdelete": False, "pubtruncate": False, "pubviaroot": True, "puballtables": False}
ALL = ["id", "aggregatetype", "aggregateid", "type", "payload", "unused"]


def published(
    row: dict[str, Any] | None = None,
    tables: list[list[str]] | None = None,
    schemas: list[str] | None = None,
    shown: dict[str, Any] | None = None,
) -> Published:
    return Published(ROW | (row or {}), [["public", "outbox", "r"]] if tables is None else tables, schemas or [], shown)


def found(seen: Published, mapping: OutboxMapping | None = None) -> list[tuple[str, bool]]:
    return [(each.what, each.hides) for each in problems("shop", seen, TABLE, COLUMNS, mapping or OutboxMapping())]


@pytest.mark.parametrize(
    "seen",
    [
        published(),
        published(shown={"attnames": None, "rowfilter": None}),
        published(shown={"attnames": ALL[:5], "rowfilter": None}),
        published(shown={}),
        published(tables=[["public", "outbox", "p"]]),
        published(row={"pubviaroot": False}),
    ],
    ids=["as init makes it", "of 15", "without what nobody needs", "of 14", "partitioned", "without the root of no partitions"],
)
def test_what_is_well(seen: Published) -> None:
    assert found(seen) == []
    check_publication("shop", seen, TABLE, COLUMNS, OutboxMapping())


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (published(row={"pubinsert": False}), "does not publish inserts"),
        (published(row={"puballtables": True}, tables=[]), "is FOR ALL TABLES"),
        (published(tables=[["public", "other", "r"]]), 'does not name "public"."outbox"'),
        (published(tables=[["other", "outbox", "r"]]), 'does not name "public"."outbox"'),
        (published(tables=[], schemas=["public", "app"]), 'does not name "public"."outbox", only the schema public, app'),
        (published(row={"pubviaroot": False}, tables=[["public", "outbox", "p"]]), "names its partitions instead of it"),
        (published(shown={"rowfilter": "(tenant = 1)"}), "has a row filter"),
        (published(shown={"attnames": ["id", "payload"]}), "has a column list that hides aggregateid, aggregatetype, type"),
    ],
)
def test_what_hides_rows_is_refused(seen: Published, words: str) -> None:
    [(what, hides)] = found(seen)
    assert words in what
    assert hides
    with pytest.raises(PostgresRefused) as caught:
        check_publication("shop", seen, TABLE, COLUMNS, OutboxMapping())
    assert caught.value.what == what
    assert "`cdc init`" in caught.value.fix


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (published(row={"pubupdate": True}), "publishes more than inserts"),
        (published(row={"pubtruncate": True}), "publishes more than inserts"),
        (published(tables=[["public", "outbox", "r"], ["public", "other", "r"]]), "names 1 other table(s)"),
        (published(schemas=["app"]), "names the schema app too"),
    ],
)
def test_what_is_wasteful_is_told_and_not_refused(seen: Published, words: str) -> None:
    [(what, hides)] = found(seen)
    assert words in what
    assert not hides
    check_publication("shop", seen, TABLE, COLUMNS, OutboxMapping())


def test_what_is_mapped_must_be_in_the_list() -> None:
    seen = published(shown={"attnames": ALL[:5]})
    [(what, hides)] = found(seen, OutboxMapping(columns={"topic": "unused"}))
    assert "hides unused" in what
    assert hides


def test_the_way_out_for_partitions_is_the_statement_itself() -> None:
    seen = published(row={"pubviaroot": False}, tables=[["public", "outbox", "p"]])
    [problem] = problems('odd "name"', seen, TABLE, COLUMNS, OutboxMapping())
    assert 'ALTER PUBLICATION "odd ""name""" SET (publish_via_partition_root = true)' in problem.fix
