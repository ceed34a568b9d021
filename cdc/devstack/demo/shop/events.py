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
    "OrderProcessed",
    "OrderRejected",
    "PaymentMethod",
    "StockRejected",
    "StockReserved",
    "UserRegistered",
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


class OrderProcessed(EventModel, avro="shop.OrderProcessed", type="OrderProcessed", version=1, aggregatetype="Order", key="orderId"):
    """The order has left the house. A thin event: who wants to know more asks the order service."""

    orderId: str


class OrderRejected(EventModel, avro="shop.OrderRejected", type="OrderRejected", version=1, aggregatetype="Order", key="orderId"):
    """The order is given up; what was paid is given back. Amounts are whole cents."""

    orderId: str
    reason: str
    refundCents: Long


class StockRejected(EventModel, avro="shop.StockRejected", type="StockRejected", version=1, aggregatetype="Stock", key="orderId"):
    """There is too little of one article, and nothing was reserved for the order."""

    orderId: str
    sku: str


class StockReserved(EventModel, avro="shop.StockReserved", type="StockReserved", version=1, aggregatetype="Stock", key="orderId"):
    """Every piece of an order lies ready for it."""

    orderId: str


class UserRegistered(EventModel, avro="shop.UserRegistered", type="UserRegistered", version=1, aggregatetype="User", key="userId"):
    """Somebody has an account now."""

    userId: str
    name: str
    email: str
