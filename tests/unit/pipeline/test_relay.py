"""Rows in, Kafka transactions out: what stays together, what is confirmed, and what stops the pipeline."""

from __future__ import annotations

import pytest

from cdc.errors import Fenced, InvalidEvent, Retriable, SinkRefused, StoppedByPolicy, TransactionTimedOut
from cdc.event import Route
from cdc.outbox.mapping import NAME_LIMIT
from cdc.outbox.router import Router
from cdc.pipeline import relay as module
from cdc.pipeline.parking import Policy, _correlation_id
from cdc.pipeline.relay import IDLE_WAIT_S, ROUTES_KEPT_S, Relay
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin
from cdc.postgres.transaction import Row, TransactionEnd
from tests.unit.outbox.samples import BODY, ROW, relation, router
from tests.unit.pipeline.ports import Heard, Kafka, Log, World
from tests.unit.pipeline.samples import POSITION

LARGE = 4
TOPIC, DEAD = "outbox.event.order", "dead"
TABLE = relation(*ROW)
BAD = b'{"n":"secret"}'


class Stage:
    """A relay between ports that a test writes for."""

    def __init__(self, *, stop: bool = False, made: Router | None = None) -> None:
        self.world = World()
        self.log, self.kafka, self.heard = Log(self.world), Kafka(self.world), Heard()
        self.relay = Relay(
            source=self.log,
            publisher=self.kafka,
            router=made or router(),
            policy=Policy("shop", None if stop else DEAD),
            observer=self.heard,
            position=POSITION,
            waiting=self.log.keep_alive,
            clock=self.world.clock,
            wall=self.world.wall,
        )

    def steps(self, *items: list[Row | TransactionEnd]) -> Stage:
        """Let the log hand these out, and take a step for each and one more."""
        self.log.items = [*items]
        for _ in range(len(items) + 1):
            self.relay.step()
        return self

    @property
    def kept(self) -> list[list[str]]:
        """The ids of each Kafka transaction."""
        return [[event_id(record.headers) for record in records] for records, _ in self.kafka.committed]

    @property
    def did(self) -> list[str]:
        """The calls but for those that only look."""
        return [call for call in self.world.calls if not call.startswith(("receive", "route", "keep_alive"))]


def event_id(headers: list[tuple[str, bytes | None]]) -> str:
    found = dict(headers)
    return (found.get("ce_id") or found.get("cdc.id") or b"").decode()


def transaction(end: int, *rows: str, **changes: bytes | None) -> list[Row | TransactionEnd]:
    """Return a transaction that ends there; a row whose id begins with ! is invalid."""
    begin = Begin(Lsn(end - 8), 1_800_000_000_000_000, end)
    made: list[Row | TransactionEnd] = []
    for i, name in enumerate(rows):
        values = ROW | {"id": name.encode()} | ({"payload": BAD} if name.startswith("!") else {}) | changes
        made.append((begin, TABLE, i, tuple(values.values())))
    return [*made, TransactionEnd(Lsn(end), begin.final_lsn, begin.commit_time_us, end, len(rows))]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_ROWS", LARGE)


# the ordinary


def test_a_transaction_is_produced_committed_and_then_confirmed() -> None:
    stage = Stage().steps(transaction(0x110, "a", "b"))
    assert stage.did == ["produce 2", "commit 0/110", "confirm 0/110"]
    assert stage.kept == [["a", "b"]]
    assert stage.relay.position.end_lsn == 0x110
    assert ("committed", Lsn(0x110), 2, 0, 0.0) in stage.heard.heard
    assert ("published", {TOPIC: (2, 2 * len(b"\0\0\0\0\x08" + BODY))}) in stage.heard.heard


def test_several_transactions_share_a_kafka_transaction() -> None:
    stage = Stage().steps([*transaction(0x110, "a"), *transaction(0x120, "b", "c")])
    assert stage.did == ["produce 3", "commit 0/120", "confirm 0/120"]


def test_the_first_part_of_a_transaction_waits_for_its_end() -> None:
    whole, stage = transaction(0x120, "b", "c"), Stage()
    stage.steps([*transaction(0x110, "a"), whole[0]])
    assert stage.kept == [["a"]]
    stage.steps(whole[1:])
    assert stage.kept == [["a"], ["b", "c"]]


def test_it_waits_for_rows_only_when_it_has_nothing_in_hand() -> None:
    stage = Stage()
    stage.relay._batch._commit_s = 1_000.0
    stage.steps(transaction(0x110, "a"), transaction(0x120, "b"))
    assert [call for call in stage.world.calls if call.startswith("receive")] == [f"receive {IDLE_WAIT_S:g}", "receive 0", "receive 0"]


