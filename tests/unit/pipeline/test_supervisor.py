"""The door and the one recovery path: in which order, how long it waits, and what it does not forgive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from cdc.errors import (
    CdcError,
    ContinuityError,
    Fenced,
    IdentityTaken,
    Poisoned,
    PostgresRefused,
    Retriable,
    SinkRefused,
    SlotBusy,
    StoppedByPolicy,
    TransactionTimedOut,
)
from cdc.pipeline.ports import Waiting
from cdc.pipeline.relay import Relay
from cdc.pipeline.supervisor import (
    FENCED_PAUSE_S,
    FENCED_TIMES,
    FENCED_WITHIN_S,
    HELD_POLL_S,
    POISONED_TIMES,
    STALLED_S,
    STANDBY_POLL_S,
    TRANSITIONS,
    UNOWNED_TIMES,
    WATCH_INTERVAL_S,
    GraceEnded,
    Identity,
    State,
    Supervisor,
)
from cdc.position import Fingerprint, Lsn, Position
from tests.unit.pipeline.ports import Heard, Kafka, Log, World
from tests.unit.pipeline.samples import POSITION, SERVER, position, server, slot

DOOR = ["look", "peek", "precheck", "open", "require dead", "recover", "keep_alive", "watch", "start 0/100"]
STOP = ["stop 10", "watch", "proved 0/50", "finish"]
DROP = ["drop publisher", "drop source"]
GRACE_S = 10.0


class Turning:
    """A relay that does what the test says at each step."""

    def __init__(self, world: World, waiting: Waiting) -> None:
        self.world = world
        self.waiting = waiting
        self.position: Position = POSITION

    def step(self) -> None:
        self.world.now += 0.1
        self.world.called("step")

    def stop(self, timeout_s: float) -> None:
        self.world.called("stop", f"{timeout_s:g}")

    def proved(self, publication: Fingerprint) -> None:
        self.world.called("proved", publication.proved_lsn)


class Stage:
    """A supervisor between ports that a test writes for; it stops after so many steps of the relay."""

    def __init__(self, steps: int = 1, backoff: Callable[[int], float] = lambda attempt: attempt * 10.0) -> None:
        self.world = World()
        self.log, self.kafka, self.heard = Log(self.world), Kafka(self.world), Heard()
        self.steps = steps
        self.asked = False
        self.relays: list[Turning] = []
        self.refused: list[dict[bytes, str]] = []
        self.supervisor = Supervisor(
            identity=Identity("shop", "cdc_shop", ("dead",)),
            source=self.log,
            publisher=self.kafka,
            precheck=lambda: self.world.called("precheck"),
            relay=self._relay,
            refresh=lambda: self.world.called("refresh"),
            observer=self.heard,
            backoff=backoff,
            clock=self.world.clock,
            stopping=self._stopping,
            pause=self.world.pause,
            grace_s=GRACE_S,
        )

    def _relay(self, start: Position, waiting: Waiting, refused: Mapping[bytes, str]) -> Any:  # noqa: ANN401 - stands for a Relay
        made = Turning(self.world, waiting)
        self.refused.append(dict(refused))
        made.position = start
        self.relays.append(made)
        assert hasattr(Relay, "step")
        return made

    def _stopping(self) -> bool:
        return self.asked or self.world.calls.count("step") >= self.steps

    def run(self, **faults: Sequence[BaseException | None]) -> Stage:
        self.world.faults = {name: list(queue) for name, queue in faults.items()}
        self.supervisor.run()
        return self

    @property
    def pauses(self) -> list[float]:
        return [float(call.split()[1]) for call in self.world.calls if call.startswith("pause")]


# the door


def test_the_door_has_one_order() -> None:
    stage = Stage().run()
    assert stage.world.calls == [*DOOR, "step", *STOP, *DROP]
    assert stage.heard.states == ["opening", "streaming", "stopping", "stopped"]
    assert stage.kafka.patient == [False]
    assert repr(stage.supervisor) == "<Supervisor shop stopped attempt=0>"


def test_asked_to_stop_before_it_began() -> None:
    stage = Stage(steps=0).run()
    assert stage.world.calls == DROP
    assert stage.heard.states == ["stopped"]


def test_what_is_clear_is_refused_before_anybody_is_fenced() -> None:
    stage = Stage()
    stage.log.seen = [server(system_id="1")] * 2
    with pytest.raises(ContinuityError):
        stage.run()
    assert stage.world.calls == [*DOOR[:2], "look", "last", *DROP]
    assert stage.heard.states == ["opening", "failed"]
    assert "this is PostgreSQL system 1" in stage.heard.heard[-1][2]


def test_what_only_the_fence_shows_is_refused_behind_it() -> None:
    stage = Stage()
    ahead = server(slot=slot(confirmed_flush_lsn=Lsn(0x180)))
    stage.log.seen = [ahead, ahead, ahead]
    with pytest.raises(ContinuityError, match="is ahead"):
        stage.run()
    assert stage.world.calls == [*DOOR[:8], *DROP]


def test_a_fresh_look_counts_not_the_one_before_the_fence() -> None:
    """Whoever slept in the door, while another instance moved on, must not take its old look for the truth."""
    stage = Stage()
    stage.log.seen = [server(flush_lsn=Lsn(0x50)), server(flush_lsn=Lsn(0x50)), SERVER]
    stage.run()
    assert stage.world.calls[: len(DOOR)] == DOOR


def test_the_position_behind_the_fence_counts() -> None:
    stage = Stage()

    def move_on() -> None:
        stage.kafka.position = position(end_lsn=Lsn(0x180))

    stage.world.before["recover"] = move_on
    stage.run()
    assert stage.relays[0].position.end_lsn == 0x180


# a slot that is not ours


def test_a_slot_that_was_lost_in_the_door_is_tried_again() -> None:
    stage = Stage()
    stage.log.seen = [SERVER, server(ours=False), SERVER, SERVER, server(ours=False)]
    stage.run()
    assert stage.heard.states.count("backoff") == 2
    assert stage.kafka.patient == [False, False]


def test_a_slot_that_is_never_ours_is_on_another_server() -> None:
    stage = Stage()
    stage.log.seen = [SERVER, server(ours=False)] * UNOWNED_TIMES
    with pytest.raises(PostgresRefused, match="two connections reached two servers"):
        stage.run()
    assert stage.heard.states.count("backoff") == UNOWNED_TIMES - 1


def test_a_standby_looks_again_and_again_without_being_impatient() -> None:
    stage = Stage().run(look=[SlotBusy("cdc_shop", 42)] * 3, open=[SlotBusy("cdc_shop", 43)])
    assert stage.pauses == [STANDBY_POLL_S] * 4
    assert stage.heard.states == ["opening", "standby"] * 4 + ["opening", "streaming", "stopping", "stopped"]
    assert ("state", "standby", "replication slot 'cdc_shop' is active for backend pid 42") in stage.heard.heard
    assert not [heard for heard in stage.heard.heard if heard[0] == "failed"]


# a command that changes the position


def test_on_hold_it_waits_without_fencing_and_goes_on_by_itself() -> None:
    """Slot and publication may be anything until the command has ended, so nothing is concluded from them."""
    stage = Stage()
    stage.kafka.position = position(hold="cdc recover, today, here")
    stage.log.seen = [server(slot=None), server(slot=None, publication=None), SERVER]
    looks = iter([POSITION])

    def look() -> None:
        if stage.world.calls.count("pause 1") == 2:
            stage.kafka.position = next(looks, POSITION)

    stage.world.before["look"] = look
    stage.run()
    assert stage.pauses == [HELD_POLL_S] * 2
    assert stage.heard.states == ["opening", "held"] * 2 + ["opening", "streaming", "stopping", "stopped"]
    assert stage.world.calls[:5] == ["look", "peek", *DROP, "pause 1"]
    assert "cdc recover, today, here" in stage.heard.heard[2][2]
    assert not [heard for heard in stage.heard.heard if heard[0] == "failed"]


def test_a_hold_that_only_the_fence_shows_is_heeded_and_being_fenced_by_commands_is_no_alarm() -> None:
    stage = Stage(steps=4)
    held = iter([position(hold="cdc slot rewind")] * 2 * FENCED_TIMES)

    def recover() -> None:
        stage.kafka.position = next(held) if stage.world.calls.count("recover") % 2 == 0 else POSITION

    def peek() -> None:
        stage.kafka.position = POSITION

    stage.world.before |= {"recover": recover, "peek": peek}
    stage.run(step=[Fenced("fenced")] * 3)
    assert stage.heard.states.count("held") == 3
    assert stage.heard.states[-1] == "stopped"


def test_a_hold_that_is_still_hidden_is_no_missing_slot() -> None:
    """The command's commit has returned, its markers are not written yet, and the slot is dropped by then."""
    stage = Stage()
    stage.kafka.hidden = position(hold="cdc slot rewind, today, here")
    stage.log.seen = [server(slot=None), server(slot=None), SERVER]

    def look() -> None:
        if "last" in stage.world.calls:
            stage.kafka.position, stage.kafka.hidden = stage.kafka.hidden or POSITION, None
        if "pause 1" in stage.world.calls:
            stage.kafka.position = POSITION

    stage.world.before["look"] = look
    stage.run()
    assert stage.heard.states == ["opening", "backoff", "opening", "held", "opening", "streaming", "stopping", "stopped"]
    assert stage.world.calls[:4] == ["look", "peek", "look", "last"]


