"""A consumer of one queue, on a channel of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Subscription:
    """What a link has made for one queue; `ready` when the broker has taken it. `do` runs a function in the link's thread."""

    def __init__(self, do: Callable[[Callable[[], object]], None], queue: str) -> None:
        self._do = do
        self._queue = queue
        self.channel: Any = None
        self.ready = self.ended = False

    def __repr__(self) -> str:
        return f"<Subscription to {self._queue} {'ended' if self.ended else 'ready' if self.ready else 'wanted'}>"

    def ack(self, tag: int) -> None:
        """Acknowledge all deliveries up to this one."""
        self._do(lambda: self.channel.basic_ack(tag, multiple=True))

    def count(self, told: Callable[[int], object]) -> None:
        """Ask how many messages are in the queue; `told` is called in the link's thread."""
        self._do(lambda: self.channel.queue_declare(self._queue, passive=True, callback=lambda frame: told(frame.method.message_count)))

    def end(self) -> None:
        """Consume no more; in the link's thread."""
        self.ended = True
        if self.channel is not None and self.channel.is_open:
            self.channel.close()
