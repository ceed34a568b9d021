"""Metrics: the names of the list, all of them and no other."""

from __future__ import annotations

import dataclasses
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc.errors import Fenced, SlotBusy
from cdc.observe import metrics
from cdc.observe.exposition import Exposition
from cdc.observe.metrics import METRICS, OTHER
from cdc.observe.observer import DEAD_LETTER_LINES, DEAD_LETTER_WINDOW_S, PipelineObserver, cause_of, side_of
from cdc.pipeline.ports import Observer
from cdc.pipeline.supervisor import State
from tests.unit.observe.observe_samples import POSITION, SERVER, SLOT, Clock

PLACE = "000100000016b374d84000000000"

NAMES = {definition.name for definition in METRICS}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def observer(clock: Clock) -> PipelineObserver:
    return PipelineObserver("shop", monotonic=clock, wall_us=clock.us)


def exposed(observer: PipelineObserver) -> str:
    return Exposition(observer.health, observer.metrics).text().decode()


def samples(observer: PipelineObserver) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(exposed(observer))
        for sample in family.samples
    }


def use(observer: PipelineObserver) -> None:
    """Call every hook once."""
    port: Observer = observer
    port.heartbeat()
    port.server(SERVER, None)
    port.state(State.STREAMING, "")
    port.pending(3, 90_000)
    port.failed(Fenced("a newer instance took over"))
    port.committed(POSITION, 5, 1, 0.01)
    port.published({"orders": (5, 700)})
    port.dead_letter("schema", "id-1", PLACE, "$.total: a string expected", "c-1")
    port.ignored("update", 3)
    port.failed(SlotBusy("cdc_shop", 7))
    port.pending(2, 95_000)
    observer.health.dead_letters_open = 4


def test_every_name_exists_and_no_other(observer: PipelineObserver, clock: Clock) -> None:
    use(observer)
    clock.now += 10  # a room that shrinks is what cdc_slot_lost_in_seconds needs
    observer.server(dataclasses.replace(SERVER, slot=dataclasses.replace(SLOT, safe_wal_size=4000)), None)
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(exposed(observer))
        if not family.name.startswith("process_")
    }
    assert families == NAMES


def test_names_follow_the_conventions() -> None:
    assert len(NAMES) == len(METRICS)
    for definition in METRICS:
        assert re.fullmatch(r"cdc_[a-z_]+", definition.name)
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert definition.help.endswith(".")
        assert not re.search(r"_(ms|milliseconds|kb|minutes|lsns?)$", definition.name)


def test_values(observer: PipelineObserver) -> None:
    use(observer)
    seen = samples(observer)
    assert seen["cdc_events_total", ()] == 5
    assert seen["cdc_topic_records_total", ("orders",)] == 5
    assert seen["cdc_topic_bytes_total", ("orders",)] == 700
    assert seen["cdc_dead_letters_total", ("schema",)] == 1
    assert seen["cdc_ignored_messages_total", ("update",)] == 3
    assert seen["cdc_passages_failed_total", ("fenced", "pipeline")] == 1
    assert seen["cdc_kafka_transactions_aborted_total", ("fenced",)] == 1
    assert seen["cdc_failures_in_a_row", ()] == 1
    assert (seen["cdc_pending_rows", ()], seen["cdc_oldest_pending_seconds", ()]) == (2, 5)
    assert seen["cdc_dead_letters_open", ()] == 4
    assert seen["cdc_kafka_transaction_duration_seconds_count", ()] == 1
    assert seen["cdc_publish_latency_seconds_sum", ()] == 50.0
    assert seen["cdc_position_lsn_bytes", ()] == 900
    assert seen["cdc_lag_bytes", ()] == 100
    assert seen["cdc_lag_seconds", ()] == 50
    assert seen["cdc_live", ()] == seen["cdc_ready", ()] == 1
    assert {state: seen["cdc_state", (state,)] for state in State} == {s: float(s is State.STREAMING) for s in State}
    assert seen["cdc_slot_retained_bytes", ()] == 900
    assert seen["cdc_slot_confirmed_lag_bytes", ()] == 800
    assert seen["cdc_slot_held_back_bytes", ()] == 100
    assert seen["cdc_slot_wal_status", ("reserved",)] == 1
    assert seen["cdc_slot_wal_status", ("lost",)] == 0


