"""An application of a user: an order service that writes events, as its own `mypy --strict` sees it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from cdc import Event, EventModel, InvalidEvent, Outbox, Pressure, TooBusy, event_context, load_outbox
from cdc.devstack.demo.shop.events import Customer, Line, OrderPaid, OrderPlaced
from cdc.outbox import OutboxMapping, append, append_async, append_many, use


def configure(folder: Path, config: Path | None = None) -> Outbox:
    """Choose the outbox when the application starts."""
    outbox = load_outbox(config) if config else Outbox(schemas=folder, mapping=OutboxMapping(route="{aggregatetype}"))
    use(outbox)
    return outbox


def place_order(connection: psycopg.Connection[Any], customer: int, lines: list[Line], correlation_id: str | None = None) -> Event:
    """Write an order and its event in one transaction."""
    order_id = str(uuid.uuid4())
    placed = OrderPlaced(
        orderId=order_id,
        customer=Customer(id=customer, name="Ada"),
        currency="EUR",
        lines=lines,
        totalCents=sum(line.quantity * line.unitCents for line in lines),
    )
    with event_context(correlation_id=correlation_id), connection.transaction():
        connection.execute("INSERT INTO orders VALUES (%s, %s)", (order_id, placed.totalCents))
        return append(connection, placed)


async def pay(connection: psycopg.AsyncConnection[Any], order_id: str, cents: int) -> uuid.UUID | str | int:
    """Write a payment, and tell the id of its event."""
    paid: EventModel = OrderPaid(orderId=order_id, amountCents=cents, currency="EUR", method="CARD")
    async with connection.transaction():
        event = await append_async(connection, Event.of(paid, headers={"tenant": "a"}))
    return event.id


def pay_all(connection: psycopg.Connection[Any], payments: list[OrderPaid]) -> list[Event]:
    """Write payments in one go."""
    with connection.transaction():
        return append_many(connection, payments)


def answer(connection: psycopg.Connection[Any], pressure: Pressure, body: Mapping[str, Any]) -> tuple[int, dict[str, str]]:
    """Answer a request: 429 under pressure, 422 for what is no order, 201 else."""
    busy: TooBusy | None = pressure.look(connection)
    if busy is not None:
        return 429, {"Retry-After": str(busy.retry_after_s)}
    try:
        place_order(connection, int(body["customer"]), [Line.model_validate(line) for line in body["lines"]])
    except (InvalidEvent, ValueError):
        return 422, {}
    return 201, {}
