"""The shop on real servers: its services side by side, and their books balance to the piece (I11)."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from websockets.sync.client import connect

from cdc.avro import folder
from cdc.avro.codegen_models import module
from cdc.consumer import Consumer
from cdc.devstack.demo.shop import analytics, data, inventory, notification, saga, warehouse
from cdc.devstack.demo.shop.api import Api
from cdc.devstack.demo.shop.place import DATABASES, ORDERS, STOCK, USERS, Place
from cdc.devstack.process import held_ports, port_of
from cdc.outbox import Pressure
from tests.consumers import consuming
from tests.docs.pages import ROOT
from tests.pipeline import Pipeline
from tests.waiting import wait_for

Ask = Callable[..., tuple[int, dict[str, Any], dict[str, str]]]

CUP = {"sku": "cup", "quantity": 1, "unitCents": 700}
TEA = {"sku": "tea", "quantity": 2, "unitCents": 450}
PIECES = 10


class Shop(NamedTuple):
    """One database and one pipeline for all services, which do not know; `ask` is a customer."""

    place: Place
    ask: Ask
    execute: Callable[..., list[tuple[Any, ...]]]

    def ordered(self, *lines: dict[str, Any], **headers: str) -> str:
        """Place an order; return its id."""
        body = {"customer": {"id": 7, "name": "Ada"}, "lines": list(lines)}
        status, told, _ = self.ask("POST", "/orders", body, **headers)
        assert status == 201, told
        return str(told["orderId"])

    def wait_status(self, order_id: str, status: str) -> None:
        """Wait until an order has come so far."""
        wait_for(lambda: self.ask("GET", f"/orders/{order_id}")[1]["status"] == status, 60, f"{order_id} is {status}")

    def wait_rows(self, query: str, expected: list[tuple[Any, ...]]) -> None:
        """Wait until a query has this answer."""
        wait_for(lambda: self.execute(query) == expected, 60, f"{query} gives {expected}")


@pytest.fixture
def shop(pipeline: Pipeline) -> Iterator[Shop]:
    pipeline.set(schemas__folder=str(ROOT / "schemas"))
    pipeline.init()
    for about in (ORDERS, STOCK, USERS):
        pipeline.make_topic(f"{pipeline.name}.{about}", partitions=3)
    pipeline.start()
    [held] = held_ports(1)
    place = Place(
        {"kafka": {"bootstrap.servers": pipeline.bootstrap}},
        str(ROOT / "schemas"),
        dict.fromkeys(DATABASES, pipeline.dsn),
        port_of(held),
        route=pipeline.name,
        prefix=f"{pipeline.name}-",
    )
    for statements in (data.DDL, inventory.DDL, notification.DDL, analytics.DDL.format(table="facts")):
        pipeline.execute(statements)
    for sku, pieces in (("cup", PIECES), ("tea", 1_000)):
        inventory.receive(pipeline.connection, sku, pieces)
    warehouse.warehouse(place).create_tables()
    with serving(Api(place, Pressure(pipeline.slot_name)), place.port) as ask:
        pipeline.wait_ready()
        yield Shop(place, ask, pipeline.execute)
    held.close()


@contextmanager
def serving(api: Api, port: int) -> Iterator[Ask]:
    """Serve the API in a thread, and give what asks it."""
    server = uvicorn.Server(
        uvicorn.Config(api.app(), host="127.0.0.1", port=port, log_config=None, log_level="warning", ws="websockets-sansio")
    )
    thread = threading.Thread(target=server.run)
    thread.start()

    def ask(method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), told, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.loads(answer.read()), {name.lower(): value for name, value in answer.headers.items()}
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read()), {name.lower(): value for name, value in error.headers.items()}

    try:
        wait_for(lambda: server.started or not thread.is_alive(), 60, "the API listens")
        yield ask
    finally:
        server.should_exit = True
        thread.join(60)


def kitchen(place: Place) -> list[Consumer]:
    """The services behind an order; several workers of inventory compete for the same shelf."""
    return [inventory.inventory(place, batch=1, workers=3), warehouse.warehouse(place), saga.saga(place)]


def mail(shop: Shop, fails: float = 0.0) -> closing[notification.MailServer]:
    """A mail server that refuses so large a share of what it is asked."""
    return closing(notification.MailServer(shop.place.dsns["notification"], fails))


def test_fifty_orders_at_once_for_the_last_ten_pieces(shop: Shop) -> None:
    with consuming(*kitchen(shop.place)):
        with ThreadPoolExecutor(50) as crowd:
            orders = list(crowd.map(lambda _: shop.ordered(CUP, TEA), range(50)))
        shop.wait_rows("SELECT status, count(*) FROM orders GROUP BY 1 ORDER BY 1", [("processed", PIECES), ("rejected", 50 - PIECES)])
    assert len(set(orders)) == 50
    assert shop.execute("SELECT sku, available FROM stock ORDER BY sku") == [("cup", 0), ("tea", 1_000 - 2 * PIECES)]
    assert shop.execute("SELECT sku, sum(quantity)::int FROM reservations GROUP BY 1 ORDER BY 1") == [("cup", PIECES), ("tea", 2 * PIECES)]
    assert shop.execute("SELECT count(*), count(DISTINCT order_id) FROM shipments") == [(PIECES, PIECES)]
    assert shop.execute("SELECT type, count(*) FROM outbox GROUP BY 1 ORDER BY 1") == [
        ("OrderPlaced", 50),
        ("OrderProcessed", PIECES),
        ("OrderRejected", 50 - PIECES),
        ("StockRejected", 50 - PIECES),
        ("StockReserved", PIECES),
    ]


def test_what_was_done_for_an_order_that_fails_is_undone(shop: Shop) -> None:
    too_much = shop.ordered(TEA, CUP | {"quantity": PIECES + 1})
    assert shop.ask("POST", f"/orders/{too_much}/payment", {"amountCents": 8_600})[0] == 201
    taken_back = shop.ordered(CUP)
    with mail(shop) as server, consuming(inventory.inventory(shop.place), notification.notification(shop.place, server)):
        shop.wait_rows("SELECT available FROM stock WHERE sku = 'cup'", [(PIECES - 1,)])  # nobody has sent it out yet
        assert shop.ask("DELETE", f"/orders/{taken_back}")[0] == 200
        shop.wait_rows("SELECT available FROM stock WHERE sku = 'cup'", [(PIECES,)])
        with consuming(warehouse.warehouse(shop.place), saga.saga(shop.place)):
            shop.wait_status(too_much, "rejected")
            gone = shop.ordered(CUP)
            shop.wait_status(gone, "processed")  # behind the reservation of the order that was taken back
        shop.wait_rows(
            "SELECT about, count(*) FROM mailbox WHERE subject LIKE 'we are sorry%' GROUP BY 1 ORDER BY 1",
            sorted([(too_much, 1), (taken_back, 1)]),
        )
    assert shop.execute("SELECT order_id, cents FROM refunds") == [(too_much, 8_600)]
    assert shop.execute("SELECT order_id FROM shipments") == [(gone,)]
    assert shop.execute("SELECT sku, available FROM stock ORDER BY sku") == [("cup", PIECES - 1), ("tea", 1_000)]
    assert shop.ask("POST", f"/orders/{too_much}/payment", {"amountCents": 1})[0] == 409
    assert shop.ask("DELETE", f"/orders/{gone}")[0] == 409


def test_a_request_its_answer_and_all_that_follows(shop: Shop) -> None:
    told = turned_away_then_answered(shop)
    expected = [("OrderPlaced", "c1"), ("OrderProcessed", "c1"), ("StockReserved", "c1"), ("UserRegistered", "c2")]
    # Of two mails one is refused at first, and sent once all the same.
    with (
        mail(shop, 0.5) as server,
        consuming(*kitchen(shop.place), analytics.analytics(shop.place), notification.notification(shop.place, server)),
    ):
        with connect(f"ws://127.0.0.1:{shop.place.port}/orders/{told['orderId']}/live") as page:
            while (news := json.loads(page.recv(60)))["status"] != "processed":
                assert news["orderId"] == told["orderId"]
        status, user, _ = shop.ask("POST", "/users", {"name": "Ada", "email": "ada@example.com"}, X_Correlation_ID="c2")
        assert status == 201
        mails = [("ada@example.com", "welcome, Ada", user["userId"]), ("Ada", "we have your order", told["orderId"])]
        shop.wait_rows("SELECT recipient, subject, about FROM mailbox ORDER BY subject DESC", mails)
        shop.wait_rows("SELECT type, correlation_id FROM facts ORDER BY type", expected)
        # A new question: everything from the start, into a table of its own.
        shop.execute(analytics.DDL.format(table="again"))
        with consuming(analytics.analytics(shop.place, name="analytics-2", table="again")):
            shop.wait_rows("SELECT type, correlation_id FROM again ORDER BY type", expected)
    assert shop.execute("SELECT count(*) FROM orders") == [(1,)]


def turned_away_then_answered(shop: Shop) -> dict[str, Any]:
    """Order at a shop that is too busy and at one that is not, in every way there is; return the one answer."""
    body = {"customer": {"id": 7, "name": "Ada"}, "lines": [TEA]}
    [held] = held_ports(1)
    busy = Api(replace(shop.place, prefix="busy-" + shop.place.prefix), Pressure("none", max_lag_bytes=-1))
    with closing(held), serving(busy, port_of(held)) as ask:
        status, told, headers = ask("POST", "/orders", body)
    assert (status, headers["retry-after"]) == (429, "5"), told
    status, told, headers = shop.ask("POST", "/orders", body, Idempotency_Key="k1", X_Correlation_ID="c1")
    assert (status, headers["x-correlation-id"]) == (201, "c1")
    assert shop.ask("POST", "/orders", body, Idempotency_Key="k1")[:2] == (201, told)
    assert shop.ask("POST", "/orders", body | {"lines": [CUP]}, Idempotency_Key="k1")[0] == 422
    assert shop.ask("POST", "/orders", {"lines": []})[0] == 422
    assert len(shop.ask("GET", f"/orders/{told['orderId']}")[2]["x-correlation-id"]) == 32
    return told


def test_the_generated_classes_are_those_of_the_schema_folder() -> None:
    written = (Path(data.__file__).parent / "events.py").read_text()
    assert written == module(folder.load(ROOT / "schemas")), "cdc schemas codegen --out"