def test_a_slot_that_a_command_made_anew_meanwhile_is_not_missing() -> None:
    """The slot was looked at while a command had dropped it, the position when the command had ended."""
    stage = Stage()
    stage.log.seen = [server(slot=None), SERVER]
    stage.run()
    assert stage.heard.states == ["opening", "streaming", "stopping", "stopped"]
    assert stage.world.calls[:5] == ["look", "peek", "look", "last", "precheck"]


def test_a_missing_slot_is_told_when_nothing_was_hidden() -> None:
    stage = Stage()
    stage.log.seen = [server(slot=None)] * 2
    with pytest.raises(ContinuityError, match="is missing"):
        stage.run()
    assert stage.world.calls[:4] == ["look", "peek", "look", "last"]


# the one recovery path


@pytest.mark.parametrize("call", ["look", "precheck", "peek", "open", "require", "recover", "watch", "start", "step"])
def test_whatever_fails_everything_is_dropped_and_the_door_is_passed_again(call: str) -> None:
    stage = Stage(steps=2 if call == "step" else 1).run(**{call: [Retriable("lost")]})
    calls = stage.world.calls
    failed = next(i for i, name in enumerate(calls) if name.startswith(call))
    assert calls[failed + 1 : failed + 5] == [*DROP, "pause 10", "look"]
    assert calls[failed + 4 :] == [*DOOR, "step", *STOP, *DROP]
    assert ("failed", "lost") in stage.heard.heard


