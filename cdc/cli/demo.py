"""`cdc demo`: see it work. Real servers, a small shop, the pipeline killed in the middle, and an audit at the end.

With consumers the shop's services run too, and a third audit holds what they did against the shop's ledger (`demo_shop`).

Strategy: `Demo` owns what was started and ends it in any case; `_act` is the story, told line by line. Two judges end it:
one over the shop's own ledger and what a consumer saw, one over the table and the topics, as `cdc verify` does.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psycopg
import typer

import cdc
from cdc import app
from cdc.audit.judge import DEFECTS, Verdict, Visible, judge
from cdc.audit.verify import visible
from cdc.cli.demo_sink import TOPIC, SinkName, broker, open_topics, sink_table
from cdc.cli.init import init
from cdc.cli.options import Json
from cdc.cli.output import console, print_json, progress, say, table
from cdc.cli.verify import audit, conclude, redelivered
from cdc.devstack import stack as servers
from cdc.devstack.demo.child import PipelineProcess
from cdc.devstack.demo.crowd import Crowd, Ledger, writers_for
from cdc.devstack.demo.shop import data
from cdc.devstack.demo.watcher import Watcher
from cdc.devstack.process import held_ports, port_of
from cdc.devstack.stack import Stack
from cdc.errors import CdcError, ConfigurationError
from cdc.event import Seen
from cdc.outbox import Outbox
from cdc.settings import Settings, load

if TYPE_CHECKING:
    from cdc.cli.demo_shop import Services

KILL_AT = (0.3, 0.6)
"""The pipeline is killed when these parts of the orders are placed; without a number of orders, every KILL_EVERY_S."""

KILL_EVERY_S = 20.0

DRAIN_WITHOUT_PROGRESS_S = 60.0
"""When nothing has come for so long, the audit says what is missing."""

AUDIT_TIMEOUT_S = 60.0

WATCH_S = 0.05
"""Between two looks at the shop and the watcher."""


BY_CONSUMERS = (b"OrderProcessed", b"OrderRejected")
"""Types of events that the shop's consumers write: the ledger does not know them, the audit of the table does."""


def demo(
    orders: Annotated[int | None, typer.Option(metavar="N", min=1, help="Orders to place; without it, until Ctrl-C.")] = None,
    writers: Annotated[
        int | None,
        typer.Option(min=1, max=32, help="Connections that place orders; by default 4, with consumers what the rate needs."),
    ] = None,
    rate: Annotated[float, typer.Option(min=1, help="Orders a second at most.")] = 1_000,
    seconds: Annotated[float | None, typer.Option(metavar="S", min=1, help="Close the shop after so long.")] = None,
    consumers: Annotated[bool, typer.Option("--consumers", help="Run the shop's services too, and audit what they did.")] = False,
    kill_consumers: Annotated[
        float | None, typer.Option(metavar="S", min=0.1, help="Run them, and kill one (SIGKILL) every so many seconds.")
    ] = None,
    sink: Annotated[SinkName, typer.Option(help="Where the pipeline publishes.")] = SinkName.KAFKA,
    seed: Annotated[int, typer.Option(help="Makes the same orders again.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the servers up, and say where they are.")] = False,
    as_json: Json = False,
) -> None:
    """See it work: real servers, a small shop, the pipeline killed in the middle, an audit at the end."""
    if keep and sink is not SinkName.KAFKA:
        msg = f"--keep leaves PostgreSQL and Kafka up, and no {sink.label}"
        raise ConfigurationError(msg, "leave it out; `cdc dev up` starts servers that stay")
    with ExitStack() as cleanup:
        served = consumers or kill_consumers is not None
        play = Demo(orders, writers or writers_for(rate, crowded=served), rate, seed, seconds, keep=keep, cleanup=cleanup)
        play.served = served
        play.kill_consumers_s = kill_consumers
        play.sink = sink
        play.set_up()
        play.act()
        verdicts = play.audit()
        document = play.document(verdicts)
    if as_json:
        print_json(document)
    else:
        _show(document, verdicts, play.services)
    for verdict in verdicts:
        conclude(verdict)
    if play.services is not None:
        play.services.conclude()


