"""A server that was put back to an earlier state: it is told by its transactions, and nothing of it is skipped unseen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.devstack.postgres import PostgresServer
from cdc.position import Lsn
from tests.clusters import cluster, copied, versions
from tests.conftest import Pipelines
from tests.inside import refusal, streaming
from tests.pipeline import Pipeline

pytestmark = pytest.mark.servers


class Restored:
    """A pipeline, its server, and a copy of the server's disk."""

    def __init__(self, pipeline: Pipeline, server: PostgresServer, folder: Path) -> None:
        self.pipeline, self.server, self._copy = pipeline, server, folder / "copy"

    def publish(self, *numbers: int) -> None:
        """Insert these, one transaction each, and see that they are published and confirmed."""
        before = self.pipeline.numbers()
        with streaming(self.pipeline):
            for number in numbers:
                self.pipeline.insert(number)
            self.pipeline.wait_numbers([*before, *numbers])
            self.pipeline.wait_confirmed()

    def copy(self) -> None:
        """Copy the disk as it is at this moment: what a snapshot of it holds."""
        self._down()
        copied(self.server.data, self._copy)
        self.server.start()

    def put_back(self) -> None:
        """Put the copy in the place of the disk."""
        self._down()
        copied(self._copy, self.server.data)
        self.server.start()

    def _down(self) -> None:
        self.pipeline.hang_up()
        self.server.stop("immediate")

    @property
    def end(self) -> Lsn:
        return Lsn.parse(json.loads(self.pipeline.events(self.pipeline.position_topic)[-1].value or b"")["end_lsn"])

    def pass_the_position(self, first: int) -> list[int]:
        """Insert rows until the log has grown beyond the position that Kafka has."""
        number = first
        while self.pipeline.lsn() <= self.end:
            self.pipeline.insert(number)
            number += 1
        return list(range(first, number))


@versions(18)
def test_a_restored_copy_that_has_grown_past_the_position(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    """Same system identifier, timeline, slot and publication; only the transactions below the position are others."""
    with cluster(version, tmp_path) as made:
        pipeline = pipelines(made.primary.dsn("shop"), kafka)
        case = Restored(pipeline, made.primary, tmp_path)
        pipeline.init()
        case.publish(1, 2, 3)
        case.copy()
        case.publish(4, 5, 6, 7, 8)
        case.put_back()
        lost = case.pass_the_position(101)
        pipeline.insert(901)
        confirmed = pipeline.slot().confirmed
        for _ in range(2):  # the first refusal must leave behind what the second one needs
            error = refusal(pipeline, "this server was put back to an earlier state", "`cdc recover --rebuild`")
            assert error.exit_code == 4
            assert pipeline.numbers() == [1, 2, 3, 4, 5, 6, 7, 8]
            assert pipeline.slot().confirmed == confirmed
        answer = pipeline.command("run")
        assert answer.code == 4, answer.err
        assert "Fix: this server was put back" in answer.line
        recovered = pipeline.here("recover", "--rebuild")
        assert recovered.code == 0, recovered.err
        with streaming(pipeline):
            pipeline.insert(902)
            pipeline.wait_confirmed()
        assert sorted(pipeline.numbers()) == [1, 2, 3, 4, 5, 6, 7, 8, *lost, 901, 902]


@versions(18)
def test_a_restored_copy_whose_log_ends_below_the_position(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    with cluster(version, tmp_path) as made:
        pipeline = pipelines(made.primary.dsn("shop"), kafka)
        case = Restored(pipeline, made.primary, tmp_path)
        pipeline.init()
        case.publish(1)
        case.copy()
        pipeline.noise(2)
        case.publish(2, 3)
        case.put_back()
        pipeline.insert(101)
        refusal(pipeline, "lies beyond the end of this server's log", "restored to an earlier time")
        assert pipeline.numbers() == [1, 2, 3]


@versions(18)
def test_a_copy_that_lacks_nothing_goes_on(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    """Nothing happened after the copy was made, or nothing that the outbox knows of: there is nothing to refuse."""
    with cluster(version, tmp_path) as made:
        pipeline = pipelines(made.primary.dsn("shop"), kafka)
        case = Restored(pipeline, made.primary, tmp_path)
        pipeline.init()
        case.publish(1, 2)
        case.copy()
        case.put_back()
        case.publish(3)
        assert pipeline.numbers() == [1, 2, 3]


@versions(15)
def test_a_server_that_lost_its_slots_last_words_goes_on(version: int, pipelines: Pipelines, kafka: str, tmp_path: Path) -> None:
    """After a crash the slot is where its last checkpoint was: the witness reappears, among all that is skipped."""
    with cluster(version, tmp_path) as made:
        pipeline = pipelines(made.primary.dsn("shop"), kafka)
        case = Restored(pipeline, made.primary, tmp_path)
        pipeline.init()
        for number in range(1, 6):
            case.publish(number)
            pipeline.hang_up()
            made.primary.restart("immediate")
        assert pipeline.slot().confirmed < case.end
        case.publish(6)
        assert pipeline.numbers() == [1, 2, 3, 4, 5, 6]
