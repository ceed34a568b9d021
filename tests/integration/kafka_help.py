"""What the tests of the Kafka room share."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from cdc.event import Record
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.subscriber import Subscriber
from cdc.position import Existing, Fingerprint, Lsn, Position

POSITION = Position(
    "shop", 1, "7", ((1, Lsn(0)),), "cdc_shop", Fingerprint(1, 2, (), Lsn(0)), "k", Lsn(0), 0, "none", None, Existing("none", "")
)


def nothing() -> None:
    pass


def at(end_lsn: int) -> Position:
    """A position, distinct by its LSN."""
    return dataclasses.replace(POSITION, end_lsn=Lsn(end_lsn))


def publisher(bootstrap: str, name: str, properties: dict[str, object] | None = None, **more: Any) -> KafkaPublisher:  # noqa: ANN401
    """A publisher with its position topic made."""
    kafka = {"bootstrap.servers": bootstrap, "topic.metadata.propagation.max.ms": 500, **(properties or {})}
    made = KafkaPublisher(name=name, kafka=kafka, position_topic=f"{name}.position", **more)
    made.positions.create(1, 1, nothing)
    return made


def record(topic: str, value: bytes | None = b"v", key: bytes | None = b"k") -> Record:
    return Record(topic, key, value, [("ce_id", b"1")], round(time.time() * 1000))


def values(bootstrap: str, topics: Sequence[str], count: int = 0) -> list[bytes | None]:
    """What a read_committed reader sees, at the latest when there are `count` records or 10 s are over."""
    subscriber = Subscriber(name="reader", kafka={"bootstrap.servers": bootstrap})
    found: list[bytes | None] = []

    def enough() -> bool:
        found[:] = [seen.value for seen in subscriber.read(topics)]
        return len(found) >= count

    until(enough, 10, required=False)
    subscriber.close()
    return found


def until(fact: Callable[[], bool], timeout_s: float, *, required: bool = True) -> None:
    """Wait for a fact."""
    deadline = time.monotonic() + timeout_s
    while not fact():
        if time.monotonic() >= deadline:
            assert not required, "the fact did not come in time"
            return
        time.sleep(0.02)
