"""The audit of effects finds what it is for, and the shop's domain says no where it should."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.devstack.demo.crowd import CUP, LINES, Ledger
from cdc.devstack.demo.effects import Books
from cdc.devstack.demo.shop.domain import NotAnOrder, Order, order_from, pieces, short_of
from cdc.devstack.demo.shop.events import Customer
from cdc.outbox import Event

TAKEN = {"book": 1, "tea": 2}


class Written(Books):
    """What services wrote about one processed order `a` and one rejected, refunded order `b`; a test spoils it."""

    def __init__(self) -> None:
        super().__init__({})
        self.tables: dict[str, list[tuple[Any, ...]]] = {
            "orders": [("a", "processed"), ("b", "rejected")],
            "outbox": [("e1",), ("e2",)],
            "decisions": [("a",), ("b",)],
            "shipments": [("a",)],
            "refunds": [("b",)],
            "'we have%'": [("a",), ("b",)],
            "'we are sorry%'": [("b",)],
            "facts": [("e1",), ("e2",)],
            "stock s": [(sku, taken, taken) for sku, taken in TAKEN.items()],
            "applied": [(0,)],
        }

    def read(self, database: str, query: str) -> list[tuple[Any, ...]]:
        if query == "SELECT id::text FROM outbox" and database == "inventory":
            return []
        return self.tables[max(self.tables, key=query.rfind)]  # the one that is named last


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger()
    for name, lines in (("a", LINES), ("b", [*LINES, CUP])):
        order = Order(name, Customer(id=1, name="Ada"), lines)
        made.add([Event("OrderPlaced", name, None, id=f"e{name}")], order, paid=name == "b")
    return made


def test_books_in_order_are_found_in_order(ledger: Ledger) -> None:
    found = Written().audit(ledger)
    assert found.clean
    assert (found.rejected, found.findings) == (1, [])


@pytest.mark.parametrize("table", ["decisions", "shipments", "refunds", "'we have%'", "'we are sorry%'", "facts"])
def test_a_lost_and_a_doubled_effect_are_found(ledger: Ledger, table: str) -> None:
    books = Written()
    [first, *others] = books.tables[table]
    books.tables[table] = others
    lost = books.audit(ledger)
    assert (lost.missing, lost.doubled, lost.clean) == (1, 0, False)
    books.tables[table] = [first, first, *others]
    doubled = books.audit(ledger)
    assert (doubled.missing, doubled.doubled, doubled.clean) == (0, 1, False)


def test_a_piece_too_many_and_an_event_too_early_are_found(ledger: Ledger) -> None:
    books = Written()
    books.tables["stock s"][0] = ("book", 2, 1)
    assert books.audit(ledger).stock_error == 2  # more than went out, and more than is noted
    books = Written()
    books.tables["applied"] = [(3,)]
    assert books.audit(ledger).reordered == 3
    assert not books.audit(ledger).clean


def test_an_order_that_nobody_took_is_missing(ledger: Ledger) -> None:
    books = Written()
    books.tables["orders"] = [("a", "processed"), ("b", "placed")]
    found = books.audit(ledger)
    assert found.missing == 1  # its shipment; that it was refunded all the same is one too many
    assert found.doubled == 2


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"customer": {"id": 1, "name": "Ada"}, "lines": []},
        {"customer": {"id": 1, "name": "Ada"}, "lines": [{"sku": "tea", "quantity": 0, "unitCents": 1}]},
        {"customer": {"id": "1", "name": "Ada"}, "lines": [{"sku": "tea", "quantity": 1, "unitCents": 1}]},
        {"customer": {"id": 1, "name": "Ada"}, "lines": 7},
    ],
)
def test_what_is_no_order_is_refused(body: object) -> None:
    with pytest.raises(NotAnOrder):
        order_from("a", body)


def test_an_article_on_two_lines_is_counted_once() -> None:
    assert pieces([*LINES, *LINES, CUP]) == {"book": 2, "cup": 1, "tea": 4}
    assert short_of({"cup": 1, "tea": 4}, {"cup": 1, "tea": 3}) == "tea"
    assert short_of({"cup": 1}, {}) == "cup"
    assert short_of({"cup": 1}, {"cup": 1}) is None