def test_a_route_is_asked_for_once_and_again_after_a_while() -> None:
    stage = Stage().steps(transaction(0x110, "a"), transaction(0x120, "b"))
    assert stage.world.calls.count(f"route {TOPIC}") == 1
    stage.world.now += ROUTES_KEPT_S
    stage.steps(transaction(0x130, "c"))
    stage.steps(transaction(0x140, "d"))
    assert stage.world.calls.count(f"route {TOPIC}") == 2


def test_an_idle_advance_is_committed_and_confirmed_too() -> None:
    stage = Stage()
    stage.world.now += 5
    stage.steps([TransactionEnd(Lsn(0x150), Lsn(0x150), 5, 0, 0)])
    assert stage.did == ["commit 0/150", "confirm 0/150"]
    assert stage.kafka.committed[0][1].witness == "none"


def test_an_answer_that_the_server_waits_for_makes_it_due() -> None:
    stage = Stage()
    stage.log.urgent = True
    stage.steps([TransactionEnd(Lsn(0x150), Lsn(0x150), 5, 0, 0)])
    assert stage.log.confirmed == [0x150]


def test_a_commit_that_failed_confirms_nothing() -> None:
    stage = Stage()
    stage.world.faults["commit"] = [Retriable("lost")]
    with pytest.raises(Retriable, match="lost"):
        stage.steps(transaction(0x110, "a"))
    assert stage.log.confirmed == []
    assert stage.relay.position is POSITION


# large transactions


def test_a_large_transaction_is_produced_as_it_is_read_after_what_came_before() -> None:
    rows = transaction(0x200, *(f"r{i}" for i in range(10)))
    stage = Stage().steps([*transaction(0x110, "a"), *rows[:5]], rows[5:])
    assert stage.did == [
        "produce 1", "commit 0/110", "confirm 0/110",
        "produce 4", "produce 4", "produce 2", "commit 0/200", "confirm 0/200",
    ]  # fmt: skip
    assert stage.kept == [["a"], [f"r{i}" for i in range(10)]]


def test_a_large_transaction_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 20)
    stage = Stage().steps(transaction(0x110, "a", "b", "c"))
    assert stage.did[:2] == ["produce 3", "commit 0/110"]


def test_two_large_ones_are_never_together() -> None:
    one, two = (transaction(end, *(f"{end}-{i}" for i in range(5))) for end in (0x110, 0x120))
    stage = Stage().steps([*one, *two])
    assert [len(records) for records, _ in stage.kafka.committed] == [5, 5]


def test_an_idle_advance_that_was_pending_does_not_tear_a_large_one() -> None:
    rows = transaction(0x200, *(f"r{i}" for i in range(6)))
    stage = Stage()
    stage.steps([TransactionEnd(Lsn(0x108), Lsn(0x108), 5, 0, 0), *rows[:5]])
    stage.world.now += 30
    stage.steps()
    assert stage.kept == []
    stage.steps(rows[5:])
    assert [len(records) for records, _ in stage.kafka.committed] == [6]


# invalid rows


def test_an_invalid_row_is_a_dead_letter_in_the_same_kafka_transaction() -> None:
    stage = Stage().steps(transaction(0x110, "a", "!b", "c"))
    assert stage.kept == [["a", "!b", "c"]]
    letter = stage.kafka.committed[0][0][1]
    assert (letter.topic, letter.key, letter.value) == (DEAD, b"k1", BAD)
    assert dict(letter.headers)["__connect.errors.topic"] == TOPIC.encode()
    assert ("committed", Lsn(0x110), 2, 1, 0.0) in stage.heard.heard
    [heard] = [each for each in stage.heard.heard if each[0] == "dead_letter"]
    assert heard[1:4] == ("schema", "!b", "0000" + f"{0x108:016x}" + "00000001")
    assert "secret" not in str(heard)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"payload": b'{"n":1,"kind":"' + b"x" * 1_000_000 + b'"}'}, "size"),
        ({"partition": b"6"}, "route"),
        ({"topic": b"no topic"}, "route"),
        ({"aggregatetype": None}, "mapping"),
    ],
    ids=["size", "partition", "topic", "mapping"],
)
def test_what_its_route_does_not_take_is_a_dead_letter(changes: dict[str, bytes | None], reason: str) -> None:
    stage = Stage()
    stage.kafka.routes["no topic"] = InvalidEvent("route", "there is no such topic", "create it")
    begin = Begin(Lsn(0x108), 1_800_000_000_000_000, 9)
    values = ROW | changes
    stage.steps([(begin, relation(*values), 0, tuple(values.values())), TransactionEnd(Lsn(0x110), Lsn(0x108), 5, 9, 1)])
    [record] = stage.kafka.committed[0][0]
    headers = dict(record.headers)
    assert (record.topic, headers["cdc.reason"]) == (DEAD, reason.encode())
    [heard] = [each for each in stage.heard.heard if each[0] == "dead_letter"]
    assert heard[4].encode() == headers["__connect.errors.exception.message"], "the log says what the letter says, with the fix"