@dataclass
class Demo:
    """One performance."""

    orders: int | None
    writers: int
    rate: float
    seed: int
    seconds: float | None
    keep: bool = field(kw_only=True)
    cleanup: ExitStack = field(kw_only=True)
    served: bool = False
    kill_consumers_s: float | None = None
    services: Services | None = None
    sink: SinkName = SinkName.KAFKA
    _seen_at_start: int = 0
    began: float = field(default_factory=time.monotonic)

    def set_up(self) -> None:
        """Start the servers, make the shop's database, and do what `cdc init` does."""
        self._tell(f"starting PostgreSQL and {self.sink.label}")
        folder = _kept_folder() if self.keep else None
        stack = Stack(folder, dies_with_us=not self.keep, broker=broker(self.sink))
        self.stack = self._own(stack, lambda stack: None if self.keep else stack.close())
        self.stack.start()
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="cdc-demo-"))
            self.cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        else:
            servers.record(self.stack, folder)
        self.dsn = self.stack.postgres.dsn("shop")
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        port = port_of(self._own(held_ports(1)[0], socket.socket.close))
        self.config = folder / "cdc.toml"
        self.config.write_text(_configuration("shop", self.stack, port))
        self.settings: Settings = load(self.config)
        self._tell("cdc init")
        init(config=self.config, create_table=True)
        self.ledger = Ledger()
        if self.served:
            self._set_up_services(folder)
        else:
            with psycopg.connect(self.dsn) as connection:
                connection.execute(data.DDL)
        self.pipeline = self._own(PipelineProcess(self.config, port), PipelineProcess.stop)
        self.pipeline.start()
        topics = [TOPIC, self.settings.topics.dead_letter]
        open_topics(self.settings, [TOPIC])
        self.subscriber = self._own(app.subscriber(self.settings), lambda reader: reader.close())
        self.watcher = self._own(Watcher(self.subscriber, topics, self._visible), Watcher.close)
        outbox = Outbox(schemas=self.settings.schemas.folder)
        crowd = Crowd(self.dsn, outbox, self.ledger, self.orders, writers=self.writers, rate=self.rate, seed=self.seed)
        self.shop = self._own(crowd, Crowd.close)

    def _set_up_services(self, folder: Path) -> None:
        from cdc.cli.demo_shop import Services  # noqa: PLC0415 - it brings libraries that the plain demo does not need

        self._tell("the shop's services: inventory, warehouse, saga, notification, analytics, and the API")
        tell, cleanup = self._tell, self.cleanup
        self.services = Services(
            folder, self.stack, self.ledger, self.kill_consumers_s, self.seed, tell=tell, configuration=_configuration, cleanup=cleanup
        )
        self.services.set_up(self.settings, self.orders or self.rate * (self.seconds or 60))

    def act(self) -> None:
        """Open the shop, kill the pipeline while it is at work, and wait until everything has come."""
        self.watcher.open()
        self.pipeline.wait_up()
        self._tell("the pipeline runs; the shop opens" + ("" if self.orders or self.seconds else ", until Ctrl-C"))
        self.opened_at = time.monotonic()
        self.shop.open()
        if self.services is not None:
            self.services.open()
        try:
            with progress("orders", self.orders) as step:
                self._sell(step)
        except KeyboardInterrupt:
            self._tell("closing")
        self.shop.close()
        if self.services is not None:
            self.services.close()
        self._kill_at_least_once()
        self._tell(
            f"the shop is closed: {self.shop.placed:,} orders, {len(self.ledger.rows):,} rows, {self.shop.rolled_back:,} rolled back"
        )
        with progress("records", len(self.ledger.rows)) as step:
            self._drain(step)
        if self.services is not None:
            self._tell("waiting for the consumers")
            self.services.drain()

    def audit(self) -> list[Verdict]:
        """Judge the ledger against what the watcher saw, and the table against the topics."""
        self._tell("audit: the shop's ledger and the outbox table against the committed records")
        if self.sink is SinkName.RABBITMQ:  # whoever has RabbitMQ's lease has the position alone
            self.pipeline.stop()
        verdicts = [audit(self.settings, None, AUDIT_TIMEOUT_S, _nothing)]
        if self.services is not None:
            verdicts.append(self.services.verdict())
        self.watcher.close()
        by_ledger = judge(self.ledger.rows, self.watcher.records)
        self.pipeline.stop()
        return [by_ledger, *verdicts]

    def document(self, verdicts: list[Verdict]) -> dict[str, Any]:
        """Return what `--json` prints; of the judges' counts the largest one."""
        documents = [verdict.document() for verdict in verdicts]
        seconds = max(self.watcher.last_at - self.opened_at, 0.001)
        document: dict[str, Any] = {
            "orders": self.shop.placed,
            **{name: max(each[name] for each in documents) for name in documents[0]},
            "kills": self.pipeline.kills,
            "redelivered": redelivered(self.subscriber),
            "rolled_back": self.shop.rolled_back,
            "events_per_s": round(len(self.watcher.records) / seconds),
            "latency_ms": {"p50": self.watcher.latency_ms(0.5), "p99": self.watcher.latency_ms(0.99)},
            "seconds": round(time.monotonic() - self.began, 1),
        }
        if self.services is not None:
            document |= self.services.document()
        if self.keep:
            document |= {"postgres_dsn": self.dsn, "bootstrap_servers": self.stack.kafka.bootstrap_servers, "config": str(self.config)}
        return document

    def _sell(self, step: Callable[[float], object]) -> None:
        done, kills = 0, [] if self.orders is None else [round(self.orders * share) for share in KILL_AT]
        next_kill_at = self.opened_at + KILL_EVERY_S
        while self.shop.busy:
            time.sleep(WATCH_S)
            step(self.shop.placed - done)
            done = self.shop.placed
            self._must_run()
            if self.seconds is not None and time.monotonic() - self.opened_at >= self.seconds:
                return
            due = done >= kills[0] if kills else self.orders is None and time.monotonic() >= next_kill_at
            if due and self.watcher.seen > self._seen_at_start:
                del kills[:1]
                next_kill_at = time.monotonic() + KILL_EVERY_S
                self._kill()

    def _kill(self) -> None:
        self.pipeline.kill()
        self.watcher.interrupted()
        self._seen_at_start = self.watcher.seen
        self._tell(f"killed the pipeline (SIGKILL) after {self.watcher.seen:,} records, and started it again")
        self.pipeline.start()

    def _kill_at_least_once(self) -> None:
        if self.pipeline.kills == 0:
            self._kill()

    def _drain(self, step: Callable[[float], object]) -> None:
        seen, progress_at = 0, time.monotonic()
        while self.watcher.seen < len(self.ledger.rows) and time.monotonic() - progress_at < DRAIN_WITHOUT_PROGRESS_S:
            time.sleep(WATCH_S)
            self._must_run()
            if (now := self.watcher.seen) > seen:
                step(now - seen)
                seen, progress_at = now, time.monotonic()

    def _must_run(self) -> None:
        if self.services is not None:
            self.services.turn()
        code = self.pipeline.exit_code
        if code is not None:
            msg = f"the pipeline ended with exit code {code}"
            raise CdcError(msg, f"see {self.pipeline.log}; run the demo with --keep to find it there afterwards")

    def _visible(self, seen: Seen) -> Visible | None:
        if ("ce_type", BY_CONSUMERS[0]) in seen.headers or ("ce_type", BY_CONSUMERS[1]) in seen.headers:
            return None
        return visible(seen, self.settings.name, self.settings.outbox.source, self.settings.topics.dead_letter)

    def _own(self, thing: Any, ended: Callable[[Any], object]) -> Any:  # noqa: ANN401 - what comes in goes out
        self.cleanup.callback(ended, thing)
        return thing

    def _tell(self, text: str) -> None:
        say(f"{time.monotonic() - self.began:6.1f} s  {text}")


