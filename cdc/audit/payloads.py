"""One dead letter with its payload, for who asked for it: personal fields masked, as `cdc dead-letters show --payload` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc.audit.dead_letters import Choice, DeadLetters, Letter, payload_text
from cdc.avro.registry import Registry
from cdc.outbox.mapping import OutboxMapping


@dataclass(frozen=True, slots=True)
class Payloads:
    """Reads the dead letters of one pipeline; `connect` opens them for one call."""

    connect: Callable[[], DeadLetters]
    mapping: OutboxMapping
    registry: Callable[[], Registry]

    def __call__(self, sequence: str) -> tuple[Letter, str | None] | None:
        """Return the letter at a place with its payload, or None when the topic has none; reads the topic, and raises what that raises."""
        dead = self.connect()
        try:
            for letter, seen in dead.whole(dead.letters(Choice(frozenset({sequence})), _unseen)):
                return letter, payload_text(seen, self.registry(), self.mapping)
        finally:
            dead.subscriber.close()
        return None


def _unseen(_done: float) -> None:
    """Nobody watches the progress."""
