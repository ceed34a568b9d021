"""The desk: one thread for what takes long and is rare, so that it keeps no worker and no poll waiting.

Looking up what is known of a partition, moving records, keeping attempts, and, in a thread of its own, deleting old markers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from cdc.consumer import console
from cdc.consumer.dead_letter import dead_letter, later
from cdc.consumer.inbox import PRUNE_ROWS, Store
from cdc.consumer.lane import Handle, Job, Load, Loaded, Move, Moved, Note, Noted, Result, Share, Shared
from cdc.consumer.names import Names
from cdc.consumer.ports import LOG, Mover, told
from cdc.errors import CdcError, InvalidEvent

PRUNE_S: Final = 60.0
"""How often old markers are deleted."""


class Desk:
    """What is done for the loop beside handling; `mover` makes what moves records when the first record is to be moved."""

    def __init__(self, consumer: str, names: Names, store: Store | None, mover: Callable[[], Mover], *, returning: bool) -> None:
        self._consumer = consumer
        self._names = names
        self._store = store
        self._new_mover = mover
        self._mover: Mover | None = None
        self._returning = returning

    def __repr__(self) -> str:
        return f"<Desk of {self._consumer}>"

    def begin(self) -> None:
        """End what an instance of our name left open when it was killed: until then nobody is told the partition's offset."""
        if self._returning:
            self._mover = self._new_mover()
            try:
                self._mover.fence()
            except CdcError as error:
                LOG.info("%s: what an earlier run may have left open is left to its timeout: %s", self._consumer, type(error).__name__)

    def perform(self, job: Job) -> Result:
        """Do one job; what fails is told in the result."""
        assert not isinstance(job, Handle), "workers handle"
        if isinstance(job, Load):
            return self._load(job)
        if isinstance(job, Note):
            self._note(job)
            return Noted()
        if isinstance(job, Share):
            return self._share(job)
        try:
            return Moved(acknowledged=self._move(job))
        except CdcError as error:
            return Moved(f"{type(error).__name__}: {error.what}")
        except Exception as error:  # noqa: BLE001 - the database's, as a rule; the loop tries again
            return Moved(type(error).__name__)

    def close(self) -> None:
        """Let the clients go."""
        if self._mover is not None:
            self._mover.close()
        if self._store is not None:
            self._store.close()

    def _load(self, job: Load) -> Loaded:
        if self._store is None:
            return Loaded()
        try:
            return self._store.load(job.lane.topic, job.lane.partition)
        except Exception as error:  # noqa: BLE001 - the loop tries again
            return Loaded(error=console.described(error))

    def _share(self, job: Share) -> Shared:
        assert self._store is not None, "a shared breaker needs a database"
        try:
            return Shared(self._store.share(job.breaker, job.act, job.period_s))
        except Exception as error:  # noqa: BLE001 - the loop tries again
            return Shared(None, console.described(error))

    def _note(self, job: Note) -> None:
        if self._store is None:
            return
        try:
            self._store.note(job.lane.topic, job.lane.partition, job.number, job.attempts)
        except Exception as error:  # noqa: BLE001 - an attempt that is forgotten is one more attempt
            LOG.info("%s: an attempt was not written down: %s", self._consumer, type(error).__name__)

    def _move(self, job: Move) -> bool:
        record, lane = job.record, job.lane
        if self._mover is None:
            self._mover = self._new_mover()
        if job.delay_s is None:
            topic = self._names.dead_letter
            limit = self._mover.limit_bytes(topic)
            moved = dead_letter(topic, record, job.failure, consumer=self._consumer, attempts=job.attempts, limit_bytes=limit)
        else:
            due_ms = time.time_ns() // 1_000_000 + round(job.delay_s * 1000)
            moved = later(self._names.retry(job.attempts), record, job.failure, attempts=job.attempts, due_ms=due_ms)
        if self._store is not None:
            # Before the move: one that was written down and not moved only makes the next events of its key look twice.
            self._store.park(record)
        try:
            return self._mover.move(moved, {lane.place: record.offset + 1}, job.ticket)
        except InvalidEvent as error:
            if error.reason != "size" or job.delay_s is None:
                raise
            # Its retry topic would refuse it every time, and its partition would stop; a dead letter may leave out what is too long.
            LOG.warning("%s: cannot be put off and is parked: %s%s", self._consumer, error.what, told(record))
            return self._move(replace(job, delay_s=None))


class Janitor:
    """Deletes markers and business keys that need not be kept any longer, until it is closed."""

    def __init__(self, store: Store | None, markers: Sequence[str], keep: timedelta | None) -> None:
        self._store = store
        self._markers = markers
        self._keep = keep
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="cdc-consumer-janitor", daemon=True)

    def __repr__(self) -> str:
        return f"<Janitor keeps {self._keep or 'everything'}>"

    def start(self) -> None:
        """Begin, if there is a database."""
        if self._store is not None:
            self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def _work(self) -> None:
        assert self._store is not None, "started with one"
        while not self._ended.wait(PRUNE_S):
            try:
                while self._store.prune(self._markers, self._keep) >= PRUNE_ROWS and not self._ended.is_set():
                    pass
            except Exception as error:  # noqa: BLE001 - tried again in a minute
                LOG.info("old markers were not deleted: %s", type(error).__name__)
        self._store.close()
