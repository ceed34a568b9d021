"""Whole lives in the simulation: what is ignored, idle logs, shutdowns, stops by policy, and the traps of LSNs."""

from __future__ import annotations

import pytest

from cdc.errors import SinkRefused, StoppedByPolicy
from cdc.position import Lsn, Witness
from cdc.postgres.pgoutput import UNCHANGED, Delete, Insert, Message, Truncate, Update
from cdc.postgres.walsender import SHUTDOWN_PATIENCE_S
from tests.simulation.fake_kafka import Outcome, Verb
from tests.simulation.fake_postgres import OTHER, OUTBOX, OpenTransaction
from tests.simulation.workloads import BAD, SEGMENT, SMALL, good
from tests.simulation.world import DEAD, Action, Build, Fault, Script, World


def ids(world: World) -> list[str]:
    """Return the ids of all visible records, in commit order."""
    return [seen.id.decode() for seen in sorted(world.visible(), key=lambda seen: seen.place or b"")]


def never_committed(world: World) -> None:
    world.insert(world.postgres.begin(), ("never", "k", good(3)))


def clean(world: World) -> World:
    verdict = world.verdict()
    assert verdict.clean, verdict.findings
    return world


def test_field_case_06_an_lsn_that_is_shared_skips_nothing() -> None:
    """Each round stops where a commit ends, and the next commit begins exactly there."""
    world = World([])
    for number in range(200):
        open_ = world.insert(world.postgres.begin(), (f"x{number}", "k", good(number)))
        world.commit(world.insert(world.postgres.begin(), (f"w{number}", "k", good(number))))
        world.run()
        assert world.confirmed == world.postgres.end
        world.commit(open_)
        assert world.postgres.log[-1].start == world.confirmed
    clean(world.run())
    assert len(ids(world)) == 400


def test_field_case_06_with_a_kill_at_every_call() -> None:
    def together(i: int) -> Action:
        def act(world: World) -> None:
            writers = [world.insert(world.postgres.begin(), (f"{writer}{i}", "k", good(i))) for writer in "abcd"]
            for writer in reversed(writers):
                world.commit(writer)

        return act

    script = [(float(i), together(i)) for i in range(3)]
    calls = World(script).run().gate.calls
    for call in range(calls):
        world = clean(World(script, {call: Fault.KILL}).run())
        assert len(ids(world)) == 12


def test_field_case_08_a_transaction_that_began_below_what_is_confirmed() -> None:
    late: list[OpenTransaction] = []
    script: Script = [
        (0.0, lambda world: late.append(world.insert(world.postgres.begin(), ("late", "k", good(0))))),
        *((i / 100, lambda world, i=i: world.transaction((f"n{i}", "k", good(i)))) for i in range(1, 301)),
    ]
    world = World(script).run()
    assert world.confirmed == world.postgres.end > late[0].changes[0][0]
    world.commit(late[0])
    for i in range(50):
        world.transaction((f"z{i}", "k", good(i)))
    clean(world.run())
    assert ids(world)[300:] == ["late", *(f"z{i}" for i in range(50))]


def test_field_case_28_truncate_is_ignored_and_nothing_stops() -> None:
    def act(world: World) -> None:
        world.transaction(("a", "k", good(1)), ("b", "k", good(2)), ("c", "k", good(3)))
        for oids in ((OUTBOX.oid,), (OUTBOX.oid, OTHER.oid)):
            truncate = world.postgres.begin()
            world.postgres.change(truncate, Truncate(oids, True, True))
            world.commit(truncate)
        world.transaction(("d", "k", good(4)), ("e", "k", good(5)))

    world = clean(World([(0.0, act), (11.0, lambda world: world.postgres.write(10))]).run())
    assert ids(world) == list("abcde")
    assert all(seen.payload is not None for seen in world.visible())
    assert world.processes[0].observer.ignored_kinds == {"truncate": 2}


def test_field_case_30_messages_and_heartbeats_are_no_events() -> None:
    def act(world: World) -> None:
        postgres = world.postgres
        mixed = world.insert(postgres.begin(), ("a", "k", good(1)))
        postgres.change(mixed, Message(True, postgres.end, "hb", b"x"))
        postgres.change(mixed, Message(False, postgres.end, "hb", b"stands outside"))
        postgres.change(mixed, Insert(OTHER.oid, (b"1",)))
        world.insert(mixed, ("b", "k", good(2)))
        world.commit(mixed)
        postgres.emit("hb", b"x")
        alone = postgres.begin()
        postgres.change(alone, Message(True, postgres.end, "hb", b"x"))
        world.commit(alone)
        beat = postgres.begin()
        postgres.change(beat, Update(OTHER.oid, None, False, (b"1",)))
        world.commit(beat)

    world = clean(World([(0.0, act), (11.0, lambda world: world.postgres.write(10))]).run())
    assert ids(world) == ["a", "b"]
    assert world.visible()[0].place[-8:] == b"00000000"  # type: ignore[index]
    assert world.processes[0].observer.ignored_kinds == {"message": 4, "insert": 1, "update": 1}
    assert world.position.end_lsn == world.postgres.end


def test_field_case_35_an_update_with_an_unchanged_value_is_no_second_event() -> None:
    payload = '{"n":1' + " " * 200_000 + "}"

    def act(world: World) -> None:
        world.transaction(("big", "k", payload))
        later = world.postgres.begin()
        world.postgres.change(later, Update(OUTBOX.oid, None, False, (b"big", b"order", b"k", b"OrderPlaced", UNCHANGED)))
        world.postgres.change(later, Delete(OUTBOX.oid, (b"big", None, None, None, None), True))
        world.commit(later)

    world = clean(World([(0.0, act)]).run())
    assert ids(world) == ["big"]


