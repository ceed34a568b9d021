"""The events of the schema folder as classes. Written by `cdc schemas codegen`: change the folder, not this file."""

# ruff: noqa
# fmt: off
from __future__ import annotations

import datetime as _datetime
import decimal as _decimal
import uuid as _uuid
from typing import Annotated, Literal, TypeAlias

from pydantic import AwareDatetime, Field, NaiveDatetime

from cdc.outbox.model import EventModel, Int, Long, RecordModel

__all__ = [
    "Currency",
    "Customer",
    "Line",
    "OrderPaid",
    "OrderPlaced",
    "PaymentMethod",
]


Currency: TypeAlias = Literal["EUR", "USD", "GBP"]


PaymentMethod: TypeAlias = Literal["CARD", "TRANSFER", "INVOICE"]


class OrderPaid(EventModel, avro="shop.OrderPaid", type="OrderPaid", version=1, aggregatetype="Order", key="orderId"):
    """The payment of an order arrived."""

    orderId: str
    amountCents: Long
    currency: Currency
    method: PaymentMethod


class Customer(RecordModel, avro="shop.Customer"):
    """Who ordered, as the shop knew them at that moment."""

    id: Long
    name: str
    email: None | str = None


class Line(RecordModel, avro="shop.Line"):
    """shop.Line."""

    sku: str
    quantity: Int
    unitCents: Long


class OrderPlaced(EventModel, avro="shop.OrderPlaced", type="OrderPlaced", version=1, aggregatetype="Order", key="orderId"):
    """A customer placed an order. Amounts are whole cents."""

    orderId: str
    customer: Customer
    currency: Currency
    lines: list[Line]
    totalCents: Long
    note: None | str = None
