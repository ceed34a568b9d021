"""Where a table keeps what a row says."""

from __future__ import annotations

import pytest

from cdc.errors import ConfigurationError, InvalidEvent, PostgresRefused
from cdc.outbox.mapping import REQUIRED, OutboxMapping, found, locate, placeholders
from cdc.outbox.table import check_columns, create_sql
from cdc.postgres.catalog import TableColumn
from cdc.postgres.slot import Table

DEBEZIUM = ("id", "aggregatetype", "aggregateid", "type", "payload")
TABLE = Table("public", "outbox")


def live(*names: str, generated: str = "") -> list[TableColumn]:
    return [TableColumn(name, "text", not_null=False, generated=name == generated) for name in names]


def test_placeholders_in_order() -> None:
    assert placeholders("a.{type}.{id}") == ["type", "id"]
    assert placeholders("fixed") == []


def test_what_is_required() -> None:
    assert OutboxMapping(route="fixed").required() == list(REQUIRED)
    assert OutboxMapping().required() == ["id", "aggregatetype", "aggregateid", "type", "payload"]
    assert "headers" in OutboxMapping(columns={"headers": "h"}).required()
    assert "topic" in OutboxMapping(subject="{topic}-{type}").required()


def test_columns_are_found_by_name() -> None:
    located = locate(OutboxMapping(columns={"id": "ID"}), ["x", "ID", *DEBEZIUM[1:]])
    assert located.columns == {"id": 1, "aggregatetype": 2, "aggregateid": 3, "type": 4, "payload": 5}
    assert located.paths == {}


def test_a_column_comes_before_a_path_of_the_same_name() -> None:
    mapping = OutboxMapping(columns={"type": "payload.type"})
    assert locate(mapping, [*DEBEZIUM, "payload.type"]).columns["type"] == 5
    assert locate(mapping, DEBEZIUM).paths == {"type": ("type",)}


def test_a_path_needs_the_payload() -> None:
    mapping = OutboxMapping(columns={"type": "payload.a.b", "payload": "body"})
    assert locate(mapping, ["id", "aggregatetype", "aggregateid", "body"]).paths == {"type": ("a", "b")}
    with pytest.raises(InvalidEvent, match=r"no column 'payload.a.b' for outbox.columns.type"):
        locate(mapping, ["id", "aggregatetype", "aggregateid", "other"])
    assert found(OutboxMapping(columns={"type": "other.a"}), DEBEZIUM).paths == {}


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidEvent) as caught:
        locate(OutboxMapping(columns={"aggregateid": "key"}), DEBEZIUM)
    assert caught.value.what == "the table has no column 'key' for outbox.columns.aggregateid"
    assert caught.value.fix.startswith("the table has id, aggregatetype, aggregateid, type, payload; ")
    with pytest.raises(InvalidEvent, match=r"no column 'kindd' for outbox\.columns\.type\. Fix: did you mean 'kind'\?"):
        locate(OutboxMapping(columns={"type": "kindd"}), [*DEBEZIUM, "kind"])


def test_a_table_that_fits() -> None:
    check_columns(TABLE, live(*DEBEZIUM), OutboxMapping())
    check_columns(TABLE, live(*DEBEZIUM, "noise", generated="noise"), OutboxMapping())


def test_a_table_that_does_not_fit() -> None:
    with pytest.raises(PostgresRefused, match="does not exist, or the role may not see it"):
        check_columns(TABLE, None, OutboxMapping())
    with pytest.raises(PostgresRefused, match=r"has no column 'payload' for outbox.columns.payload"):
        check_columns(TABLE, live(*DEBEZIUM[:-1]), OutboxMapping())
    with pytest.raises(PostgresRefused, match=r"column 'type' \(outbox.columns.type\) is generated and never reaches the log"):
        check_columns(TABLE, live(*DEBEZIUM, generated="type"), OutboxMapping())


def test_the_table_that_init_makes_fits() -> None:
    sql = create_sql(TABLE, OutboxMapping())
    assert sql.startswith("CREATE TABLE ")
    assert all(f"    {name} " in sql for name in DEBEZIUM)
    with pytest.raises(ConfigurationError, match="--create-table"):
        create_sql(TABLE, OutboxMapping(columns={"id": "x"}))
