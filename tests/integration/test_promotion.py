"""A standby that was promoted, a restore to a point in time, pg_upgrade: what goes on, and what stops and says what is gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.devstack.postgres import NEWEST, PostgresServer
from cdc.errors import ContinuityError
from cdc.position import Lsn
from tests.clusters import Cluster, cluster, run_as, versions
from tests.conftest import Pipelines
from tests.inside import refusal, streaming
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

SYNCED = {"sync_replication_slots": "on"}


@contextmanager
def published(version: int, pipelines: Pipelines, kafka: str, folder: Path, **settings: str) -> Iterator[tuple[Cluster, Pipeline]]:
    """A cluster whose pipeline has published 1, 2 and 3."""
    with cluster(version, folder, **settings) as made:
        pipeline = pipelines(made.primary.dsn("shop"), kafka)
        pipeline.init()
        pipeline.insert(1)
        pipeline.insert(2)
        pipeline.insert(3)
        publish(pipeline, 1, 2, 3)
        yield made, pipeline


def publish(pipeline: Pipeline, *numbers: int) -> None:
    """Stream until these, and no others, are published and confirmed."""
    with streaming(pipeline):
        pipeline.wait_numbers(numbers)
        pipeline.wait_confirmed()


def moved_to(pipeline: Pipeline, server: PostgresServer) -> None:
    """Let the pipeline's settings name another server."""
    pipeline.hang_up()
    pipeline.dsn = server.dsn("shop")
    pipeline.set(postgres__dsn=pipeline.dsn)


def synced(made: Cluster, pipeline: Pipeline, standby: PostgresServer) -> None:
    """Wait until the standby has its copy of the slot, as far as the primary's has come."""
    confirmed = pipeline.slot().confirmed
    question = f"SELECT confirmed_flush_lsn >= '{confirmed}' FROM pg_replication_slots WHERE synced AND NOT temporary"
    wait_for(lambda: made.query(standby, question) == [(True,)], 60, "the slot is copied")