def progress(stage: Stage, step: int) -> None:
    """Let the relay have committed something when it comes to its step of this number."""

    def commit() -> None:
        if stage.world.calls.count("step") == step:
            stage.relays[-1].position = position(end_lsn=Lsn(0x110))

    stage.world.before["step"] = commit


def test_the_backoff_grows_until_something_was_committed() -> None:
    stage = Stage(steps=2).run(look=[Retriable("a"), Retriable("b")], step=[Retriable("c")])
    assert stage.pauses == [10.0, 20.0, 30.0]
    stage = Stage(steps=3)
    progress(stage, 1)
    stage.run(look=[Retriable("a")], step=[None, Retriable("b")])
    assert stage.pauses == [10.0, 10.0], "counted from 1 again after the commit"


def test_a_standby_forgets_the_attempts_before() -> None:
    stage = Stage().run(look=[Retriable("a"), Retriable("b"), SlotBusy("cdc_shop", 1), Retriable("c")])
    assert stage.pauses == [10.0, 20.0, STANDBY_POLL_S, 10.0]


@pytest.mark.parametrize("error", [PostgresRefused("no"), SinkRefused("no"), ContinuityError("no"), ValueError("bug")])
def test_what_does_not_heal_ends_the_process(error: Exception) -> None:
    stage = Stage()
    with pytest.raises(type(error)):
        stage.run(step=[error])
    assert stage.world.calls[-2:] == DROP
    assert stage.heard.heard[-1] == ("state", "failed", "no" if isinstance(error, CdcError) else "ValueError")


# fencing and timeouts


def test_fenced_three_times_within_a_minute_somebody_has_our_name() -> None:
    stage = Stage(steps=10)
    with pytest.raises(IdentityTaken) as caught:
        stage.run(step=[Fenced("fenced")] * FENCED_TIMES)
    assert caught.value.exit_code == 6
    assert stage.pauses == [10.0, 20.0]


def test_whoever_fenced_us_has_time_to_say_that_it_holds_the_pipeline() -> None:
    stage = Stage(steps=3, backoff=lambda attempt: 0.1 * attempt)
    stage.run(step=[Fenced("fenced"), Retriable("a")])
    assert stage.pauses == [FENCED_PAUSE_S, 0.2]


