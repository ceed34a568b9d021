"""Field case 27: an option given on the command line is ignored.

Every option that can come from file, environment and flag gets three different values; the effective settings show the
flag's, say that it came from there, mask secrets, and an unknown key is refused by each source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cdc.errors import ConfigurationError
from cdc.settings import Settings, is_secret, load
from cdc.settings.models import Path as Key
from cdc.settings.sources import all_paths, kind_of

SPECIAL: Mapping[Key, tuple[str, str, str]] = {
    ("name",): ("alpha", "beta", "gamma"),
    ("shard",): ("0/2", "1/2", "2/3"),
    ("shutdown_grace",): ("1s", "2s", "3s"),
    ("postgres", "status_interval"): ("1s", "2s", "3s"),
    ("outbox", "table"): ("a.b", "c.d", 'E."f.g"'),
    ("outbox", "emit"): ("a.b", "c.d", 'E."f.g"'),
    ("outbox", "payload"): ("json", "json", "avro"),
    ("outbox", "tombstones"): ("true", "true", "false"),
    ("outbox", "retention"): ("1d", "2d", "3d"),
    ("outbox", "on_invalid"): ("dead-letter", "dead-letter", "stop"),
    ("topics", "headers"): ("cloudevents", "cloudevents", "debezium"),
    ("topics", "placement"): ("type:header", "type:header:a", "type:header:a, b:header"),
    ("topics", "value"): ("avro", "avro", "json"),
    ("topics", "on_partition_change"): ("warn", "warn", "stop"),
    ("topics", "create", "partitions"): ("1", "2", "3"),
    ("topics", "create", "replication_factor"): ("3", "4", "5"),
    ("topics", "create", "min_insync_replicas"): ("1", "2", "3"),
    ("redis", "streams"): ("1", "2", "3"),
    ("redis", "sentinel"): ("a@h:1", "b@h:1", "c@h:1,i:2"),
    ("redis", "maxlen"): ("1", "2", "3"),
    ("redis", "retention"): ("1d", "2d", "3d"),
    ("redis", "trim_unread"): ("true", "true", "false"),
    ("redis", "wait_replicas"): ("1", "2", "3"),
    ("redis", "wait_fsync"): ("true", "true", "false"),
    ("redis", "transaction_max_bytes"): ("20000000", "30000000", "40000000"),
    ("rabbitmq", "exchange_type"): ("topic", "topic", "direct"),
    ("rabbitmq", "confirm_timeout"): ("1s", "2s", "3s"),
    ("http", "listen"): ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
}
"""Values of options that do not take any word; an option with two choices has the flag's differ from the others."""

PROPERTIES: list[Key] = [
    ("kafka", "bootstrap.servers"),
    ("kafka", "linger.ms"),
    ("kafka", "sasl.password"),
    ("kafka", "ssl.key.password"),
]

OPTIONS = [path for path in all_paths() if path != ("kafka",)] + PROPERTIES

SECRETS = {("postgres", "dsn"), ("postgres", "admin_dsn"), ("http", "token"), ("kafka", "sasl.password"), ("kafka", "ssl.key.password")}


def values(path: Key) -> tuple[str, str, str]:
    if path[-1].endswith("dsn"):
        first, second, third = (f"postgresql://u:canary-{source}@{source}/d" for source in ("file", "env", "flag"))
        return first, second, third
    if path in SECRETS:
        return "canary-of-the-file", "canary-of-the-env", "canary-of-the-flag"
    return SPECIAL.get(path, ("from_file", "from_env", "from_flag"))


def variable(path: Key) -> str:
    return "CDC_" + "__".join(path).replace(".", "_").upper()


def toml(path: Key, value: str) -> str:
    *table, key = path
    text = value if value in {"true", "false"} or value.isdigit() else f"'{value}'"
    return (f"[{'.'.join(table)}]\n" if table else "") + f'"{key}" = {text}\n'


def shown(settings: Settings, path: Key) -> dict[str, object]:
    leaf: dict[str, object] = settings.effective()
    for key in path:
        leaf = leaf[key]  # type: ignore[assignment]  # tables down to the leaf
    return leaf


def needed(path: Key) -> list[str]:
    """What else has to be set for the settings to be whole."""
    flags = {("name",): "shop", ("postgres", "dsn"): "dbname=shop"}
    if path[:2] == ("topics", "create"):
        flags |= {("topics", "create", "partitions"): "1", ("topics", "create", "replication_factor"): "5"}
    return [f"{'.'.join(key)}={value}" for key, value in flags.items() if key != path]


@pytest.mark.parametrize("path", OPTIONS, ids=".".join)
def test_flag_over_environment_over_file(path: Key, tmp_path: Path) -> None:
    in_file, in_env, in_flag = values(path)
    file = tmp_path / "cdc.toml"
    file.write_text(toml(path, in_file))
    flag, env = f"{'.'.join(path)}={in_flag}", {variable(path): in_env}

    effective = {
        "file": shown(load(file, needed(path)), path),
        "env": shown(load(file, needed(path), env), path),
        "flag": shown(load(file, [*needed(path), flag], env), path),
    }

    for source, given in zip(effective, (in_file, in_env, in_flag), strict=True):
        leaf = effective[source]
        assert leaf["origin"] == source
        assert "canary" not in str(leaf)
        if path in SECRETS:
            assert "***" in str(leaf["value"])
            assert path[-1].endswith("dsn") or is_secret(path[-1])
        elif path == ("schemas", "folder") and source == "file":
            assert leaf["value"] == str(tmp_path / given)
        else:
            assert str(leaf["value"]).lower() == given.lower()
    if path[-1].endswith("dsn"):
        assert "@flag/d" in str(effective["flag"]["value"])


def test_every_option_has_three_values_where_it_can() -> None:
    assert set(SPECIAL) <= set(OPTIONS)
    for path in OPTIONS:
        in_file, in_env, in_flag = values(path)
        assert in_flag not in {in_file, in_env}
        assert kind_of(path) is not None or path[0] == "kafka"


def test_two_pipelines_with_two_slots_by_flags(tmp_path: Path) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text('name = "shop"\n[postgres]\ndsn = "dbname=shop"\n')
    one = load(file, ["name=one", "postgres.slot=slot_one"])
    two = load(file, ["name=two", "postgres.slot=slot_two"])
    assert (one.postgres.slot, two.postgres.slot) == ("slot_one", "slot_two")
    assert (one.transactional_id, two.transactional_id) == ("cdc-one", "cdc-two")
    assert one.topics.position != two.topics.position


@pytest.mark.parametrize("path", [("postgres", "slto"), ("namee",), ("outbox", "columns", "idd")], ids=".".join)
@pytest.mark.parametrize("source", ["file", "env", "flag"])
def test_an_unknown_key_is_refused_by_every_source(path: Key, source: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(toml(path, "x") if source == "file" else "")
    with pytest.raises(ConfigurationError, match="there is no setting") as caught:
        load(file, [f"{'.'.join(path)}=x"] if source == "flag" else [], {variable(path): "x"} if source == "env" else {})
    assert "did you mean" in caught.value.fix
    place = {"file": f"{file}:", "env": variable(path), "flag": f"--set {'.'.join(path)}"}[source]
    assert caught.value.what.startswith(place)
