"""Settings: three sources, one order, and refusals that name the place."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ConfigurationError
from cdc.kafka.properties import LOCKED_PROPERTIES
from cdc.outbox import mapping
from cdc.settings import Settings, TableName, load, load_schemas, mask, template_parts
from cdc.settings.models import ColumnSettings
from cdc.settings.values import (
    Wrong,
    duration_text,
    parse_duration,
    parse_listen,
    parse_placement,
    quote_identifier,
)

MINIMAL = {"CDC_NAME": "shop", "CDC_POSTGRES__DSN": "postgresql://cdc:hush@db:5432/shop"}
CANARY = "canary-3f9a"


def refused(sets: list[str] | None = None, environ: dict[str, str] | None = None, config: Path | None = None) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(config, sets or [], MINIMAL | (environ or {}))
    return caught.value


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cdc.toml of the checkout gets in the way."""
    monkeypatch.chdir(tmp_path)


class TestDefaults:
    def test_the_name_leads_to_the_rest(self) -> None:
        settings = load(None, [], MINIMAL)
        assert settings.postgres.slot == "cdc_shop"
        assert settings.postgres.publication == "cdc_shop"
        assert settings.transactional_id == "cdc-shop"
        assert settings.outbox.source == "/shop"
        assert settings.outbox.table == TableName("public", "outbox")
        assert settings.topics.position == "_cdc.shop.position"
        assert settings.topics.dead_letter == "cdc.shop.dead-letter"
        assert settings.topics.route == "outbox.event.{aggregatetype}"
        assert settings.topics.create is None
        assert settings.kafka["bootstrap.servers"] == "127.0.0.1:9092"
        assert settings.http.address == ("127.0.0.1", 8642)
        assert settings.shutdown_grace == timedelta(seconds=10)
        assert settings.outbox.columns.named() == {}

    def test_they_are_frozen(self) -> None:
        settings = load(None, [], MINIMAL)
        with pytest.raises(ValueError, match="frozen"):
            settings.postgres.slot = "other"  # type: ignore[misc]  # that is the point

    def test_columns_are_those_that_the_router_knows(self) -> None:
        assert tuple(ColumnSettings.model_fields) == mapping.KEYS

    @pytest.mark.parametrize("missing", list(MINIMAL))
    def test_what_has_no_default_is_asked_for(self, missing: str) -> None:
        with pytest.raises(ConfigurationError, match="is missing") as caught:
            load(None, [], {key: value for key, value in MINIMAL.items() if key != missing})
        assert missing in caught.value.fix
        assert caught.value.what.startswith("there is no cdc.toml in this folder: the setting ")

    def test_schemas_need_neither_name_nor_server(self) -> None:
        assert load_schemas(None).folder == "schemas"
        assert load_schemas(None, ["schemas.folder=there"]).folder == "there"