@versions(NEWEST)
def test_a_failover_slot_takes_the_pipeline_to_the_promoted_standby(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    """The running process finds the new primary by itself: nothing is lost, nothing comes twice, nobody is asked."""
    if version < 17:
        pytest.skip("PostgreSQL 17 brought failover slots")
    with published(version, pipelines, kafka, tmp_path) as (made, pipeline):
        standby = made.standby("near", **SYNCED)
        made.primary.settings["synchronized_standby_slots"] = "near"
        pipeline.hang_up()
        made.primary.restart()
        hosts = f"127.0.0.1:{made.primary.port},127.0.0.1:{standby.port}"
        pipeline.set(postgres__dsn=f"postgresql://postgres@{hosts}/shop?target_session_attrs=read-write")
        pipeline.started()
        pipeline.insert(4)
        pipeline.wait_numbers([1, 2, 3, 4])
        synced(made, pipeline, standby)
        pipeline.insert(5)
        pipeline.wait_numbers([1, 2, 3, 4, 5])
        pipeline.hang_up()
        made.primary.kill()
        made.promote(standby)
        pipeline.dsn = standby.dsn("shop")
        pipeline.insert(6)
        pipeline.wait_numbers([1, 2, 3, 4, 5, 6])
        pipeline.wait_confirmed()
        pipeline.stop()
        # A second promotion is compared with the first one's timeline: what was published since then lies beyond the first fork.
        made.primary = standby
        publish(pipeline, 1, 2, 3, 4, 5, 6)


@versions(NEWEST)
def test_events_that_the_promoted_standby_never_had(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    """New transactions at the same places in the log would be skipped in silence."""
    with published(version, pipelines, kafka, tmp_path) as (made, pipeline):
        standby = made.standby("far", **(SYNCED if version >= 17 else {}))
        made.caught_up(standby)
        if version >= 17:
            publish(pipeline, 1, 2, 3)
            synced(made, pipeline, standby)
        standby.stop()
        pipeline.insert(4)
        pipeline.insert(5)
        publish(pipeline, 1, 2, 3, 4, 5)
        position = pipeline.slot().confirmed
        made.primary.kill()
        standby.start()
        made.promote(standby)
        moved_to(pipeline, standby)
        for number in range(101, 106):
            pipeline.insert(number)
        error = refusal(
            pipeline,
            "the log forked at",
            f"below the position {position}",
            "were published that this server no longer has",
            "`cdc recover`",
        )
        assert ("there is no slot either" in error.what) == (version < 17)
        assert pipeline.numbers() == [1, 2, 3, 4, 5]
        recovered = pipeline.here("recover")
        assert recovered.code == 0, recovered.err
        pipeline.insert(6)
        with streaming(pipeline):
            pipeline.wait_confirmed()
        assert sorted(pipeline.numbers()) == [1, 2, 3, 4, 5, 6, 101, 102, 103, 104, 105]


@versions(15)
def test_a_standby_that_was_promoted_without_the_slot(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    with published(version, pipelines, kafka, tmp_path) as (made, pipeline):
        standby = made.standby("near")
        made.caught_up(standby)
        moved_to(pipeline, standby)
        refusal(pipeline, "the server is in recovery (a standby)", "target_session_attrs=read-write")
        made.primary.kill()
        made.promote(standby)
        pipeline.insert(4)
        error = refusal(
            pipeline, f"slot '{pipeline.slot_name}' did not come along when this server was promoted to timeline 2", "`cdc recover`"
        )
        assert "nothing that was published is gone" in error.what
        assert pipeline.numbers() == [1, 2, 3]
        assert pipeline.here("recover").code == 0
        publish(pipeline, 1, 2, 3, 4)


@versions()
def test_two_standbys_that_were_both_promoted(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    """A split brain: both are timeline 2, and only one of them is the server that was published from."""
    with published(version, pipelines, kafka, tmp_path) as (made, pipeline):
        one, two = made.standby("one"), made.standby("two")
        made.caught_up(one)
        made.caught_up(two)
        two.stop()
        pipeline.insert(4)
        publish(pipeline, 1, 2, 3, 4)
        made.caught_up(one)
        made.primary.kill()
        made.promote(one)
        two.start()
        made.promote(two)
        moved_to(pipeline, one)
        pipeline.insert(5)
        assert pipeline.here("recover").code == 0
        publish(pipeline, 1, 2, 3, 4, 5)
        moved_to(pipeline, two)
        pipeline.insert(105)
        refusal(pipeline, "timeline 1 ended at", "another history", "connect to the one that was published from")
        moved_to(pipeline, made.primary)
        made.primary.start()
        refusal(pipeline, "another history")
        moved_to(pipeline, one)
        publish(pipeline, 1, 2, 3, 4, 5)


@versions()
def test_a_restore_to_a_point_in_time(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    with published(version, pipelines, kafka, tmp_path, archive_mode="on", archive_command="cp %p ../archive/%f") as (made, pipeline):
        archive = made.primary.folder / "archive"
        archive.mkdir()
        if made.primary._user is not None:
            shutil.chown(archive, made.primary._user, made.primary._user)
        restored = made.backup("restored", restore_command=f"cp {archive}/%f %p", recovery_target_action="promote")
        pipeline.insert(4)
        restored.settings["recovery_target_lsn"] = str(pipeline.lsn())
        pipeline.insert(5)
        publish(pipeline, 1, 2, 3, 4, 5)
        position = pipeline.slot().confirmed
        [(segment,)] = pipeline.execute("SELECT pg_walfile_name(pg_switch_wal())")
        wait_for((archive / str(segment)).exists, 30, "the log is archived")
        made.primary.stop()
        (restored.data / "recovery.signal").touch()
        restored.start()
        wait_for(lambda: made.query(restored, "SELECT pg_is_in_recovery()") == [(False,)], 60, "it is restored")
        moved_to(pipeline, restored)
        pipeline.insert(105)
        refusal(pipeline, "the log forked at", f"below the position {position}", "no longer has", "there is no slot either")
        assert pipeline.numbers() == [1, 2, 3, 4, 5]


def test_pg_upgrade_keeps_the_slot_and_changes_the_system(pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    """Its programs are here for the newest version alone, which it upgrades to itself: another system identifier, and the slot."""
    with published(NEWEST, pipelines, kafka, tmp_path) as (made, pipeline):
        old, new = made.primary, PostgresServer(version=NEWEST)
        made.stack.callback(new.close)
        new.prepare()
        if new._user is not None:
            shutil.chown(new.folder, new._user, new._user)
        before = pipeline.slot().confirmed
        pipeline.hang_up()
        old.stop("fast")
        programs = new.program("pg_upgrade").parent
        options = "-c wal_level=logical -c max_replication_slots=20"
        command: list[str | Path] = ["-b", programs, "-B", programs, "-d", old.data, "-D", new.data, "-U", "postgres", "--no-sync"]
        command += ["-o", options, "-O", options]
        run_as(new, programs / "pg_upgrade", *command)
        new.start()
        moved_to(pipeline, new)
        assert pipeline.slot().confirmed > Lsn(0)
        assert before > Lsn(0)
        pipeline.insert(4)
        error = refusal(pipeline, "this is PostgreSQL system", "after pg_upgrade `cdc recover --adopt`")
        assert isinstance(error, ContinuityError)
        assert pipeline.numbers() == [1, 2, 3]
        adopted = pipeline.here("recover", "--adopt")
        assert adopted.code == 0, adopted.err
        publish(pipeline, 1, 2, 3, 4)


def test_the_doctor_looks_at_standbys(pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str) -> None:
    """A slot that will stay behind, standbys that are not waited for, and one that is waited for in vain."""
    pipeline = pipelines(spare_database, kafka)
    if pipeline.connection.info.server_version < 170_000:
        pytest.skip("PostgreSQL 17 brought failover slots")
    pipeline.init()

    def warned() -> str:
        found = json.loads(pipeline.here("check", "--json").out.splitlines()[-1])["findings"]
        return "\n".join(f"{each['what']} => {each['fix']}" for each in found if each["check"] == "slot" and each["status"] == "warning")

    assert warned() == ""
    replication = make_conninfo(spare_database, replication="database")
    for value, words in (("false", "is no failover slot"), ("true", "")):
        with psycopg.connect(replication, autocommit=True) as connection:
            connection.pgconn.exec_(f"ALTER_REPLICATION_SLOT {pipeline.slot_name} (FAILOVER {value})".encode())
        assert words in warned()
    pipeline.execute("SELECT pg_create_physical_replication_slot('near', true)")
    try:
        assert "may publish what standbys (near) do not have yet" in warned()
        assert "synchronized_standby_slots = 'near'" in warned()
        pipeline.execute("ALTER SYSTEM SET synchronized_standby_slots = 'near'")
        pipeline.execute("SELECT pg_reload_conf()")
        pipeline.started()
        pipeline.insert(1)
        wait_for(lambda: "the pipeline waits for a standby" in warned(), 30, "it is held up")
        assert "WaitForStandbyConfirmation" in warned()
        assert pipeline.position() < pipeline.lsn()
    finally:
        pipeline.execute("ALTER SYSTEM RESET synchronized_standby_slots")
        pipeline.execute("SELECT pg_reload_conf()")
        pipeline.execute("SELECT pg_drop_replication_slot('near')")
    pipeline.wait_numbers([1])
    pipeline.stop()