def test_a_bucket_holds_its_bound_and_all_that_is_below(observer: PipelineObserver) -> None:
    for seconds in (0.001, 0.002, 0.0021, 300.0, 301.0):
        observer.metrics.latency_s.add(seconds)
    text = exposed(observer)
    bucket = 'cdc_publish_latency_seconds_bucket{le="%s"} %s\n'
    for expected in (("0.002", 2.0), ("0.005", 3.0), ("60.0", 3.0), ("300.0", 4.0), ("+Inf", 5.0)):
        assert bucket % expected in text


def test_what_is_not_known_is_left_out(observer: PipelineObserver) -> None:
    names = {name for name, _ in samples(observer)}
    assert "cdc_lag_bytes" not in names
    assert "cdc_slot_retained_bytes" not in names
    assert "cdc_live" in names


def test_an_idle_advance_is_no_event(observer: PipelineObserver) -> None:
    observer.committed(POSITION, 0, 0, 0.01)
    seen = samples(observer)
    assert seen["cdc_events_total", ()] == 0
    assert seen["cdc_publish_latency_seconds_count", ()] == 0
    assert seen["cdc_position_lsn_bytes", ()] == 900


def test_topics_are_bounded(observer: PipelineObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TOPICS_MAX", 2)
    observer.published({"a": (1, 1), "b": (1, 1), "c": (1, 1), "d": (1, 1)})
    observer.published({"a": (1, 1)})
    seen = samples(observer)
    assert seen["cdc_topic_records_total", (OTHER,)] == 2
    assert seen["cdc_topic_records_total", ("a",)] == 2


def test_causes() -> None:
    assert cause_of(SlotBusy("s", 1)) == "slot_busy"
    assert cause_of(KeyError("x")) == "key_error"


@pytest.mark.parametrize(
    ("rooms", "side"), [("pipeline", "pipeline"), ("pipeline kafka", "kafka"), ("pipeline kafka postgres", "postgres")]
)
def test_the_side_is_the_room_that_an_error_came_from(rooms: str, side: str) -> None:
    """A commit waits for Kafka and answers PostgreSQL meanwhile: the innermost room counts."""

    def call(left: list[str]) -> None:
        if not left:
            raise Fenced("x")
        exec("call(left)", {"__name__": f"cdc.{left[0]}.x", "call": call, "left": left[1:]})

    with pytest.raises(Fenced) as raised:
        call(rooms.split())
    assert side_of(raised.value) == side


def test_what_was_under_way_at_the_end_was_given_up(observer: PipelineObserver) -> None:
    observer.state(State.STOPPED, "")
    observer.pending(3, 90_000)
    observer.state(State.FAILED, "an invalid event")
    seen = samples(observer)
    assert observer.metrics.aborted.counts == {("failed",): 1, ("retriable",): 0, ("fenced",): 0}
    assert seen["cdc_pending_rows", ()] == seen["cdc_oldest_pending_seconds", ()] == 0


def test_a_dead_letter_is_told_with_its_place_and_what_it_belongs_to(
    observer: PipelineObserver, capsys: pytest.CaptureFixture[str]
) -> None:
    observer.dead_letter("schema", "id-1", PLACE, "$.a: wrong", "c-1")
    said = capsys.readouterr().out
    assert all(fact in said for fact in ("event_id=id-1", "lsn=16/B374D840", f"sequence={PLACE}", "correlation_id=c-1"))


def test_a_flood_of_dead_letters_does_not_flood_the_log(
    observer: PipelineObserver, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(1000):
        observer.dead_letter("schema", "id", PLACE, "$.a: wrong", "")
    assert capsys.readouterr().out.count("dead letter") == DEAD_LETTER_LINES
    clock.now += DEAD_LETTER_WINDOW_S
    observer.dead_letter("schema", "id", PLACE, "$.a: wrong", "")
    assert f"left_out={1000 - DEAD_LETTER_LINES}" in capsys.readouterr().out
    assert samples(observer)["cdc_dead_letters_total", ("schema",)] == 1001
