"""Finding the record that the broker refuses, in a passage that is made for it.

A refused record fails the whole Kafka transaction, and librdkafka tells why but not which one it was. So the next passage
sends each record in a batch of its own (batch.num.messages=1) and asks for a delivery report of each. What was purged
because something else failed has an error as well; the first error that speaks of the record itself names the culprit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cdc.errors import Poisoned
from cdc.event import Record, name_of
from cdc.kafka.faults import REFUSALS

REPORT_S = 1.0
"""How long the report of the culprit may come after the news that its Kafka transaction is doomed."""

Delivered = Callable[[Any, Any], None]
"""confluent-kafka's delivery callback: (KafkaError or None, Message)."""


class Blame:
    """The first record that was refused, and the broker's words."""

    def __init__(self) -> None:
        self.culprit: Record | None = None
        self.why = ""

    def __repr__(self) -> str:
        return f"<Blame {self.why or 'nobody'}>"

    def of(self, record: Record) -> Delivered:
        """Return the callback that takes the record's delivery report."""
        return partial(self._report, record)

    def accuse(self, found: Poisoned, poll: Callable[[], object], clock: Callable[[], float]) -> Poisoned:
        """Return `found` with the culprit's name; `poll` waits a moment for the client's reports.

        That the Kafka transaction is doomed is logged a moment before the record's own report is there.
        """
        until = clock() + REPORT_S
        while self.culprit is None and clock() < until:
            poll()
        if self.culprit is None:
            return found
        what = f"{found.what}; topic {self.culprit.topic!r} refused a record ({self.why})"
        return Poisoned(what, place=name_of(self.culprit), why=self.why)

    def _report(self, record: Record, error: Any, _message: Any) -> None:  # noqa: ANN401 - of the client, which has no types
        if self.culprit is None and error is not None and error.code() in REFUSALS:
            self.culprit, self.why = record, f"{error.name()}: {error.str()}"