def test_fenced_now_and_then_is_a_takeover() -> None:
    stage = Stage(steps=6)
    stage.world.before["step"] = lambda: setattr(stage.world, "now", stage.world.now + FENCED_WITHIN_S / 2)
    stage.run(step=[Fenced("fenced")] * 5)
    assert stage.heard.states[-1] == "stopped"


def test_a_transaction_that_timed_out_is_tried_with_more_patience_and_then_refused() -> None:
    stage = Stage(steps=10)
    with pytest.raises(SinkRefused) as caught:
        stage.run(step=[TransactionTimedOut(5, 61.0, 60.0), TransactionTimedOut(9, 901.0, 900.0)])
    assert stage.kafka.patient == [False, True]
    assert "9 outbox rows so far took 901.0 s" in caught.value.what
    assert "transaction.max.timeout.ms" in caught.value.fix


def test_patience_ends_with_progress() -> None:
    stage = Stage(steps=4)
    progress(stage, 2)
    stage.run(step=[TransactionTimedOut(5, 61.0, 60.0), None, Retriable("lost")])
    assert stage.kafka.patient == [False, True, False]


# while it streams


def test_continuity_is_watched_while_streaming() -> None:
    stage = Stage(steps=round(WATCH_INTERVAL_S * 10) * 2 + 2)
    stage.run()
    assert stage.world.calls.count("watch") == 1 + 2 + 1
    assert stage.world.calls.count("proved 0/50") == 2 + 1
    assert stage.world.calls.count("refresh") == 2
    assert ("ignored", "truncate", 2) in stage.heard.heard
    assert ("server", SERVER, POSITION) in stage.heard.heard


def test_what_the_watch_finds_ends_the_process() -> None:
    stage = Stage(steps=10_000)
    stage.log.seen = [SERVER, SERVER, SERVER, server(publication=None)]
    with pytest.raises(ContinuityError, match="the publication is missing"):
        stage.run()


def test_a_clean_stop_looks_once_more_and_says_what_it_found() -> None:
    stage = Stage()
    stage.log.seen = [SERVER, SERVER, SERVER, server(publication=None)]
    with pytest.raises(ContinuityError, match="the publication is missing"):
        stage.run()
    assert stage.world.calls[-4:] == ["stop 10", "watch", *DROP]


def test_a_server_that_is_away_does_not_hold_up_a_clean_stop() -> None:
    stage = Stage().run(watch=[None, Retriable("gone")])
    assert stage.world.calls[-5:] == ["stop 10", "watch", "finish", *DROP]
    assert stage.heard.states[-1] == "stopped"


def test_a_slot_that_is_not_ours_any_more_proves_nothing_by_where_it_stands() -> None:
    """Another instance has it and moved on: that is no slot that is ahead."""
    stage = Stage(steps=150)
    stage.log.seen = [SERVER, SERVER, SERVER, server(ours=False, slot=slot(confirmed_flush_lsn=Lsn(0x180)))]
    stage.run()
    assert stage.heard.states.count("backoff") == 1


# the end


def test_an_invalid_event_stops_after_what_came_before_was_told() -> None:
    stage = Stage()
    with pytest.raises(StoppedByPolicy):
        stage.run(step=[StoppedByPolicy("invalid event")])
    assert stage.world.calls[-4:] == ["abort 10", "finish", *DROP]
    assert stage.heard.states[-1] == "failed"


@pytest.mark.parametrize("call", ["stop", "finish"])
def test_a_fault_while_stopping_stops(call: str) -> None:
    """What was under way is settled by the next start."""
    stage = Stage().run(**{call: [Retriable("lost")]})
    assert stage.heard.states == ["opening", "streaming", "stopping", "stopped"]
    assert stage.pauses == []


def test_waiting_answers_postgresql_and_shows_a_beat() -> None:
    stage = Stage().run()
    beats, calls = stage.heard.beats, len(stage.world.calls)
    stage.steps = 100
    stage.relays[0].waiting()
    assert stage.heard.beats == beats + 1
    assert stage.world.calls[calls:] == ["keep_alive"]


def test_the_grace_counts_from_the_first_wait_after_the_signal() -> None:
    stage = Stage()
    waits: list[float] = []

    def wait() -> None:
        while True:
            waits.append(stage.world.now)
            stage.relays[0].waiting()
            stage.world.now += 1.0

    stage.world.before["stop"] = wait
    stage.run()
    assert waits[-1] - waits[0] == GRACE_S
    assert stage.world.calls[-2:] == DROP
    assert stage.heard.states == ["opening", "streaming", "stopping", "stopped"]
    assert not [heard for heard in stage.heard.heard if heard[0] == "failed"]