def _configuration(name: str, stack: Stack, port: int) -> str:
    schemas = Path(cdc.__file__).parents[1] / "schemas"
    if not schemas.is_dir():
        msg = f"the demo's schemas are not at {schemas}"
        raise ConfigurationError(msg, "run the demo from a checkout: make demo")
    return f"""name = "{name}"

[postgres]
dsn = "{stack.postgres.dsn(name, "cdc")}"
admin_dsn = "{stack.postgres.dsn(name)}"

[schemas]
folder = "{schemas}"

{sink_table(stack, name)}

[http]
listen = "127.0.0.1:{port}"
"""


def _kept_folder() -> Path:
    """Return the folder of servers that stay, emptied: the demo before may have left some."""
    folder = servers.state_folder("demo")
    if servers.down(folder):
        say("stopped the servers of the demo before")
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _show(document: dict[str, Any], verdicts: list[Verdict], services: Services | None) -> None:
    out = console()
    latency = document["latency_ms"]
    went_in = [("orders", document["orders"]), ("outbox rows", document["rows"]), ("orders rolled back", document["rolled_back"])]
    came_out = [(name.replace("_", " "), document[name]) for name in ("events", "dead_letters")]
    out.print(table(("went in", ""), went_in))
    out.print(table(("came out", ""), came_out))
    out.print(table(("wrong", ""), [(name, document[name]) for name in DEFECTS]))
    if services is not None:
        _show_services(document)
    if document["redelivered"]:
        out.print(f"{document['redelivered']:,} records came more than once: RabbitMQ delivers at least once, the effects are what counts")
    out.print(f"{document['events_per_s']:,} records/s, commit to consumer p50 {latency['p50']} ms, p99 {latency['p99']} ms, ", end="")
    out.print(f"the pipeline killed {times(document['kills'])}: ", end="")
    out.print("nothing was lost, doubled, torn or out of order" if all(each.clean for each in verdicts) else "the audit found something")
    for finding in (finding for verdict in verdicts for finding in verdict.findings):
        out.print(f"{finding.kind}: {finding.what}")
    for text in services.effects.findings if services is not None else ():
        out.print(text)
    for name in ("postgres_dsn", "bootstrap_servers", "config"):
        if name in document:
            out.print(f"{name:18} {document[name]}")
    if document["dead_letters"]:
        out.print("the dead letters are orders that the shop writes wrongly on purpose")
    if "config" not in document:
        out.print("next: the README's quick start; or `cdc demo --keep`, whose servers stay for cdc status, tail and dead-letters list")
    else:
        out.print(f"next: cdc dead-letters list --config {document['config']}")
        out.print(f"stop them with: cdc dev down --dir {Path(document['config']).parent}")


def _show_services(document: dict[str, Any]) -> None:
    out = console()
    names = ("effects_missing", "effects_doubled", "effects_reordered", "stock_error")
    out.print(table(("consumers", ""), [(name.replace("_", " "), document[name]) for name in names]))
    out.print(f"{document['rejected']:,} orders were rejected; consumers killed {times(document['consumer_kills'])}")
    answered, live = document["http_ms"], document["live_ms"]
    out.print(f"{document['http_orders']:,} orders by HTTP: answered p50 {answered['p50']} ms, p99 {answered['p99']} ms; ", end="")
    out.print(f"sent out, and on the customer's page p50 {live['p50']} ms later")


def times(count: int) -> str:
    """Say how often."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _nothing(*_: object) -> None:
    """Nobody has to be kept waiting."""
