"""The shop's services as processes: set up, started, killed at random and started again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg

from cdc.devstack.demo.child import Service
from cdc.devstack.demo.shop import analytics, data, inventory, notification, saga, warehouse
from cdc.devstack.demo.shop.__main__ import API, CONSUMERS
from cdc.devstack.demo.shop.place import DATABASES, Place
from cdc.errors import CdcError

PLENTY = 10_000_000
"""Pieces of what never runs out."""

DDL = {
    "shop": data.DDL,
    "inventory": inventory.DDL,
    "notification": notification.DDL,
    "analytics": analytics.DDL.format(table="facts"),
}


def make_databases(admin_dsn: str, dsn: Callable[[str], str]) -> dict[str, str]:
    """Create the databases that are missing; return their connection strings."""
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        there = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        for name in DATABASES:
            if name not in there:
                connection.execute(f"CREATE DATABASE {name}".encode())
    return {name: dsn(name) for name in DATABASES}


def furnish(place: Place, cups: int) -> None:
    """Make tables and put goods on the shelves: cups are scarce."""
    for name, statements in DDL.items():
        with psycopg.connect(place.dsns[name]) as connection:
            connection.execute(statements.encode())
    with psycopg.connect(place.dsns["inventory"]) as connection:
        for sku, quantity in (("book", PLENTY), ("tea", PLENTY), ("cup", cups)):
            inventory.receive(connection, sku, quantity)
    for make in (inventory.inventory, warehouse.warehouse, saga.saga, notification.notification, analytics.analytics):
        consumer = make(place)
        consumer.create_tables()
        if "rabbitmq" in place.sink:  # a queue gets what is published from the time on at which it is bound
            consumer.create_topics()


class Staff:
    """The services. `every_s` is the time between two kills of a consumer, None for none."""

    def __init__(self, file: Path, every_s: float | None, seed: int, *, tell: Callable[[str], None]) -> None:
        self._consumers = [Service(name, file) for name in CONSUMERS]
        self._api = Service(API, file)
        self._every_s = every_s
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._round: list[Service] = []
        self._next_at = 0.0
        self._tell = tell

    def __repr__(self) -> str:
        return f"<Staff kills={self.kills}>"

    def start(self, port: int) -> None:
        """Start all of them, and wait until the API listens."""
        for service in (self._api, *self._consumers):
            service.start()
        self._api.wait_listening(port)

    def open(self) -> None:
        """The hunt begins."""
        self._next_at = time.monotonic() + (self._every_s or 0)

    def turn(self, *, closing: bool = False) -> None:
        """Look at all of them, and kill one if it is time; to be called from the thread that started them.

        When the shop is closing, only who was never killed still has that to come.
        """
        for service in (self._api, *self._consumers):
            if service.exit_code is not None:
                msg = f"the shop's {service.name} ended with exit code {service.exit_code}"
                raise CdcError(msg, f"see {service.log}; run the demo with --keep to find it there afterwards")
        if self._every_s is not None and time.monotonic() >= self._next_at and not (closing and self.all_were_killed):
            self._kill()
            self._next_at = time.monotonic() + self._every_s

    @property
    def kills(self) -> int:
        """How often a consumer was killed."""
        return sum(service.kills for service in self._consumers)

    @property
    def all_were_killed(self) -> bool:
        """Whether each was killed at least once, if they are to be killed."""
        return self._every_s is None or all(service.kills for service in self._consumers)

    def stop(self) -> None:
        """Let all of them end."""
        with ExitStack() as each:
            for service in (*self._consumers, self._api):
                service.ask_to_end()
                each.callback(service.stop)

    def _kill(self) -> None:
        """Kill one of those that were spared longest: in each round every one has its turn, in an order left to chance."""
        if not self._round:
            self._round = self._chance.sample(self._consumers, len(self._consumers))
        victim = self._round.pop()
        victim.kill()
        victim.start()
        self._tell(f"killed {victim.name} (SIGKILL), and started it again")