class TestFile:
    def test_the_whole_block(self, tmp_path: Path) -> None:
        file = tmp_path / "cdc.toml"
        file.write_text(
            """
name = "shop"
shutdown_grace = "3s"
[postgres]
dsn = "postgresql://cdc@127.0.0.1:5432/shop"
admin_dsn = "host=127.0.0.1 user=postgres password=hush"
slot = "cdc_shop"
publication = "Strange Name"
status_interval = "500ms"
[outbox]
table = 'App."Out.box"'
columns = { type = "payload.eventType" }
payload = "json"
source = "/shop"
tombstones = false
on_invalid = "stop"
[schemas]
folder = "contract"
subject = "{aggregatetype}.{type}"
[kafka]
"bootstrap.servers" = "a:1,b:2"
linger.ms = 5
"socket.keepalive.enable" = true
[topics]
route = "events.{aggregatetype}"
position = "p"
dead_letter = "d"
headers = "cloudevents"
value = "avro"
create = { partitions = 6, replication_factor = 3, min_insync_replicas = 2 }
on_partition_change = "stop"
[http]
listen = "off"
"""
        )
        settings = load(file)
        assert settings.outbox.table.quoted == '"App"."Out.box"'
        assert settings.outbox.columns.named() == {"type": "payload.eventType"}
        assert settings.postgres.status_interval == timedelta(milliseconds=500)
        assert dict(settings.kafka) == {
            "bootstrap.servers": "a:1,b:2",
            "linger.ms": "5",
            "socket.keepalive.enable": "true",
        }
        assert settings.schemas.folder == str(tmp_path / "contract")
        assert settings.topics.create is not None
        assert settings.topics.create.min_insync_replicas == 2
        assert settings.http.address is None

    def test_found_by_variable_and_by_default(self, tmp_path: Path) -> None:
        (tmp_path / "cdc.toml").write_text('name = "here"\n')
        (tmp_path / "other.toml").write_text('name = "other"\n')
        environ = {"CDC_POSTGRES__DSN": "dbname=x"}
        assert load(None, [], environ).name == "here"
        assert load(None, [], environ | {"CDC_CONFIG": "other.toml"}).name == "other"
        assert load(tmp_path / "cdc.toml", [], environ | {"CDC_CONFIG": "other.toml"}).name == "here"

    def test_missing(self) -> None:
        assert "absent.toml cannot be read" in refused(config=Path("absent.toml")).what
        assert "absent.toml cannot be read" in refused(environ={"CDC_CONFIG": "absent.toml"}).what

    def test_not_toml(self, tmp_path: Path) -> None:
        file = tmp_path / "cdc.toml"
        file.write_text('name = "shop\n')
        assert "is not TOML" in refused(config=file).what

    @pytest.mark.parametrize(
        ("text", "line", "meant"),
        [
            ("[postgres]\nslto = 'x'\n", 2, "postgres.slot"),
            ("[outbox]\n\nslot = 'x'\n", 3, "postgres.slot"),
            ("# name\nnamee = 'x'\n", 2, "name"),
            ("[outbox]\ncolumns = { idd = 'x' }\n", 2, "outbox.columns.id"),
            ("[postgress]\ndsn = 'x'\n", 2, "postgres.dsn"),
        ],
    )
    def test_unknown_key_says_where_and_what_was_meant(self, tmp_path: Path, text: str, line: int, meant: str) -> None:
        file = tmp_path / "cdc.toml"
        file.write_text(text)
        error = refused(config=file)
        assert error.what.startswith(f"{file}:{line}: there is no setting ")
        assert error.fix == f"did you mean {meant}?"

    @pytest.mark.parametrize("text", ["kafka = 3", "postgres = 3", 'outbox = "x"', "topics = []", "[[kafka]]\nx = 1", "outbox.columns = 1"])
    def test_a_table_must_be_one(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "cdc.toml"
        file.write_text(text)
        assert refused(config=file).what.endswith(" is a table")

    @given(st.text(max_size=40))
    def test_any_file_is_read_or_refused(self, tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
        file = tmp_path_factory.getbasetemp() / "any.toml"
        file.write_text(f"{text} = 1\n[kafka]\n{text} = 'x'\n", encoding="utf-8")
        with contextlib.suppress(ConfigurationError):
            load(file, [], MINIMAL)

    @given(st.text(max_size=20), st.text(max_size=20))
    def test_any_flag_and_variable_is_read_or_refused(self, key: str, value: str) -> None:
        for sets, environ in (([f"{key}={value}"], {}), ([], {f"CDC_{key}": value}), ([f"kafka.{key}={value}"], {})):
            with contextlib.suppress(ConfigurationError):
                load(None, sets, MINIMAL | environ)

    def test_a_wrong_value_says_where(self, tmp_path: Path) -> None:
        file = tmp_path / "cdc.toml"
        file.write_text('[outbox]\ntable = "a.b"\non_invalid = "skip"\n')
        error = refused(config=file)
        assert error.what.startswith(f'{file}:3: outbox.on_invalid = "skip" ')
        assert "dead-letter" in error.fix


class TestEnvironment:
    def test_tables_and_properties(self) -> None:
        settings = load(
            None,
            [],
            MINIMAL
            | {
                "CDC_KAFKA__BOOTSTRAP_SERVERS": "k:1",
                "CDC_OUTBOX__COLUMNS__TYPE": "event_type",
                "CDC_TOPICS__CREATE": "{ partitions = 3, replication_factor = 1 }",
                "CDC_OUTBOX__TOMBSTONES": "false",
            },
        )
        assert settings.kafka["bootstrap.servers"] == "k:1"
        assert settings.outbox.columns.type == "event_type"
        assert settings.topics.create is not None
        assert settings.topics.create.min_insync_replicas == 1
        assert settings.outbox.tombstones is False

    @pytest.mark.parametrize("variable", ["CDC_POSTGRES__SLOTT", "CDC_NAMES", "CDC_POSTGRES", "CDC_WHATEVER"])
    def test_unknown(self, variable: str) -> None:
        assert refused(environ={variable: "x"}).what.startswith(f"{variable}: ")

    def test_what_kubernetes_says_of_a_service_called_cdc_is_no_setting(self) -> None:
        links = {
            "CDC_SERVICE_HOST": "10.0.0.1",
            "CDC_SERVICE_PORT": "8642",
            "CDC_SERVICE_PORT_HTTP": "8642",
            "CDC_PORT": "tcp://10.0.0.1:8642",
            "CDC_PORT_8642_TCP": "tcp://10.0.0.1:8642",
            "CDC_PORT_8642_TCP_PROTO": "tcp",
            "CDC_SHOP_SERVICE_HOST": "10.0.0.2",
        }
        assert load(None, [], MINIMAL | links).name == "shop"


class TestFlags:
    def test_properties_keep_their_dots(self) -> None:
        settings = load(None, ["kafka.bootstrap.servers=a:1", 'kafka."client.id"=x', "kafka.linger.ms=0"], MINIMAL)
        assert settings.kafka["bootstrap.servers"] == "a:1"
        assert settings.kafka["client.id"] == "x"

    def test_the_last_of_two_counts(self) -> None:
        assert load(None, ["name=a", "name=b"], MINIMAL).name == "b"

    def test_a_value_may_have_an_equals_sign(self) -> None:
        settings = load(None, ["postgres.dsn=host=h dbname=d"], MINIMAL)
        assert settings.postgres.dsn.get_secret_value() == "host=h dbname=d"

    @pytest.mark.parametrize("item", ["name", "topics=x", "kafka=x", "kafka.=x", "outbox.columns=3", "=x", "name.x=y"])
    def test_malformed(self, item: str) -> None:
        assert refused([item]).what.startswith("--set ")


class TestPrecedence:
    VALUES = st.integers(min_value=0, max_value=10_000).map(lambda number: f"v{number}")

    @given(file=st.none() | VALUES, env=st.none() | VALUES, flag=st.none() | VALUES)
    def test_a_later_source_wins(
        self, tmp_path_factory: pytest.TempPathFactory, file: str | None, env: str | None, flag: str | None
    ) -> None:
        config = tmp_path_factory.getbasetemp() / "precedence.toml"
        config.write_text(f'[postgres]\nslot = "{file}"\n' if file else "")
        settings = load(
            config,
            [f"postgres.slot={flag}"] if flag else [],
            MINIMAL | ({"CDC_POSTGRES__SLOT": env} if env else {}),
        )
        source = "flag" if flag else "env" if env else "file" if file else "default"
        assert settings.postgres.slot == (flag or env or file or "cdc_shop")
        assert settings.origin(("postgres", "slot")).source == source
        assert settings.effective()["postgres"]["slot"]["origin"] == source

    def test_tables_are_laid_over_each_other_key_by_key(self, tmp_path: Path) -> None:
        file = tmp_path / "cdc.toml"
        file.write_text("[outbox]\ncolumns = { id = 'a', type = 'b' }\n")
        settings = load(file, ["outbox.columns.topic=c"], MINIMAL | {"CDC_OUTBOX__COLUMNS__ID": "d"})
        assert settings.outbox.columns.named() == {"id": "d", "type": "b", "topic": "c"}


class TestSecrets:
    def test_from_files(self, tmp_path: Path) -> None:
        (tmp_path / "dsn").write_text("postgresql://u:hush@h/d\n")
        (tmp_path / "pw").write_text("hush\n")
        file = tmp_path / "cdc.toml"
        file.write_text('name = "shop"\n[postgres]\ndsn_file = "dsn"\n[kafka]\n"sasl.password_file" = "pw"\n')
        settings = load(file)
        assert settings.postgres.dsn.get_secret_value() == "postgresql://u:hush@h/d"
        assert settings.kafka["sasl.password"] == "hush"
        assert "hush" not in repr(settings.effective())

    def test_from_files_by_environment_and_flag(self, tmp_path: Path) -> None:
        (tmp_path / "pw").write_text("hush")
        settings = load(None, ["kafka.ssl.key.password_file=pw"], MINIMAL | {"CDC_KAFKA__SASL_PASSWORD_FILE": str(tmp_path / "pw")})
        assert settings.kafka["sasl.password"] == "hush"
        assert settings.kafka["ssl.key.password"] == "hush"

    def test_a_property_that_ends_with_file_is_itself(self) -> None:
        settings = load(None, [], MINIMAL | {"CDC_KAFKA__SASL_OAUTHBEARER_ASSERTION_FILE": "x"})
        assert settings.kafka["sasl.oauthbearer.assertion.file"] == "x"

    def test_a_file_that_is_overridden_is_not_read(self) -> None:
        settings = load(None, ["postgres.dsn=dbname=x"], {"CDC_NAME": "shop", "CDC_POSTGRES__DSN_FILE": "absent"})
        assert settings.postgres.dsn.get_secret_value() == "dbname=x"

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        assert "No such file" in refused(["postgres.dsn_file=absent"]).what
        (tmp_path / "large").write_text("x" * 70_000)
        assert "too large" in refused(["postgres.dsn_file=large"]).what
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        assert "UTF-8" in refused(["postgres.dsn_file=binary"]).what

    def test_both_ways_at_once(self) -> None:
        assert "given twice" in refused(environ={"CDC_POSTGRES__DSN_FILE": "x"}).what

    def test_only_secrets_come_from_files(self) -> None:
        assert "there is no setting" in refused(["name_file=x"]).what

    @pytest.mark.parametrize(
        "dsn",
        [
            f"postgresql://u:{CANARY}@h/d",
            f"postgresql://u:{CANARY}@h1:1,h2:2/d?sslmode=require",
            f"postgresql://u:a@{CANARY}@h/d",
            f"postgresql://u:a/{CANARY}@h/d",
            f"postgresql://h/d?user=u&password={CANARY}",
            f"postgresql://h/d?sslpassword={CANARY}&x=y",
            f"host=h password={CANARY} dbname=d",
            f"host=h password = '{CANARY} b' dbname=d",
            rf"host=h password='a\'{CANARY}' dbname=d",
            f"password='{CANARY}",
        ],
    )
    def test_never_shown(self, dsn: str) -> None:
        settings = load(None, [f"kafka.sasl.password={CANARY}"], MINIMAL | {"CDC_POSTGRES__DSN": dsn})
        assert settings.postgres.dsn.get_secret_value() == dsn
        for shown in (
            repr(settings),
            str(settings),
            repr(settings.effective()),
            settings.model_dump_json(exclude={"kafka"}),
        ):
            assert CANARY not in shown
        assert "***" in mask(dsn)

    def test_what_is_no_secret_is_shown(self) -> None:
        for text in ("postgresql://cdc@127.0.0.1:5432/shop", "host=h user=u dbname=d", "nothing at all"):
            assert mask(text) == text

    @pytest.mark.parametrize("key", ["postgres.dsn", "postgres.admin_dsn", "kafka.sasl.password"])
    def test_not_in_refusals(self, key: str, tmp_path: Path) -> None:
        file = tmp_path / "cdc.toml"
        table, name = key.split(".", 1)
        file.write_text(f'[{table}]\n"{name}" = ["{CANARY}"]\n')
        with pytest.raises(ConfigurationError) as caught:
            load(file, [], {"CDC_NAME": "shop"})
        assert CANARY not in str(caught.value)
        assert caught.value.__suppress_context__


class TestRefusals:
    @pytest.mark.parametrize("name", list(LOCKED_PROPERTIES))
    def test_what_the_guarantee_rests_on(self, name: str) -> None:
        error = refused([f"kafka.{name}=1"])
        assert LOCKED_PROPERTIES[name] in error.what

    @pytest.mark.parametrize(
        "item",
        [
            "name=Shop",
            f"name={'x' * 60}",
            "postgres.slot=Shop",
            f"postgres.slot={'x' * 64}",
            "postgres.publication=",
            "postgres.dsn= ",
            "postgres.status_interval=10",
            "postgres.status_interval=1ms",
            "shutdown_grace=1d",
            "outbox.table=a.b.c",
            "outbox.table=",
            "outbox.table=a..b",
            f"outbox.table={'x' * 64}",
            "outbox.columns.id=",
            "outbox.source=a b",
            "outbox.tombstones=maybe",
            "schemas.subject={payload}",
            "schemas.subject={type",
            "schemas.subject={type!r}",
            "schemas.subject={type:>9}",
            "schemas.subject={{type}}",
            "schemas.subject=",
            "topics.route=a/{type}",
            "topics.route=a b",
            "topics.route=",
            f"topics.route={'x' * 250}",
            "topics.position=cdc.shop.dead-letter",
            "topics.position=..",
            "topics.create.partitions=0",
            "topics.create={ partitions = 1, replication_factor = 1, min_insync_replicas = 2 }",
            "topics.create={}",
            "http.listen=8642",
            "http.listen=h:99999",
        ],
    )
    def test_values(self, item: str) -> None:
        error = refused([item])
        assert item.partition("=")[0].split(".")[0] in error.what
        assert error.fix
        assert "\n" not in str(error)


class TestValues:
    @given(st.integers(0, 999), st.sampled_from(["ms", "s", "m", "h", "d"]))
    def test_durations_come_back(self, number: int, unit: str) -> None:
        value = parse_duration(f"{number}{unit}")
        assert parse_duration(duration_text(value)) == value

    NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)

    @given(NAMES, NAMES)
    def test_table_names_come_back(self, schema: str, name: str) -> None:
        table = TableName(schema, name)
        assert TableName.parse(str(table)) == table
        assert TableName.parse(table.quoted) == table

    def test_table_names_keep_their_case(self) -> None:
        assert TableName.parse('App."Out.box"') == TableName("App", "Out.box")
        assert TableName.parse("Outbox") == TableName("public", "Outbox")
        assert quote_identifier('a"b') == '"a""b"'

    @given(st.text(max_size=30))
    def test_any_text_is_a_template_or_refused(self, text: str) -> None:
        try:
            parts = template_parts(text)
        except Wrong:
            return
        assert "".join(before + (f"{{{key}}}" if key else "") for before, key in parts) == text

    @pytest.mark.parametrize("listen", ["0.0.0.0:8642", "[::]:8642", "cdc.internal:8642"])
    def test_an_endpoint_that_others_reach_needs_a_token(self, listen: str) -> None:
        with pytest.raises(ConfigurationError, match="without a token") as caught:
            load(None, [f"http.listen={listen}"], MINIMAL)
        assert "http.token" in caught.value.fix
        assert load(None, [f"http.listen={listen}", "http.token=0123456789abcdef"], MINIMAL).http.token is not None

    def test_a_token_is_never_shown(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("0123456789abcdef\n")
        settings = load(None, [], MINIMAL | {"CDC_HTTP__TOKEN_FILE": str(tmp_path / "token")})
        assert settings.http.token is not None
        assert settings.http.token.get_secret_value() == "0123456789abcdef"
        assert "0123456789abcdef" not in repr(settings) + str(settings.model_dump())
        with pytest.raises(ConfigurationError, match="fewer than 16") as caught:
            load(None, ["http.token=short-secret"], MINIMAL)
        assert "short-secret" not in str(caught.value)

    def test_listen(self) -> None:
        assert parse_listen("[::1]:80") == ("::1", 80)
        assert parse_listen("") is None

    def test_origins_are_plain_values(self) -> None:
        settings: Settings = load(None, [], MINIMAL)
        assert settings.origin(("name",)).place == "CDC_NAME"
        assert dataclasses.is_dataclass(settings.outbox.table)


class TestPlacement:
    def test_columns_by_the_header_that_holds_them(self) -> None:
        assert parse_placement("") == {}
        assert parse_placement("type:header:eventType, tenant:header ,payload.a.b:header:ab") == {
            "eventType": "type",
            "tenant": "tenant",
            "ab": "payload.a.b",
        }

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("type", "places no column"),
            ("type:envelope:type", "places no column"),
            (":header:x", "places no column"),
            ("shard:partition", "outbox.columns.partition"),
            ("a:header:x,b:header:x", "named twice"),
            ("a:header:id", "set by the pipeline"),
            ("a:header:ce_id", "set by the pipeline"),
            ("replay:header", "set by the pipeline"),
        ],
    )
    def test_what_is_refused(self, text: str, words: str) -> None:
        error = refused([f"topics.placement={text}"])
        assert words in f"{error.what} {error.fix}"


