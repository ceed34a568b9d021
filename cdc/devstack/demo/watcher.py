"""A reader of what is committed, beside the pipeline: what it saw, and how long after the commit."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence

from cdc.audit.judge import Visible
from cdc.event import Seen
from cdc.pipeline.ports import Reader


class _LeavingError(Exception):
    """The watcher is to end."""


class Watcher:
    """Reads topics in a thread, from their beginning on, until it is closed."""

    def __init__(self, subscriber: Reader, topics: Sequence[str], visible: Callable[[Seen], Visible | None]) -> None:
        self._subscriber = subscriber
        self._topics = topics
        self._visible = visible
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._read)
        self._latencies_ms = array("f")
        self._interrupted_ms: float | None = None
        self._resumed_ms = 0.0
        self.records: list[Visible] = []
        self.last_at = 0.0

    def __repr__(self) -> str:
        return f"<Watcher records={len(self.records)}>"

    def open(self) -> None:
        """Start to read."""
        self._thread.start()

    def close(self) -> None:
        """End, and let the clients go."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def seen(self) -> int:
        """Records so far; raises what made the reader fail."""
        if self._failure is not None:
            raise self._failure
        return len(self.records)

    def interrupted(self) -> None:
        """Leave out what comes from now on, until a record comes that was committed later: what lies between waits for a new process."""
        if self._interrupted_ms is None:
            self._interrupted_ms = time.time() * 1000

    def latency_ms(self, share: float) -> float:
        """Return the time from commit to here that so large a share of the records needed at most, interruptions left out."""
        ordered = sorted(self._latencies_ms)
        return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 1) if ordered else 0.0

    def _read(self) -> None:
        try:
            for seen in self._subscriber.read(self._topics, follow=True, waiting=self._leave):
                record = self._visible(seen)
                if record is not None:
                    self._time(seen.timestamp_ms)
                    self.records.append(record)
        except _LeavingError:
            pass
        except BaseException as error:  # noqa: BLE001 - shown by `seen`, in the thread that waits
            self._failure = error

    def _time(self, committed_ms: int) -> None:
        """Note a latency. A record's time is its commit's in whole milliseconds; PostgreSQL runs on this machine."""
        now_ms, self.last_at = time.time() * 1000, time.monotonic()
        if self._interrupted_ms is not None and committed_ms > self._interrupted_ms:
            self._resumed_ms, self._interrupted_ms = now_ms, None
        if self._interrupted_ms is None and committed_ms > self._resumed_ms:
            self._latencies_ms.append(max(0.0, now_ms - committed_ms))

    def _leave(self) -> None:
        if self._closing.is_set():
            raise _LeavingError
