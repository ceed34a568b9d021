"""`cdc dead-letters redrive --consumer NAME`: events that a consumer parked are given to it once more.

Strategy: as with a pipeline's letters, fence, then read, then publish events and the records that close their letters at once: in
one Kafka transaction, or one MULTI of Redis; RabbitMQ gets the events first. A consumer's letter is the event itself, so nothing is
encoded again; it goes to the consumer's own topic `cdc.NAME.redriven`, so that no other group sees it, with the original bytes, key
and headers, and `ce_replay: redrive:ID`.

A letter over its topic's limit has kept no value, and cannot be redriven: its event may still lie where `__connect.errors.topic`,
`.partition` and `.offset` say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc.audit.dead_letters import STEP, Choice, DeadLetters, Letter, Progress
from cdc.audit.redrive import SHOWN, Redriven
from cdc.consumer.dead_letter import redriven
from cdc.consumer.event import envelope
from cdc.consumer.names import Names
from cdc.errors import AuditFailed
from cdc.event import Record, Seen
from cdc.outbox.dead_letter import REDRIVEN
from cdc.resilience.call import Waiting, nobody_waits


class LettersPublisher(Protocol):
    """The half of a RedrivePublisher that suffices where nothing is encoded again."""

    def fence(self, waiting: Waiting) -> None: ...  # noqa: D102 - see above
    def require(self, topics: Sequence[str], waiting: Waiting) -> None: ...  # noqa: D102 - see Publisher
    def produce(self, records: Sequence[Record], waiting: Waiting) -> None: ...  # noqa: D102 - see Publisher
    def commit(self, position: None, waiting: Waiting) -> None: ...  # noqa: D102 - see Publisher
    def close(self) -> None: ...  # noqa: D102 - see Publisher


@dataclass(slots=True)
class ConsumerRedrive:
    """One redrive of a consumer's letters; `run` may be called again after a Retriable error. `readable` as in Redrive."""

    letters: DeadLetters
    publisher: LettersPublisher
    names: Names
    choice: Choice
    progress: Progress
    readable: bool = True

    def run(self) -> list[Redriven]:
        """Publish what is chosen and open.

        Raises AuditFailed, with nothing published, for a name that no letter has and for a letter without its value.
        """
        self.publisher.fence(nobody_waits)
        self.letters.subscriber.settle([self.letters.topic], nobody_waits)
        found = self.letters.letters(self.choice, self.progress)
        named = {name for letter in found for name in (letter.id, letter.sequence)}
        if missing := sorted(self.choice.names - named):
            raise AuditFailed(f"there is no dead letter {', '.join(missing[:SHOWN])}", "see `cdc dead-letters list --all --consumer NAME`")
        whole = list(self.letters.whole([letter for letter in found if letter.open]))
        cut = [letter.id for letter, seen in whole if any(name == "cdc.payload.bytes" for name, _ in seen.headers)]
        if cut:
            msg = f"{len(cut)} letters have kept no value, because it was over the topic's limit: {', '.join(cut[:SHOWN])}"
            raise AuditFailed(f"{msg}; nothing was published", "read the event where its letter says, or `cdc replay` it")
        newest = self._newest(whole)
        self._publish(whole)
        return [Redriven(each, self.names.redriven, newest.get((each.topic, seen.key or b""), "") > each.sequence) for each, seen in whole]

    def _publish(self, whole: list[tuple[Letter, Seen]]) -> None:
        if not whole:
            return
        self.publisher.require([self.letters.topic, self.names.redriven], nobody_waits)
        for letter, seen in whole:
            headers: list[tuple[str, bytes | None]] = [
                (REDRIVEN, self.names.redriven.encode()),
                ("cdc.id", letter.id.encode()),
                ("cdc.sequence", letter.sequence.encode()),
            ]
            closing = Record(self.letters.topic, seen.key, None, headers, 0)
            self.publisher.produce([redriven(self.names.redriven, seen), closing], nobody_waits)
        self.publisher.commit(None, nobody_waits)

    def _newest(self, whole: list[tuple[Letter, Seen]]) -> dict[tuple[str, bytes], str]:
        """Return the last place of each key in the topics that the events came from; replays are older news."""
        newest = {(letter.topic, seen.key): "" for letter, seen in whole if seen.key is not None}
        topics = sorted({topic for topic, _ in newest})
        if not topics or not self.readable:
            return newest
        since_ms = min(envelope(seen).timestamp_ms or letter.timestamp_ms for letter, seen in whole)
        for done, seen in enumerate(self.letters.subscriber.read(topics, since_ms=since_ms), 1):
            key = (seen.topic, seen.key or b"")
            if key in newest:
                headers = dict(seen.headers)
                if "ce_replay" not in headers:
                    newest[key] = max(newest[key], (headers.get("ce_sequence") or b"").decode())
            if done % STEP == 0:
                self.progress(STEP)
        return newest