@pytest.mark.parametrize(
    ("route", "changes"),
    [
        (Route(TOPIC, 1, 1_000_000, compacted=True, timestamp_before_ms=None, timestamp_after_ms=None), {"aggregateid": None}),
        (Route(TOPIC, 1, 1_000_000, compacted=False, timestamp_before_ms=1_000, timestamp_after_ms=None), {}),
        (Route(TOPIC, 1, 300, compacted=False, timestamp_before_ms=None, timestamp_after_ms=None), {"payload": b'{"n":1}'}),
    ],
    ids=["compacted", "too old", "small"],
)
def test_the_limits_of_a_route_are_looked_at(route: Route, changes: dict[str, bytes | None]) -> None:
    stage = Stage()
    stage.kafka.routes[TOPIC] = route
    stage.world.wall = lambda: 1_800_100_000.0  # type: ignore[method-assign]  # a day later
    stage.relay._wall = stage.world.wall
    stage.steps(transaction(0x110, "a", **changes))
    assert stage.kafka.committed[0][0][0].topic == DEAD


def test_a_commit_time_from_the_future_is_looked_at() -> None:
    stage = Stage()
    begin = Begin(Lsn(0x108), 1_900_000_000_000_000, 9)
    with pytest.raises(SinkRefused, match=r"the dead letter of the row at .* cannot be written: the record is"):
        stage.steps([(begin, TABLE, 0, tuple(ROW.values()))])


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidEvent("route", "topic 'dead' does not exist", "create it"),
        Route(DEAD, 1, 300, compacted=False, timestamp_before_ms=None, timestamp_after_ms=None),
    ],
    ids=["missing", "small"],
)
def test_a_dead_letter_that_its_topic_does_not_take_ends_the_pipeline(refusal: Route | InvalidEvent) -> None:
    """It was there at the start; a record that the broker refuses would poison the Kafka transaction again and again."""
    stage = Stage()
    stage.kafka.routes[DEAD] = refusal
    with pytest.raises(SinkRefused, match="the dead letter of the row at 0000") as caught:
        stage.steps(transaction(0x110, "!a"))
    assert caught.value.fix
    assert stage.kafka.committed == []


def test_the_policy_to_stop_commits_what_came_before_and_nothing_of_the_row() -> None:
    stage = Stage(stop=True)
    with pytest.raises(StoppedByPolicy) as caught:
        stage.steps([*transaction(0x110, "a"), *transaction(0x120, "b", "!c")])
    assert stage.kept == [["a"]]
    assert stage.log.confirmed == [0x110]
    place = "0000" + f"{0x118:016x}" + "00000001"
    assert caught.value.what.startswith(f"invalid event !c at {place} (schema): ")
    assert "cdc dead-letters park !c" in caught.value.fix
    assert "secret" not in str(caught.value)


def test_the_policy_to_stop_with_nothing_before() -> None:
    stage = Stage(stop=True)
    with pytest.raises(StoppedByPolicy, match="invalid event without id at") as caught:
        stage.steps(transaction(0x110, "a", id=None))
    assert stage.did == []
    assert caught.value.fix


def test_the_policy_to_stop_in_a_large_transaction_commits_nothing_of_it() -> None:
    stage = Stage(stop=True)
    with pytest.raises(StoppedByPolicy):
        stage.steps(transaction(0x110, *(f"r{i}" for i in range(6)), "!r"))
    assert stage.did == ["produce 4"]


# the end


def test_a_stop_commits_the_whole_transactions_in_hand() -> None:
    stage = Stage()
    stage.relay._batch._commit_s = 1_000.0
    stage.log.items = [transaction(0x110, "a")]
    stage.relay.step()
    assert stage.kept == []
    stage.relay.stop(3.0)
    assert stage.did == ["produce 1", "commit 0/110", "confirm 0/110"]


def test_a_stop_aborts_a_large_transaction_under_way() -> None:
    stage = Stage()
    stage.log.items = [transaction(0x110, *(f"r{i}" for i in range(6)))[:6]]
    stage.relay.step()
    stage.relay.stop(3.0)
    assert stage.did == ["produce 4", "abort 3"]


