"""Whether every order had its effects once: what the shop's services wrote, held against the crowd's ledger.

The tables have no keys that would keep an effect from being there twice, so that what the inbox is for can be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from cdc.devstack.demo.crowd import Ledger
from cdc.devstack.demo.shop.domain import Status, pieces
from cdc.devstack.demo.shop.place import Place

EXAMPLES: Final = 5
"""Findings of one kind that are named."""

WRITTEN: Final = {
    "shop": "SELECT (SELECT count(*) FROM shipments) + (SELECT count(*) FROM refunds)",
    "inventory": "SELECT count(*) FROM decisions",
    "notification": "SELECT count(*) FROM mailbox",
    "analytics": "SELECT count(*) FROM facts",
}
"""Rows that consumers have written, by database."""

REORDERED: Final = """
SELECT count(*) FROM (
    SELECT sequence, lag(sequence) OVER (PARTITION BY source, key ORDER BY seen) AS before FROM facts
) AS applied WHERE sequence < before"""

Effect = tuple[str, str]
"""What was done, and for which order or event."""


@dataclass(slots=True)
class Effects:
    """What was found; all but `rejected` should be 0."""

    missing: int
    doubled: int
    reordered: int
    stock_error: int
    rejected: int
    findings: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether each effect is there once, in order, and the stock balances to the piece."""
        return not (self.missing or self.doubled or self.reordered or self.stock_error)


class Books:
    """The services' databases, open for reading."""

    def __init__(self, links: dict[str, psycopg.Connection[Any]]) -> None:
        self._links = links

    def read(self, database: str, query: str) -> list[tuple[Any, ...]]:
        """Ask one of them."""
        return self._links[database].execute(query.encode()).fetchall()

    def written(self) -> int:
        """Return how many rows consumers have written so far."""
        return sum(int(self.read(database, query)[0][0]) for database, query in WRITTEN.items())

    def audit(self, ledger: Ledger) -> Effects:
        """Hold the effects against the ledger, once nobody writes orders any more."""
        statuses = dict(self.read("shop", "SELECT id, status FROM orders"))
        events = [row for name in ("shop", "inventory") for row in self.read(name, "SELECT id::text FROM outbox")]
        expected = _expected(ledger, statuses)
        expected.update({("fact", event): 1 for (event,) in events if event not in ledger.invalid})
        found = self._found()
        missing, doubled = expected - found, found - expected
        gone = Counter[str]()
        for order_id, placed in ledger.placed.items():
            if statuses.get(order_id) == Status.PROCESSED:
                gone.update(pieces(placed.lines))
        stock, findings = self._stock_error(gone)
        findings += [f"missing: {what} for {which}" for what, which in list(missing)[:EXAMPLES]]
        findings += [f"doubled: {what} for {which}" for what, which in list(doubled)[:EXAMPLES]]
        rejected = sum(status == Status.REJECTED for status in statuses.values())
        [(reordered,)] = self.read("analytics", REORDERED)
        return Effects(missing.total(), doubled.total(), reordered, stock, rejected, findings)

    def _found(self) -> Counter[Effect]:
        found = Counter[Effect]()
        for what, database, query in (
            ("decision", "inventory", "SELECT order_id FROM decisions"),
            ("shipment", "shop", "SELECT order_id FROM shipments"),
            ("refund", "shop", "SELECT order_id FROM refunds"),
            ("confirmation", "notification", "SELECT about FROM mailbox WHERE subject LIKE 'we have%'"),
            ("regret", "notification", "SELECT about FROM mailbox WHERE subject LIKE 'we are sorry%'"),
            ("fact", "analytics", "SELECT event_id FROM facts"),
        ):
            found.update((what, which) for (which,) in self.read(database, query))
        return found

    def _stock_error(self, gone: Counter[str]) -> tuple[int, list[str]]:
        """Return by how many pieces the shelves differ from what went out, and from what is noted as reserved."""
        query = """SELECT sku, received - available, (SELECT coalesce(sum(quantity), 0)::bigint FROM reservations r WHERE r.sku = s.sku)
            FROM stock s"""
        error, findings = 0, []
        for sku, taken, reserved in self.read("inventory", query):
            wrong = abs(taken - gone[sku]) + abs(taken - reserved)
            if wrong:
                findings.append(f"stock: of {sku} {taken} pieces were taken, {reserved} are reserved, {gone[sku]} went out")
            error += wrong
        return error, findings


@contextmanager
def books(place: Place) -> Iterator[Books]:
    """Open the books."""
    with ExitStack() as cleanup:
        yield Books({name: cleanup.enter_context(psycopg.connect(dsn, autocommit=True)) for name, dsn in place.dsns.items()})


def _expected(ledger: Ledger, statuses: dict[str, str]) -> Counter[Effect]:
    """Return what must have been done, by what became of each order."""
    expected = Counter[Effect]()
    for order_id, placed in ledger.placed.items():
        expected["decision", order_id] = expected["confirmation", order_id] = 1
        if statuses.get(order_id) == Status.REJECTED:
            expected["regret", order_id] = 1
            if placed.paid:
                expected["refund", order_id] = 1
        else:
            expected["shipment", order_id] = 1
    return expected
