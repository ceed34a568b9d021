"""What the demo's watcher counts as latency."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import cast

import pytest

from cdc.audit.judge import Visible
from cdc.devstack.demo.watcher import Watcher
from cdc.event import Seen
from cdc.pipeline.ports import Reader
from tests.waiting import wait_for

EVENT = cast("Visible", object())


class Reading:
    """A reader of what a test puts there."""

    def __init__(self) -> None:
        self.seen: queue.SimpleQueue[Seen | None] = queue.SimpleQueue()

    def read(self, *_args: object, **_options: object) -> Iterator[Seen]:
        while (record := self.seen.get()) is not None:
            yield record

    def close(self) -> None:
        self.seen.put(None)


@pytest.mark.parametrize(("killed", "least_ms", "most_ms"), [(False, 59_000, 90_000), (True, 0, 30_000)], ids=["slow", "killed"])
def test_what_waits_for_a_new_process_is_left_out(*, killed: bool, least_ms: float, most_ms: float) -> None:
    reading = Reading()
    watcher = Watcher(cast("Reader", reading), ["t"], lambda _: EVENT)

    def commit(seconds_ago: float) -> None:
        before = watcher.seen
        reading.seen.put(Seen("t", 0, 0, None, None, [], round((time.time() - seconds_ago) * 1000)))
        wait_for(lambda: watcher.seen > before, what="it is seen")

    watcher.open()
    try:
        commit(0)
        if killed:
            watcher.interrupted()
        commit(60)
        commit(-0.5)
        commit(30)
        assert least_ms <= watcher.latency_ms(1) <= most_ms
    finally:
        reading.close()
        watcher.close()