def test_a_stop_with_nothing_in_hand_does_nothing() -> None:
    stage = Stage().steps(transaction(0x110, "a")[:1])
    stage.relay.stop(3.0)
    assert stage.did == []
    assert repr(stage.relay) == "<Relay <Batch events=0 dead_letters=0 from=0/100> held=1>"


# our own clock


def later(stage: Stage, call: str, seconds: float) -> None:
    """The call takes so long."""

    def pass_() -> None:
        stage.world.now += seconds

    stage.world.before[call] = pass_


def test_a_fence_in_time_is_a_fence() -> None:
    stage = Stage()
    later(stage, "commit", 59.0)
    stage.world.faults["commit"] = [Fenced("fenced")]
    with pytest.raises(Fenced):
        stage.steps(transaction(0x110, "a"))


def test_a_fence_after_the_timeout_is_the_brokers() -> None:
    stage = Stage()
    later(stage, "commit", 60.0)
    stage.world.faults["commit"] = [Fenced("fenced")]
    with pytest.raises(Retriable, match=r"the broker ended a Kafka transaction that was open for 60\.0 s") as caught:
        stage.steps(transaction(0x110, "a"))
    assert not isinstance(caught.value, Fenced | TransactionTimedOut)


def test_a_large_transaction_that_is_ended_by_the_broker_says_how_large_and_how_long() -> None:
    stage = Stage()
    later(stage, "produce", 31.0)
    stage.world.faults["produce"] = [None, Fenced("fenced")]
    with pytest.raises(TransactionTimedOut) as caught:
        stage.steps(transaction(0x110, *(f"r{i}" for i in range(9))))
    assert (caught.value.rows, caught.value.seconds, caught.value.timeout_s) == (4, 62.0, 60.0)


def test_a_large_transaction_that_takes_too_long_is_not_waited_for() -> None:
    """The broker has ended it already, and would say so only at the commit."""
    stage = Stage()
    later(stage, "produce", 61.0)
    with pytest.raises(TransactionTimedOut):
        stage.steps(transaction(0x110, *(f"r{i}" for i in range(9))))
    assert stage.did == ["produce 4"]


def test_a_fence_before_anything_was_produced_is_a_fence() -> None:
    stage = Stage()
    stage.world.now += 5
    stage.world.faults["commit"] = [Fenced("fenced")]
    with pytest.raises(Fenced):
        stage.steps([TransactionEnd(Lsn(0x150), Lsn(0x150), 5, 0, 0)])


# what the broker has refused


def test_a_record_that_the_broker_refused_is_invalid_by_its_place() -> None:
    stage = Stage()
    place = b"0003%016x%08x" % (0x108, 1)
    stage.relay._refused = {place: "INVALID_RECORD: because"}
    stage.steps(transaction(0x110, "a", "b", "c"))
    records = stage.kafka.committed[0][0]
    assert [record.topic for record in records] == [TOPIC, DEAD, TOPIC]
    assert dict(records[1].headers)["cdc.reason"] == b"refused"
    assert b"INVALID_RECORD: because" in (dict(records[1].headers)["__connect.errors.exception.message"] or b"")


def test_rows_that_come_while_a_commit_settles_share_the_next_one() -> None:
    stage = Stage().steps(transaction(0x110, "a"))
    stage.relay._batch._usual_s = 1.0
    stage.steps(transaction(0x120, "b"), transaction(0x130, "c"))
    assert stage.kept == [["a"], ["b", "c"]]


def test_what_is_under_way_is_told_before_it_is_handed_over() -> None:
    """Also of a large transaction, which is produced as it comes; the oldest row is the first one of the Kafka transaction."""
    stage, when_ms = Stage(), 1_800_000_000_000
    large = transaction(1300, *"cdefg")
    stage.steps([*transaction(1100, "a", "b"), *large[:-1]], large[-1:])
    assert stage.heard.waiting == [(2 + LARGE, when_ms), (LARGE, when_ms), (LARGE + 1, when_ms)]


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (b'{"correlationid": "c-1", "tenant": "a"}', "c-1"),
        *((wrong, "") for wrong in (None, b"{}", b"[]", b"no json", b'{"correlationid": 7}', b"[" * 100_000)),
        (b'{"correlationid": "' + b"x" * 1000 + b'"}', "x" * NAME_LIMIT),
    ],
)
def test_a_dead_letter_is_told_with_what_its_row_belongs_to(headers: bytes | None, told: str) -> None:
    assert _correlation_id(headers) == told
