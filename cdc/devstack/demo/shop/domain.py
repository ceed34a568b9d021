"""What an order is, and what may become of it: values in, values out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from cdc.devstack.demo.shop.events import Customer, Line, OrderPlaced


class Status(StrEnum):
    """Where an order stands. From PLACED it goes on to one of the others, once."""

    PLACED = "placed"
    PROCESSED = "processed"
    REJECTED = "rejected"


class NotAnOrder(Exception):
    """What a customer sent cannot be ordered; the words are for the customer."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order as it is placed."""

    id: str
    customer: Customer
    lines: list[Line]

    @property
    def total_cents(self) -> int:
        """What it costs."""
        return sum(line.quantity * line.unitCents for line in self.lines)

    def placed(self) -> OrderPlaced:
        """Return the event: a fat one, so that nobody has to ask for what it does not say."""
        return OrderPlaced(orderId=self.id, customer=self.customer, currency="EUR", lines=self.lines, totalCents=self.total_cents)


def order_from(order_id: str, body: Any) -> Order:  # noqa: ANN401 - what came by HTTP
    """Read a request; raises NotAnOrder."""
    try:
        order = Order(order_id, Customer.model_validate(body["customer"]), [Line.model_validate(line) for line in body["lines"]])
    except (KeyError, TypeError, ValidationError):
        raise NotAnOrder("an order has a customer {id, name} and lines of {sku, quantity, unitCents}") from None
    if not order.lines or any(line.quantity < 1 or line.unitCents < 0 for line in order.lines):
        raise NotAnOrder("an order has at least one line, and each at least one piece")
    return order


def pieces(lines: list[Line]) -> dict[str, int]:
    """Return how many pieces of each article are wanted; an article may stand on several lines."""
    wanted = Counter[str]()
    for line in lines:
        wanted[line.sku] += line.quantity
    return dict(sorted(wanted.items()))


def short_of(wanted: Mapping[str, int], available: Mapping[str, int]) -> str | None:
    """Return the first article of which there is too little, or None."""
    return next((sku for sku, quantity in wanted.items() if available.get(sku, 0) < quantity), None)