def test_a_wait_that_nobody_ended_goes_on() -> None:
    stage = Stage(steps=5)
    stage.run()
    stage.steps = 100
    for _ in range(3):
        stage.world.now += GRACE_S
        stage.relays[0].waiting()


def test_grace_that_ended_is_no_fault() -> None:
    assert not isinstance(GraceEnded("over"), Retriable)


# states


def test_every_state_is_left_only_as_the_table_says() -> None:
    assert TRANSITIONS.keys() == set(State)
    for state in State:
        if state not in (State.STOPPED, State.FAILED):
            assert {State.STOPPED, State.FAILED} <= TRANSITIONS[state]
    reached = {State.STARTING}
    for _ in State:
        reached |= {following for state in reached for following in TRANSITIONS[state]}
    assert reached == set(State)


def test_a_turn_that_the_table_does_not_have_is_a_bug() -> None:
    stage = Stage().run()
    with pytest.raises(AssertionError, match="stopped -> opening"):
        stage.supervisor._turn(State.OPENING)


# what the broker refuses for good

PLACE = b"0000" + b"%016x" % 0x108 + b"00000000"


def poisoned(place: bytes | None = None) -> Poisoned:
    return Poisoned("refused", place=place, why="INVALID_RECORD")


def test_the_record_that_poisons_is_looked_for_and_then_treated_as_invalid() -> None:
    stage = Stage(steps=3).run(step=[poisoned(), poisoned(PLACE), None])
    assert stage.kafka.blaming == [False, True, False]
    assert stage.refused == [{}, {}, {PLACE: "INVALID_RECORD"}]


def test_what_lies_below_the_position_is_blamed_no_more() -> None:
    stage = Stage(steps=4)
    stage.kafka.position = position(end_lsn=Lsn(0x110))
    stage.run(step=[poisoned(), poisoned(PLACE), None, None])
    assert stage.refused[-1] == {}


def test_a_record_that_tells_no_place_is_blamed_by_its_id() -> None:
    stage = Stage(steps=4)
    stage.kafka.position = position(end_lsn=Lsn(0x110))
    stage.run(step=[poisoned(), poisoned(b"id e1"), None, None])
    assert stage.refused[-1] == {b"id e1": "INVALID_RECORD"}


def test_three_refusals_without_a_row_to_blame_are_an_error() -> None:
    with pytest.raises(SinkRefused, match="no row of the outbox is to blame: refused"):
        Stage(steps=9).run(step=[poisoned()] * POISONED_TIMES)


def test_a_row_whose_dead_letter_is_refused_too_is_blamed_once() -> None:
    stage = Stage(steps=9)
    with pytest.raises(SinkRefused):
        stage.run(step=[poisoned(), *[poisoned(PLACE)] * (POISONED_TIMES + 1)])
    assert stage.refused[-1] == {PLACE: "INVALID_RECORD"}


def test_progress_between_refusals_begins_the_count_anew() -> None:
    stage = Stage(steps=5)

    def move_on() -> None:
        stage.relays[-1].position = position(end_lsn=Lsn(0x101 + len(stage.relays)))

    stage.world.before["step"] = move_on
    stage.run(step=[poisoned(), poisoned(), None, poisoned(), None])
    assert stage.kafka.blaming == [False, True, True, True]


# a turn that waits for Kafka


def test_a_turn_that_waits_for_long_is_shown_until_the_next_one() -> None:
    stage = Stage(steps=2)

    def wait() -> None:
        if stage.world.calls.count("step") == 1:
            for _ in range(3):
                stage.world.now += STALLED_S / 2
                stage.relays[-1].waiting()

    stage.world.before["step"] = wait
    stage.run()
    turns = [(state, reason) for kind, state, reason in (each for each in stage.heard.heard if each[0] == "state")]
    assert turns[1:4] == [("streaming", ""), ("streaming", "Kafka has not answered for 3 s"), ("streaming", "")]


def test_commands_that_fence_and_are_gone_before_we_look_are_no_second_instance() -> None:
    stage = Stage(steps=FENCED_TIMES + 2)

    def change() -> None:
        stage.kafka.position = position(generation=stage.world.calls.count("recover"))

    stage.world.before["recover"] = change
    stage.run(step=[Fenced("fenced")] * (FENCED_TIMES + 1))
    assert stage.heard.states[-1] == "stopped"
