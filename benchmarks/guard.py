"""What our own code costs for each event, as a ratio that a noisy machine does not move: `python -m benchmarks.guard`.

The real decoder, router, encoder and relay, between frames in memory and a publisher that takes everything: no server, no
socket, no librdkafka. CPU of this thread, the best of many short laps, divided by the best lap of a fixed loop of the same
kind of work (slices, look-ups, tuples, JSON). `make guard` compares with `guard.json` and warns when it has grown; it never
fails, because another Python or another processor moves the ratio as well. `--store` writes the file.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from cdc.avro import folder
from cdc.event import Record, Route
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.router import Router
from cdc.pipeline.parking import Policy
from cdc.pipeline.relay import Relay
from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.postgres.pgoutput import Begin, Column, Commit, Insert, PgoutputMessage, Relation
from cdc.postgres.transaction import Row, TransactionEnd, Transactions
from tests.simulation.pgoutput_bytes import encode, xlog_data

STORED = Path(__file__).with_name("guard.json")

GROWTH = 1.25
"""More than the noise of a best lap, less than a careless change."""

ROWS, LAPS = 200, 400

TABLE = Relation(
    16_384,
    "public",
    "outbox",
    "d",
    tuple(
        Column(name, oid, -1, key=False)
        for name, oid in (
            *(("id", 2950), ("aggregatetype", 25), ("aggregateid", 25), ("type", 25), ("payload", 3802)),
            *(("schema_version", 23), ("headers", 3802), ("occurred_at", 1184)),
        )
    ),
)

PAYLOAD = (
    b'{"note": "leave it at the door, please, if nobody is at home, thank you", "lines": [{"sku": "sku-1", "quantity": 2,'
    b' "unitCents": 1299}, {"sku": "sku-22", "quantity": 1, "unitCents": 4999}], "orderId": "o-101", "currency": "EUR",'
    b' "customer": {"id": 101, "name": "Ada Lovelace", "email": "ada@example.org"}, "totalCents": 7597}'
)


class Log:
    """A Source that decodes the same frames at each call."""

    urgent = False

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.transactions = Transactions(lambda _: True, Lsn(0))

    def receive(self, timeout_s: float) -> Sequence[Row | TransactionEnd]:
        del timeout_s
        items: list[Row | TransactionEnd] = []
        self.transactions.feed(self.frames, items)
        return items

    def confirm(self, lsn: Lsn) -> None:
        pass


class Everything:
    """A Publisher that takes all of it."""

    full = False
    transaction_timeout_s = 60.0
    taken = 0

    def route(self, topic: str, waiting: object) -> Route:
        del waiting
        return Route(topic, 6, 1_000_000, compacted=False, timestamp_before_ms=None, timestamp_after_ms=None)

    def produce(self, records: Sequence[Record], waiting: object) -> None:
        del waiting
        self.taken += len(records)

    def commit(self, position: Position, waiting: object) -> None:
        pass


class Nobody:
    """An Observer that does not look."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def frames(per_transaction: int) -> list[bytes]:
    """Return ROWS inserts in transactions of so many."""
    messages: list[PgoutputMessage] = [TABLE]
    for first in range(0, ROWS, per_transaction):
        begin = Begin(Lsn(100 * first + 100), 1_796_000_000_000_000 + first, first + 700)
        messages.append(begin)
        for number in range(first, first + per_transaction):
            event = f"76967762-f5e7-49e4-9083-{number:012x}".encode()
            occurred = b"2026-11-30 09:24:34.153142+00"
            values = (event, b"order", b"customer-%d" % (number % 50), b"OrderPlaced", PAYLOAD, None, None, occurred)
            messages.append(Insert(TABLE.oid, values))
        messages.append(Commit(begin.final_lsn, Lsn(begin.final_lsn + 48), begin.commit_time_us))
    return [xlog_data(encode(message)) for message in messages]


def event_us(per_transaction: int) -> float:
    """Return the microseconds of CPU that one event takes from frame to record."""
    log, kafka = Log(frames(per_transaction)), Everything()
    registry = folder.load(Path(__file__).parent.parent / "schemas")
    start = Position(
        *("guard", 0, "1", ((1, Lsn(0)),), "cdc_guard", Fingerprint(0, 0, (), Lsn(0)), "cluster", Lsn(0), 0, "none", None),
        Existing("none", ""),
    )

    def relay() -> Relay:
        return Relay(
            source=log,  # type: ignore[arg-type]  # of the ports only what a relay that never fails calls
            publisher=kafka,  # type: ignore[arg-type]
            router=router,
            policy=Policy("guard", None),
            observer=Nobody(),
            position=start,
            waiting=lambda: None,
            clock=time.monotonic,
            wall=time.time,
        )

    router = Router(OutboxMapping(source="/guard"), registry.encoder, 0)
    best = float("inf")
    for _ in range(LAPS):
        one = relay()
        began = time.thread_time_ns()
        one.step()
        best = min(best, time.thread_time_ns() - began)
    assert kafka.taken == ROWS * LAPS
    return best / ROWS / 1000


def calibration_us() -> float:
    """Return the microseconds of CPU of one turn of a loop that does the same kinds of things."""
    text, table = PAYLOAD, {b"%d" % i: i for i in range(100)}
    best = float("inf")
    for _ in range(LAPS):
        made = []
        began = time.thread_time_ns()
        for i in range(ROWS):
            document = orjson.loads(text)
            parts = tuple(text[j : j + 20] for j in range(i % 8, 160, 20))
            made.append((document["orderId"].encode(), parts, table.get(b"%d" % (i % 100)), b"".join(parts)))
        best = min(best, time.thread_time_ns() - began)
    return best / ROWS / 1000


def main() -> int:
    """Measure, compare, and say so."""
    parser = argparse.ArgumentParser(prog="make guard", description=__doc__)
    parser.add_argument("--store", action="store_true", help="keep what is measured as the figure to compare with")
    store = parser.parse_args().store
    gc.collect()
    gc.freeze()
    gc.disable()
    unit = calibration_us()
    ratios = {name: round(event_us(rows) / unit, 2) for name, rows in (("hundred_rows", 100), ("single_row", 1))}
    if store:
        STORED.write_bytes(orjson.dumps({"python": platform.python_version(), **ratios}, option=orjson.OPT_INDENT_2) + b"\n")
    stored = orjson.loads(STORED.read_bytes())
    for name, ratio in ratios.items():
        grown = ratio / stored[name]
        print(f"{name:14} {ratio:6.2f} calibration loops an event, stored {stored[name]:.2f} ({grown - 1:+.0%})")
        if grown > GROWTH:
            print(f"warning: an event of {name} costs {grown:.2f} times what it did", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
