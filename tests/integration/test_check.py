"""`cdc check` on real servers: what is well, and each thing that is not, with its fix."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.cli import main
from tests.pipeline import Pipeline, since

pytestmark = pytest.mark.servers

Found = dict[str, dict[str, Any]]


class Doctor:
    """Runs `cdc check` in this process, and finds its findings."""

    def __init__(self, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
        self.pipeline = pipeline
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        self._capsys.readouterr()
        code = main(["check", "--json", "--timeout", "0", "--config", str(self.pipeline.write()), *arguments])
        out, err = self._capsys.readouterr()
        document: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert (code == 0) == document["ok"], err
        assert code in {0, 8}, err
        for finding in document["findings"]:
            assert finding["status"] in {"ok", "warning", "failed"}
            assert (finding["status"] == "ok") == (not finding["fix"]), finding
        return code, document

    def failed(self, *arguments: str) -> str:
        """What failed, as one text."""
        code, document = self(*arguments)
        assert code == 8
        return self._text(document, "failed")

    def warned(self) -> str:
        """What is worth a warning, as one text."""
        return self._text(self()[1], "warning")

    @staticmethod
    def _text(document: dict[str, Any], status: str) -> str:
        return "\n".join(f"{f['area']}/{f['check']}: {f['what']} => {f['fix']}" for f in document["findings"] if f["status"] == status)


@pytest.fixture
def doctor(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(pipeline, capsys)


@pytest.fixture
def made(doctor: Doctor) -> Doctor:
    """The doctor of a pipeline that init has made."""
    doctor.pipeline.init()
    return doctor


def test_before_and_after_init(doctor: Doctor) -> None:
    failed = doctor.failed()
    for words in ("outbox table: table", "--create-table", "publication", "slot", "position topic", "cdc init"):
        assert words in failed, failed
    doctor.pipeline.init()
    code, document = doctor()
    assert code == 0, document
    areas = {finding["area"] for finding in document["findings"]}
    assert areas == {"schemas", "postgres", "kafka", "continuity"}


def test_beside_a_running_pipeline_nothing_is_disturbed(made: Doctor) -> None:
    pipeline = made.pipeline
    pipeline.started()
    pipeline.insert(1, 50)
    assert made()[0] == 0
    pipeline.wait_numbers(range(1, 51))
    assert pipeline.status()["totals"]["failures"] == 0
    assert "reads it" in json.dumps(made()[1])
    pipeline.stop()


def test_settings_are_shown_with_their_origin_and_without_secrets(made: Doctor) -> None:
    made.pipeline.settings["postgres.dsn"] = make_conninfo(made.pipeline.dsn, password="canary")
    _, document = made("--set", "kafka.sasl.password=canary")
    assert "canary" not in json.dumps(document)
    assert document["settings"]["name"] == {"value": made.pipeline.name, "origin": "file", "place": f"{made.pipeline.config}:1"}


def test_for_people(made: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["check", "--config", str(made.pipeline.config)]) == 0
    out, _ = capsys.readouterr()
    assert "wal_level is logical" in out
    assert "topics.route" in out
    made.pipeline.execute("SELECT pg_drop_replication_slot(%s)", (made.pipeline.slot_name,))
    assert main(["check", "--config", str(made.pipeline.config)]) == 8
    out, err = capsys.readouterr()
    assert "failed: postgres, slot" in out
    assert "  fix: " in out
    assert err.startswith("cdc: ")
    assert ". Fix: " in err


def test_wrong_settings_are_no_finding(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(doctor.pipeline.write()), "--set", "postgres.slto=x"]) == 2
    assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sabotage", "words"),
    [
        ("ALTER PUBLICATION {publication} SET (publish = 'update')", "does not publish inserts"),
        ("ALTER PUBLICATION {publication} DROP TABLE outbox", "does not name"),
        ("DROP PUBLICATION {publication}; CREATE PUBLICATION {publication} FOR ALL TABLES", "FOR ALL TABLES"),
        pytest.param("ALTER PUBLICATION {publication} SET TABLE outbox WHERE (aggregatetype = 'thing')", "row filter", marks=since(15)),
        pytest.param("ALTER PUBLICATION {publication} SET TABLE outbox (id, aggregateid, type)", "hides aggregatetype", marks=since(15)),
        ("DROP PUBLICATION {publication}", "does not exist"),
        ("ALTER TABLE outbox DROP COLUMN payload", "outbox.columns.payload"),
        ("ALTER PUBLICATION {publication} DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED", "SET LOGGED"),
        ("ALTER TABLE outbox DROP COLUMN type; ALTER TABLE outbox ADD type text GENERATED ALWAYS AS ('x') STORED", "is generated"),
    ],
)
def test_what_hides_rows_is_found(made: Doctor, sabotage: str, words: str) -> None:
    name = sql.Identifier(made.pipeline.slot_name).as_string()
    for statement in sabotage.format(publication=name).split("; "):
        made.pipeline.execute(statement)
    failed = made.failed()
    assert words in failed
    assert "cdc init" not in failed, "there is a position: init would refuse"


def test_a_partitioned_table_is_published_by_its_root(made: Doctor) -> None:
    pipeline = made.pipeline
    pipeline.execute("DROP TABLE outbox")
    pipeline.execute(
        "CREATE TABLE outbox (id bigserial, aggregatetype text, aggregateid text, type text, payload jsonb) PARTITION BY RANGE (id)"
    )
    name = sql.Identifier(pipeline.slot_name)
    pipeline.execute(sql.SQL("ALTER PUBLICATION {} SET TABLE outbox").format(name).as_string())
    assert "partitioned" not in made.failed(), "only its fingerprint has changed"
    pipeline.execute(sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = false)").format(name).as_string())
    assert "publish_via_partition_root" in made.failed()


def test_a_publication_of_more_is_worth_a_warning(made: Doctor) -> None:
    made.pipeline.execute("CREATE TABLE other ()")
    name = sql.Identifier(made.pipeline.slot_name)
    made.pipeline.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE other").format(name).as_string())
    assert "1 other table" in made.warned()
    assert "continuity" in made.failed(), "and the fingerprint is another one"


def test_a_moved_slot_breaks_continuity(made: Doctor) -> None:
    made.pipeline.insert(1)
    made.pipeline.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (made.pipeline.slot_name,))
    assert "continuity/position and slot: slot" in made.failed()
    assert "is ahead" in made.failed()


def test_a_position_behind_a_foreign_kafka_transaction_is_no_alarm(made: Doctor) -> None:
    pipeline = made.pipeline
    stranger = Producer({"bootstrap.servers": pipeline.bootstrap, "transactional.id": f"{pipeline.name}-stranger", "log_level": 0})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(pipeline.position_topic, b"x", b"stranger")
    stranger.flush(30)
    pipeline.insert(1)
    pipeline.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (pipeline.slot_name,))
    assert "may hide a newer position" in made.warned()
    stranger.abort_transaction(30)
    assert "is ahead" in made.failed()


def test_a_role_that_may_not(made: Doctor, unique: str) -> None:
    pipeline = made.pipeline
    role = sql.Identifier(unique)
    pipeline.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role).as_string())
    try:
        pipeline.settings["postgres.dsn"] = make_conninfo(pipeline.dsn, user=unique)
        failed = made.failed()
        assert "may not replicate" in failed
        assert "ALTER ROLE" in failed
        assert "cdc verify" in made.warned()
    finally:
        pipeline.execute(sql.SQL("DROP ROLE {}").format(role).as_string())


def test_an_old_transaction_and_an_unlimited_slot(made: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.audit.check_postgres.OLD_TRANSACTION_S", 0)
    with psycopg.connect(made.pipeline.dsn) as writer:
        writer.execute("SELECT pg_current_xact_id()")
        warned = made.warned()
    assert "has been open for" in warned
    assert "max_slot_wal_keep_size is unlimited" in warned


@pytest.fixture
def demanded(pipeline: Pipeline, doctor: Doctor) -> Doctor:
    """The doctor of a pipeline whose topics must exist."""
    pipeline.init()
    for key in [key for key in pipeline.settings if key.startswith("topics.create")]:
        del pipeline.settings[key]
    return doctor


def test_topics_that_are_demanded(demanded: Doctor) -> None:
    pipeline = demanded.pipeline
    assert demanded()[0] == 0
    pipeline.set(topics__route=f"{pipeline.name}.fixed")
    assert f"{pipeline.name}.fixed" in demanded.failed()
    pipeline.make_topic(f"{pipeline.name}.fixed", cleanup_policy="compact")
    assert "is compacted" in demanded.warned()
    pipeline.make_topic(f"{pipeline.name}.old-positions", cleanup_policy="delete")
    pipeline.set(topics__position=f"{pipeline.name}.old-positions")
    assert "cleanup.policy" in demanded.failed()


def test_limits_of_the_broker(made: Doctor) -> None:
    made.pipeline.kafka(transaction_timeout_ms=3_600_000)
    made.pipeline.set(topics__create__replication_factor=3)
    failed = made.failed()
    assert "transaction.max.timeout.ms" in failed
    assert "3 replicas of 1 broker" in failed


def test_servers_that_are_away_are_findings(doctor: Doctor) -> None:
    nobody = doctor.pipeline.another_port()
    doctor.pipeline.settings["postgres.dsn"] = f"host=127.0.0.1 port={nobody} user=cdc"
    doctor.pipeline.settings["kafka.bootstrap.servers"] = f"127.0.0.1:{nobody}"
    failed = doctor.failed()
    assert "postgres/reachable" in failed
    assert "kafka/reachable" in failed


def test_the_schema_folder(made: Doctor) -> None:
    folder = made.pipeline.folder / "schemas"
    (folder / "Thing" / "2.avsc").write_text((folder / "Thing" / "1.avsc").read_text().replace("What the tests", "What they"))
    assert "cdc schemas add" in made.failed()
    (folder / "Thing" / "2.avsc").write_text("{")
    assert "Thing/2.avsc" in made.failed()
