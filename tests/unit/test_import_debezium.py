"""A connector's JSON becomes settings that load, and nothing of it is dropped without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.cli import main
from cdc.errors import ConfigurationError
from cdc.settings import load
from cdc.settings.debezium import Connector, Imported, pipeline_name, read, summary, translate

ROUTER = "transforms.outbox."
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "database.hostname": "db.example.com",
    "database.port": "5432",
    "database.user": "debezium",
    "database.password": "canary-secret",
    "database.dbname": "shop",
    "slot.name": "orders_slot",
    "publication.name": "orders_pub",
    "publication.autocreate.mode": "filtered",
    "topic.prefix": "dbz",
    "table.include.list": "public.outbox",
    "snapshot.mode": "no_data",
    "heartbeat.interval.ms": "10000",
    "tombstones.on.delete": "false",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "transforms": "outbox",
    f"{ROUTER}type": "io.debezium.transforms.outbox.EventRouter",
}


def imported(**changes: str | None) -> Imported:
    config = CONNECTOR | {key.replace("__", "."): value for key, value in changes.items()}
    return translate(Connector("Orders-Outbox", {key: value for key, value in config.items() if value is not None}))


def router(**options: str) -> Imported:
    return translate(Connector("orders", CONNECTOR | {ROUTER + key.replace("__", "."): value for key, value in options.items()}))


def test_a_plain_connector_loses_nothing(tmp_path: Path) -> None:
    found = imported()
    assert found.lost == []
    assert found.tables == {
        "": {"name": "orders_outbox"},
        "postgres": {
            "dsn": "host=db.example.com port=5432 dbname=shop user=debezium",
            "slot": "orders_slot",
            "publication": "orders_pub",
        },
        "outbox": {"table": "public.outbox"},
        "topics": {"route": "outbox.event.{aggregatetype}", "headers": "debezium", "value": "json"},
    }
    assert any("heartbeats" in note for note in found.by_itself)
    assert "canary" not in found.toml() + str(list(summary(found)))
    (tmp_path / "cdc.toml").write_text(found.toml())
    assert load(tmp_path / "cdc.toml").topics.headers == "debezium"


def test_everything_that_a_router_can_say(tmp_path: Path) -> None:
    found = router(
        table__field__event__id="event_id",
        table__field__event__key="key",
        table__field__event__type="kind",
        table__field__event__payload="body",
        table__field__event__schema__version="version",
        route__by__field="topic_name",
        route__topic__regex="(.*)",
        route__topic__replacement="shop.$1",
        table__fields__additional__placement="kind:header:eventType,tenant:header,shard:partition",
        table__op__invalid__behavior="fatal",
    )
    assert found.lost == []
    assert found.tables["outbox"]["columns"] == {
        "id": "event_id",
        "aggregateid": "key",
        "type": "kind",
        "payload": "body",
        "schema_version": "version",
        "aggregatetype": "topic_name",
        "partition": "shard",
    }
    assert found.tables["topics"]["route"] == "shop.{aggregatetype}"
    assert found.tables["topics"]["placement"] == "kind:header:eventType,tenant:header"
    assert "SELECT DISTINCT kind FROM public.outbox" in found.todo[-1]
    (tmp_path / "cdc.toml").write_text(found.toml())
    settings = load(tmp_path / "cdc.toml")
    assert settings.topics.placed == {"eventType": "kind", "tenant": "tenant"}
    assert settings.outbox.columns.partition == "shard"


@pytest.mark.parametrize(
    ("options", "route"),
    [
        ({"route__topic__replacement": "all"}, "all"),
        ({"route__topic__replacement": "e.${routedByValue}.v1"}, "e.{aggregatetype}.v1"),
        ({"route__by__field": "type"}, "outbox.event.{type}"),
        ({"route__topic__regex": "(?<x>.+)", "route__topic__replacement": "a.${x}"}, "a.{aggregatetype}"),
    ],
)
def test_routes(options: dict[str, str], route: str) -> None:
    found = router(**options)
    assert (found.tables["topics"]["route"], found.lost) == (route, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"route__topic__regex": "([a-z]+)\\.(.*)", "route__topic__replacement": "$2"}, "a route is a template"),
        ({"table__fields__additional__placement": "type:envelope:type"}, "without an envelope"),
        ({"table__fields__additional__placement": "type:header:id"}, "set by the pipeline"),
        ({"table__field__event__timestamp": "at"}, "commit time"),
        ({"route__tombstone__on__empty__payload": "true"}, "empty text"),
        ({"tracing__span__context__field": "x"}, "tracing.span.context.field = x"),
    ],
)
def test_what_of_a_router_cannot_be_carried_over(options: dict[str, str], words: str) -> None:
    [lost] = router(**options).lost
    assert words in lost


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plugin__name": "decoderbufs"}, "only a slot of pgoutput"),
        ({"table__include__list": "public.outbox,public.orders"}, "one outbox table"),
        ({"database__hostname": "${file:/secrets:host}"}, "looks these up elsewhere"),
        ({"value__converter": "org.apache.kafka.connect.json.JsonConverter"}, "values written by"),
        ({"value__converter": "io.debezium.converters.BinaryDataConverter"}, 'outbox.payload = "avro"'),
        ({"key__converter": "org.apache.kafka.connect.json.JsonConverter"}, "keys written by"),
        ({"header__converter": "org.apache.kafka.connect.json.JsonConverter"}, "headers written by"),
        ({"transforms": "outbox,mask", "transforms__mask__type": "x.Mask"}, "the transform mask (x.Mask)"),
        ({"signal__data__collection": "public.signals"}, "signal.data.collection = public.signals"),
        ({"some__password": "canary"}, "some.password"),
    ],
)
def test_what_of_a_connector_cannot_be_carried_over(changes: dict[str, str], words: str) -> None:
    found = imported(**changes)
    [lost] = found.lost
    assert words in lost
    assert "canary" not in found.toml()


def test_a_publication_of_all_tables_is_not_ours_and_a_pattern_is_a_name() -> None:
    found = imported(publication__autocreate__mode=None, table__include__list="app\\.events_outbox", slot__drop__on__stop="true")
    assert "publication" not in found.tables["postgres"]
    assert found.tables["outbox"]["table"] == "app.events_outbox"
    assert found.lost == []
    assert any("slot.drop.on.stop" in note for note in found.todo)


def test_expanded_json_and_topics_and_compression() -> None:
    found = imported(
        value__converter="org.apache.kafka.connect.json.JsonConverter",
        value__converter__schemas__enable="false",
        transforms__outbox__table__expand__json__payload="true",
        topic__creation__default__partitions="6",
        topic__creation__default__replication__factor="3",
        producer__override__compression__type="lz4",
        producer__override__linger__ms="20",
    )
    assert found.lost == []
    assert found.tables["topics"]["create"] == {"partitions": 6, "replication_factor": 3}
    assert found.tables["kafka"] == {"compression.type": "lz4"}
    assert any("linger.ms" in note for note in found.by_itself)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": []}', '{"connector.class": "io.debezium.connector.mysql.MySqlConnector"}'])
def test_what_is_no_connector(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read(text, "c.json")


@pytest.mark.parametrize("transforms", ["", "a", "a,b"])
def test_exactly_one_router(transforms: str) -> None:
    two = {f"transforms.{name}.type": CONNECTOR[f"{ROUTER}type"] for name in "ab"} if transforms == "a,b" else {}
    with pytest.raises(ConfigurationError, match="outbox event router"):
        translate(Connector("x", {**CONNECTOR, "transforms": transforms, **two}))


def test_names() -> None:
    assert pipeline_name("Shop.Outbox-1") == "shop_outbox_1"
    assert pipeline_name("ÄÖ") == "debezium"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps({"name": "shop", "config": CONNECTOR}))
    assert main(["import-debezium", "c.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["file"] == "cdc.toml"
    assert document["not_carried_over"] == []
    assert load(Path("cdc.toml")).name == "shop"
    assert main(["import-debezium", "c.json"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["import-debezium", "c.json", "--output", "-"]) == 0
    printed = capsys.readouterr()
    assert printed.out == Path("cdc.toml").read_text()
    assert "to do" in printed.err
    assert main(["import-debezium", "none.json"]) == 2
    assert main(["import-debezium", "c.json", "--output", "none/x"]) == 2
    assert "cannot be written" in capsys.readouterr().err