def test_field_case_66_the_order_is_that_of_commits_and_not_of_ids() -> None:
    first: list[OpenTransaction] = []
    script: Script = [
        (0.0, lambda world: first.append(world.insert(world.postgres.begin(), ("1", "k", good(1))))),
        (0.1, lambda world: world.transaction(("2", "k", good(2)))),
        (0.2, never_committed),
        (5.0, lambda world: world.commit(first[0])),
        (5.1, lambda world: world.transaction(("50", "k", good(4)))),
    ]
    world = clean(World(script).run())
    assert ids(world) == ["2", "1", "50"]
    assert world.now < 10, "a gap in the ids causes no waiting"


def test_an_idle_slot_follows_the_log_of_other_tables() -> None:
    told: list[tuple[float, Lsn]] = []
    script: Script = [(float(second), lambda world: world.postgres.write(SEGMENT // 4)) for second in range(1, 60)]
    world = World(script)
    world.postgres.confirming = lambda lsn: told.append((world.now, lsn))
    clean(world.run())
    assert len(told) > 20
    positions = [record for _, _, record in world.kafka.committed("_cdc.shop.position")]
    assert len(positions) <= 62, "an idle position at most once a second"
    assert world.position.witness == "none"


def test_the_witness_is_the_last_transaction_that_brought_events() -> None:
    world = clean(World(SMALL).run())
    last = [stretch for stretch in world.postgres.log if stretch.begin is not None][-1]
    assert last.begin is not None
    assert world.position.witness == Witness(last.end, last.begin.xid, last.begin.commit_time_us)
    assert world.position.end_lsn == world.postgres.end > last.end


def test_an_invalid_row_stops_the_pipeline_after_what_came_before() -> None:
    def act(world: World) -> None:
        world.transaction(("a", "k", good(1)), ("b", "k", good(2)))
        world.transaction(("c", "k", good(3)), ("d", "k", BAD), ("e", "k", good(4)))
        world.transaction(("f", "k", good(5)))

    for build in (Build(stop_at_invalid=True), Build(stop_at_invalid=True, deep=False)):
        world = World([(0.0, act)], build=build)
        with pytest.raises(StoppedByPolicy, match="invalid event d at"):
            world.run()
        assert ids(world) == ["a", "b"]
        first = world.postgres.log[0]
        assert world.position.end_lsn == first.end == world.confirmed
        assert world.kafka.open_transactions() == []
        assert world.watch.verdict.clean


def test_a_large_transaction_that_stops_the_pipeline_leaves_nothing() -> None:
    def act(world: World) -> None:
        world.transaction(("a", "k", good(1)))
        world.transaction(*((f"c{i}", "k", BAD if i == 9 else good(i)) for i in range(12)))

    world = World([(0.0, act)], build=Build(stop_at_invalid=True))
    with pytest.raises(StoppedByPolicy):
        world.run()
    assert ids(world) == ["a"]
    assert world.kafka.open_transactions() == []


def test_a_server_that_shuts_down_ends_at_once_when_the_position_can_follow() -> None:
    world = World([(1.0, lambda world: world.transaction(("a", "k", good(1)))), (1.0, stop)])
    clean(world.run())
    assert world.postgres.asked <= 2


def test_a_server_that_shuts_down_is_left_when_the_position_cannot_follow() -> None:
    """Each answer makes it ask again: without leaving, its shutdown would never end."""

    def freeze(world: World) -> None:
        def wait(verb: Verb, _: str) -> Outcome:
            while verb is Verb.COMMIT and world.now < 60:
                world.pause(0.1)
                world.processes[0].source.keep_alive()
            return Outcome.OK

        world.kafka.hook = wait

    left: list[float] = []

    def start_again(world: World) -> None:
        left.extend(float(failure.startswith("PostgreSQL is shutting down")) for failure in world.processes[0].observer.failures)
        world.postgres.restart()

    script: Script = [
        (1.0, freeze),
        (1.0, stop),
        (1.0, lambda world: world.transaction(("a", "k", good(1)))),
        (2.0 + SHUTDOWN_PATIENCE_S, start_again),
        (61.0, lambda world: world.transaction(("b", "k", good(2)))),
    ]
    world = clean(World(script).run())
    assert left == [1.0], "it has left by itself"
    assert world.postgres.asked < 30
    assert ids(world) == ["a", "b"]


def stop(world: World) -> None:
    """`pg_ctl stop -m fast`."""
    world.postgres.stopping = True


def test_what_the_broker_refuses_becomes_a_dead_letter_and_the_rest_goes_on() -> None:
    """No check of ours could know: the record fits its route, and the broker will not have it."""
    for call in (*range(World(SMALL).run().gate.calls), None):
        world = World(SMALL, {} if call is None else {call: Fault.KILL})
        world.kafka.refuses = lambda record: dict(record.headers).get("ce_id") in (b"b3", b"c4")
        clean(world.run())
        dead = {(dict(record.headers)["cdc.id"], dict(record.headers)["cdc.reason"]) for _, _, record in world.kafka.committed(DEAD)}
        assert dead >= {(b"b3", b"refused"), (b"c4", b"refused")}


def test_a_broker_that_refuses_everything_ends_the_process() -> None:
    world = World(SMALL)
    world.kafka.refuses = lambda record: record.topic == DEAD
    with pytest.raises(SinkRefused, match="no row of the outbox is to blame"):
        world.run()
    assert world.visible() == []
