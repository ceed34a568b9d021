"""What the publisher to RabbitMQ promises the pipeline, step by step on a real broker: lease, position, confirms."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pika
import pytest

from cdc.devstack.rabbitmq import RabbitBroker
from cdc.errors import InvalidEvent, Retriable, SinkRefused
from cdc.event import Record
from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.rabbitmq import positions
from cdc.rabbitmq import publisher as module
from cdc.rabbitmq.letters import RabbitLetters
from cdc.rabbitmq.publisher import RabbitPublisher
from cdc.rabbitmq.reader import RabbitReader
from cdc.resilience.call import nobody_waits
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages]

Make = Callable[[], RabbitPublisher]


@pytest.fixture
def make(rabbit_broker: RabbitBroker, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make publishers of one pipeline that share exchange and queues; nobody waits long for a lease."""
    monkeypatch.setattr(module, "PEEK_S", 0.2)
    monkeypatch.setattr(module, "LEASE_S", 0.2)
    monkeypatch.setattr(positions, "LATE_S", 0.1)
    with contextlib.ExitStack() as stack:

        def made() -> RabbitPublisher:
            publisher = RabbitPublisher(
                name=unique,
                url=rabbit_broker.url,
                exchange=unique,
                exchange_type="topic",
                position_queue=f"{unique}.position",
                dead_letter_queue=f"{unique}.dead",
                confirm_timeout_s=30,
            )
            stack.callback(publisher.close)
            return publisher

        first = made()
        assert not first.positions.exists(nobody_waits)
        assert first.positions.create(1, 1, nobody_waits)
        first.drop()
        yield made


def position(end_lsn: int, generation: int = 0) -> Position:
    fingerprint = Fingerprint(1, 2, (), Lsn(0))
    return Position("p", generation, "7", ((1, Lsn(0)),), "slot", fingerprint, "k", Lsn(end_lsn), 0, "none", None, Existing("none", ""))


def record(topic: str, value: bytes = b"v") -> Record:
    return Record(topic, b"k", value, [("ce_id", b"1"), ("ce_sequence", b"1")], 0)


def waits(publisher: RabbitPublisher) -> Position | None:
    """Recover as the supervisor does it: again until the lease that was let go is free."""
    for _ in range(50):
        with contextlib.suppress(Retriable):
            return publisher.recover(nobody_waits)
    raise AssertionError("the lease is not free")


def test_the_position_is_what_was_committed_last_and_its_queue_holds_one(make: Make) -> None:
    publisher = make()
    assert publisher.peek() == (None, "rabbitmq:/")
    assert publisher.recover(nobody_waits) is None
    for lsn in range(1, 20):
        publisher.commit(position(lsn), nobody_waits)
    assert publisher.recover(nobody_waits) == position(19), "the lease is still ours"
    publisher.drop()
    again = make()
    assert waits(again) == position(19)
    again.commit(position(20), nobody_waits)
    again.drop()
    assert waits(make()) == position(20)


def test_nobody_gets_the_position_while_it_is_held(make: Make) -> None:
    owner, other = make(), make()
    owner.recover(nobody_waits)
    owner.commit(position(1), nobody_waits)
    for attempt in (other.peek, lambda: other.recover(nobody_waits)):
        with pytest.raises(Retriable, match="holds the position's queue"):
            attempt()
    for lsn in range(2, 20):  # again and again: whoever waits gets the lease and the position together
        owner.commit(position(lsn), nobody_waits)
        owner.drop()
        assert waits(other) == position(lsn)
        owner, other = other, owner
        with pytest.raises(Retriable):
            other.recover(nobody_waits)


def test_of_two_positions_that_a_kill_left_the_newer_one_counts(make: Make, rabbit_broker: RabbitBroker, unique: str) -> None:
    publisher = make()
    publisher.recover(nobody_waits)
    publisher.drop()
    held = (position(9), position(3, generation=1), replace(position(3, generation=1), hold="a command"), position(8))
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(rabbit_broker.url))) as connection:
        channel = connection.channel()
        for each in held:
            channel.basic_publish("", f"{unique}.position", each.to_json(), pika.BasicProperties(message_id="somebody/1", delivery_mode=2))
    newest = make()
    assert waits(newest) == held[2]
    newest.drop()
    assert waits(make()) == held[2], "and the others are gone, not the one"


def test_a_commit_waits_for_every_confirm_and_a_key_that_nobody_takes_moves_no_position(make: Make, unique: str) -> None:
    publisher = make()
    publisher.recover(nobody_waits)
    publisher.commit(position(1), nobody_waits)
    assert publisher.route("nobody.home", nobody_waits).partitions > 1

    def publish() -> None:
        publisher.produce([record("nobody.home")], nobody_waits)
        publisher.commit(position(2), nobody_waits)

    with pytest.raises(Retriable, match=r"returned a message with the routing key 'nobody.home'"):
        publish()
    publisher.drop()
    assert waits(publisher) == position(1)
    with pytest.raises(InvalidEvent, match="no queue is bound") as refused:
        publisher.route("nobody.home", nobody_waits)
    assert refused.value.reason == "route"
    with pytest.raises(InvalidEvent, match="AMQP takes 1 to 255"):
        publisher.route("x" * 256, nobody_waits)
    publisher.produce([record(f"{unique}.dead")], nobody_waits)
    publisher.commit(position(3), nobody_waits)
    publisher.drop()
    assert waits(publisher) == position(3)


def test_one_redrive_at_a_time_closes_letters_only_behind_their_events(make: Make, rabbit_broker: RabbitBroker, unique: str) -> None:
    make()
    letters = f"{unique}.dead"
    first, second = (RabbitLetters(url=rabbit_broker.url, name="redrive", exchange=unique, topic=letters) for _ in range(2))
    with contextlib.closing(first), contextlib.closing(second):
        first.fence(nobody_waits)
        with pytest.raises(Retriable, match="another redrive"):
            second.fence(nobody_waits)
        first.require([letters], nobody_waits)
        first.produce([record("nobody.home"), record(letters, b"closed")], nobody_waits)
        with pytest.raises(SinkRefused, match="no letter was closed"):
            first.commit(None, nobody_waits)
        first.close()
        wait_for(partial(fenced, second), what="the lock is free when its owner hangs up")
        second.produce([record(letters, b"closed")], nobody_waits)
        second.commit(None, nobody_waits)
    reader = RabbitReader(url=rabbit_broker.url, name="tests", dead_letter=letters, audit=None)
    with contextlib.closing(reader):
        assert [seen.value for seen in reader.read([letters])] == [b"closed"]


def fenced(letters: RabbitLetters) -> bool:
    with contextlib.suppress(Retriable):
        letters.fence(nobody_waits)
        return True
    return False


def test_what_is_missing_or_of_another_kind_is_refused(make: Make, rabbit_broker: RabbitBroker, unique: str) -> None:
    publisher = make()
    publisher.positions.verify(nobody_waits)
    publisher.require([], nobody_waits)
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(rabbit_broker.url))) as connection:
        channel = connection.channel()
        channel.exchange_delete(unique)
        with pytest.raises(SinkRefused, match="no exchange"):
            publisher.require([], nobody_waits)
        channel.exchange_declare(unique, "fanout", durable=True)
        publisher.require([], nobody_waits)
        with pytest.raises(SinkRefused, match="inequivalent arg 'type'"):
            publisher.positions.verify(nobody_waits)
