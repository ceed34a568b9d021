"""The demo's other side: the shop's services, their databases and inventory's pipeline, and the audit of what they did."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc.audit.judge import Verdict
from cdc.cli.demo_sink import consumer_sink, open_topics
from cdc.cli.init import init
from cdc.cli.verify import audit
from cdc.devstack.demo.child import PipelineProcess
from cdc.devstack.demo.crowd import SCARCE, Ledger
from cdc.devstack.demo.customers import Customers, percentile
from cdc.devstack.demo.effects import Effects, books
from cdc.devstack.demo.shop.place import ORDERS, STOCK, USERS, Place
from cdc.devstack.demo.staff import Staff, furnish, make_databases
from cdc.devstack.process import held_ports, port_of
from cdc.devstack.stack import Stack
from cdc.errors import AuditFailed
from cdc.settings import Settings, load

MAIL_FAILS: Final = 0.002
"""The share of mails that the mail server refuses at first."""

DRAIN_WITHOUT_PROGRESS_S: Final = 60.0
"""When no consumer has written for so long, the audit says what is missing."""

LOOK_S, LOOK_MOST_S, LOOK_REST = 0.25, 2.0, 4
"""Between two looks at what was written; after one that took long, so many times as long: the consumers need the time as well."""

AUDIT_TIMEOUT_S: Final = 60.0


@dataclass
class Services:
    """The services of one performance; `every_s` is the time between two kills of a consumer, None for none."""

    folder: Path
    stack: Stack
    ledger: Ledger
    every_s: float | None
    seed: int
    tell: Callable[[str], None] = field(kw_only=True)
    configuration: Callable[[str, Stack, int], str] = field(kw_only=True)
    cleanup: ExitStack = field(kw_only=True)

    def set_up(self, settings: Settings, expected_orders: float) -> None:
        """Make the databases, start inventory's pipeline and all services."""
        ports = held_ports(2)
        for held in ports:
            self.cleanup.callback(held.close)
        pipeline_port, port = map(port_of, ports)
        dsns = make_databases(self.stack.postgres.dsn(), self.stack.postgres.dsn)
        self.place = Place(consumer_sink(self.stack), settings.schemas.folder, dsns, port, MAIL_FAILS)
        config = self.folder / "inventory.toml"
        config.write_text(self.configuration("inventory", self.stack, pipeline_port))
        self.settings = load(config)
        init(config=config, create_table=True)
        furnish(self.place, cups=max(10, round(expected_orders * SCARCE / 10)))
        open_topics(settings, self.place.topics(ORDERS, STOCK, USERS))
        self._pipeline = PipelineProcess(config, pipeline_port)
        self.cleanup.callback(self._pipeline.stop)
        self._pipeline.start()
        place = self.folder / "place.json"
        self.place.write(place)
        self._staff = Staff(place, self.every_s, self.seed, tell=self.tell)
        self.cleanup.callback(self._staff.stop)
        self._staff.start(port)
        self._pipeline.wait_up()
        self._customers = Customers(port, self.ledger)
        self.cleanup.callback(self._customers.close)

    def open(self) -> None:
        """Customers may come by HTTP as well; consumers are killed from now on."""
        self._staff.open()
        self._customers.open()

    def turn(self) -> None:
        """Look after the processes; to be called often, by the thread that set them up."""
        self._staff.turn()

    def close(self) -> None:
        """No more orders by HTTP."""
        self._customers.close()

    def drain(self) -> None:
        """Wait until every order has had its effects, or nothing comes any more; then let the services end."""
        written, progress_at, look_s = -1, time.monotonic(), LOOK_S
        with books(self.place) as open_books:
            while time.monotonic() - progress_at < DRAIN_WITHOUT_PROGRESS_S:
                time.sleep(look_s)
                self._staff.turn(closing=True)
                began = time.monotonic()
                if (now := open_books.written()) != written:
                    written, progress_at = now, time.monotonic()
                else:
                    self.effects: Effects = open_books.audit(self.ledger)
                    if not self.effects.missing and self._staff.all_were_killed:
                        break
                look_s = min(max(LOOK_S, LOOK_REST * (time.monotonic() - began)), LOOK_MOST_S)
            self._customers.leave()
            self._staff.stop()
            self.effects = open_books.audit(self.ledger)

    def verdict(self) -> Verdict:
        """Judge inventory's table against its topic, and end its pipeline."""
        if self.settings.sink == "rabbitmq":  # whoever has RabbitMQ's lease has the position alone
            self._pipeline.stop()
        verdict = audit(self.settings, None, AUDIT_TIMEOUT_S, _nothing)
        self._pipeline.stop()
        return verdict

    def document(self) -> dict[str, Any]:
        """Return what `--json` tells of the services."""
        effects, customers = self.effects, self._customers
        return {
            "effects_missing": effects.missing,
            "effects_doubled": effects.doubled,
            "effects_reordered": effects.reordered,
            "stock_error": effects.stock_error,
            "rejected": effects.rejected,
            "consumer_kills": self._staff.kills,
            "http_orders": len(customers.answered_ms) - customers.turned_away,
            "http_turned_away": customers.turned_away,
            "http_ms": {"p50": percentile(customers.answered_ms, 0.5), "p99": percentile(customers.answered_ms, 0.99)},
            "live_ms": {"p50": percentile(customers.live_ms, 0.5)},
        }

    def conclude(self) -> None:
        """Raise AuditFailed if an effect is missing, there twice or out of order, or if the stock does not balance."""
        found = self.effects
        if not found.clean:
            counts = f"{found.missing} missing, {found.doubled} doubled, {found.reordered} reordered"
            raise AuditFailed(f"effects: {counts}; stock is wrong by {found.stock_error}", "see the findings above")


def _nothing(*_: object) -> None:
    """Nobody has to be kept waiting."""