def test_a_table_chooses_the_sink_and_there_is_one() -> None:
    base = ["name=shop", "postgres.dsn=dbname=shop"]
    assert load(None, base, {}).sink == "kafka"
    chosen = load(None, [*base, "redis={}"], {})
    assert chosen.sink == "redis"
    assert chosen.redis is not None
    assert chosen.redis.maxlen == 10_000
    with pytest.raises(ConfigurationError, match=r"two sinks: kafka and redis.*leave all but one"):
        load(None, [*base, "redis.streams=2", "kafka.client.rack=a"], {})


@pytest.mark.parametrize("sink", ["redis", "rabbitmq"])
@pytest.mark.parametrize("only_kafka", ["topics.create={ partitions = 3 }", "outbox.columns={ partition = 'shard' }"])
def test_what_only_kafka_has_is_refused_for_another_sink(sink: str, only_kafka: str) -> None:
    base = ["name=shop", "postgres.dsn=dbname=shop", only_kafka]
    load(None, base, {})
    with pytest.raises(ConfigurationError, match=rf"{only_kafka.partition('=')[0]}.* no meaning with R.*leave it out"):
        load(None, [*base, f"{sink}={{}}"], {})


def test_a_password_in_the_url_of_a_sink_is_masked() -> None:
    settings = load(None, ["name=shop", "postgres.dsn=dbname=shop", "redis.url=redis://cdc:hidden@host:6379/0"], {})
    assert "hidden" not in repr(settings)
    assert "hidden" not in str(settings.effective())
