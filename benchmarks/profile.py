"""Where the microseconds of an event go, step by step, on real servers: `python -m benchmarks.profile`.

Each step of the hot path runs by itself over the same backlog, as the pipeline runs it: frames from a real slot, records to
a real broker. Figures are CPU of the thread that owns the pipeline, the best of several laps; a calibration loop beside them
(guard.py's) tells how fast the machine was. librdkafka's own threads work on another core meanwhile; theirs is what the
whole process used while records were handed over and committed, less ours. `--json` ends with a line that is a JSON object.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
import psycopg

from benchmarks.guard import Everything, Nobody, calibration_us
from benchmarks.rig import Rig, rig
from cdc import app
from cdc.avro import folder
from cdc.cli.garbage import seldom_collected
from cdc.event import Record
from cdc.outbox.router import Router
from cdc.pipeline.parking import Policy
from cdc.pipeline.relay import Relay
from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.postgres.link import READ_BYTES, PqLink
from cdc.postgres.transaction import Row, TransactionEnd, Transactions
from cdc.resilience.call import nobody_waits

ROWS, LAPS = 100_000, 5

AT_ONCE = int(os.environ.get("AT_ONCE", "500"))
"""Frames decoded, and records handed over, at a time: about what one turn of the loop holds."""

TURN_S = 10e-6
"""Pause for each frame before the next read, about what the loop does with one: a reader that does nothing else is faster than the
walsender, and finds a few frames at a time where a backlog has a full socket."""

KINDS = {"hundred_rows": 100, "single_row": 1}
"""Rows in a transaction, by the name that guard.py gives the same."""

XLOG_DATA, INSERT = b"wI"

Made = TypeVar("Made")


class Frames:
    """A Source that decodes what was recorded, so many frames at each call."""

    urgent = False

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._parts: Iterator[Sequence[bytes]] = (frames[at : at + AT_ONCE] for at in range(0, len(frames), AT_ONCE))
        self._transactions = Transactions(lambda relation: relation.name == "outbox", Lsn(0))

    def receive(self, timeout_s: float) -> list[Row | TransactionEnd]:
        """See Source; empty at the end."""
        del timeout_s
        items: list[Row | TransactionEnd] = []
        self._transactions.feed(next(self._parts, ()), items)
        return items

    def confirm(self, lsn: Lsn) -> None:
        """Nobody hears it."""


def main() -> int:
    """Measure every step and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"events of each kind (default {ROWS:,})")
    parser.add_argument("--json", action="store_true", help="end with one line that is one JSON object")
    options = parser.parse_args()
    figures = measured(options.rows)
    unit, found = figures["calibration_us"], figures["steps"]
    print(f"{'microseconds an event':24}" + "".join(f"{kind:>16}" for kind in KINDS))
    for step in found["hundred_rows"]:
        print(f"{step:24}" + "".join(f"{found[kind][step]:16.2f}" for kind in KINDS))
    print(f"a turn of the calibration loop takes {unit:.2f}; Python {platform.python_version()}")
    if options.json:
        print(orjson.dumps({"python": platform.python_version(), "calibration_us": unit, **found}).decode())
    return 0


def measured(rows: int = ROWS) -> dict[str, Any]:
    """Return the microseconds of each step for each kind, and of a turn of the calibration loop."""
    found: dict[str, dict[str, float]] = {}
    with rig() as servers:
        for kind, per_transaction in KINDS.items():
            start = _end_of_log(servers)
            servers.insert(rows, per_transaction)
            found[kind] = steps(servers, start)
    return {"rows": rows, "calibration_us": round(min(calibration_us() for _ in range(3)), 3), "steps": found}


def steps(servers: Rig, start: Lsn) -> dict[str, float]:
    """Return the microseconds that an event of the log after `start` takes, by step."""
    receive_us, everything = _best(lambda: _received(servers), 2)
    frames = [frame for frame in everything if frame[0] == XLOG_DATA and int.from_bytes(frame[1:9], "big") >= start]
    frames = [*(frame for frame in everything if frame[25] == ord("R"))][:1] + frames
    router = Router(app.mapping(servers.settings), folder.load(Path(servers.settings.schemas.folder)).encoder, 0)
    taken = [item for item in _decoded(frames) if not isinstance(item, TransactionEnd)]
    records = list(map(router.route, taken))
    with seldom_collected():
        decode_us, _ = _best(lambda: _decode(frames), LAPS)
        encode_us, _ = _best(lambda: _encoded(router, taken), LAPS)
        route_us, _ = _best(lambda: _routed(router, taken), LAPS)
        relay_us, _ = _best(lambda: _relayed(router, frames), LAPS)
        produce_us, beside_us = _produced(servers, records)
    found = {
        "receive": receive_us / sum(frame[25] == INSERT for frame in everything) * len(taken),
        "decode": decode_us,
        "encode": encode_us,
        "route and headers": route_us - encode_us,
        "relay": relay_us - decode_us - route_us,
        "produce": produce_us,
    }
    found["all, in our thread"] = sum(found.values())
    found["librdkafka's threads"] = beside_us
    return {step: round(us / len(taken), 3) for step, us in found.items()}


def _best(work: Callable[[], Made], laps: int) -> tuple[float, Made]:
    """Return the least microseconds of this thread's CPU that `work` takes, and what it made last."""
    best = float("inf")
    for _ in range(laps):
        began = time.thread_time_ns()
        made = work()
        best = min(best, (time.thread_time_ns() - began) / 1000)
    return best, made


def _end_of_log(servers: Rig) -> Lsn:
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        [end] = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("0/0",)
    return Lsn.parse(end)


def _received(servers: Rig) -> list[bytes]:
    """Read all that our slot holds; it stays where it is."""
    end, link, frames = _end_of_log(servers), PqLink(servers.dsn, "profile", 60.0), []
    link.start(servers.settings.postgres.slot, servers.settings.postgres.publication, messages=False)
    reached = Lsn(0)
    while reached < end:
        new = link.read(READ_BYTES)
        if new:
            last = new[-1]
            reached = Lsn(int.from_bytes(last[9:17] if last[0] == XLOG_DATA else last[1:9], "big"))
            frames += new
            time.sleep(len(new) * TURN_S)
        else:
            link.wait(1.0)
    link.close()
    return [frame for frame in frames if frame[0] == XLOG_DATA]


def _decoded(frames: Sequence[bytes]) -> Iterator[Row | TransactionEnd]:
    source = Frames(frames)
    while part := source.receive(0):
        yield from part


def _decode(frames: Sequence[bytes]) -> None:
    """Decode and let go, as the loop does."""
    source = Frames(frames)
    while source.receive(0):
        pass


def _encoded(router: Router, rows: Sequence[Row]) -> None:
    [kind] = {kind.encoder for kind in router._kinds.values()}  # noqa: SLF001 - the one that the rows use
    encode = kind.encode
    for row in rows:
        encode(row[3][4] or b"")


def _routed(router: Router, rows: Sequence[Row]) -> None:
    route = router.route
    for row in rows:
        route(row)


def _relayed(router: Router, frames: Sequence[bytes]) -> None:
    relay = Relay(
        source=Frames(frames),  # type: ignore[arg-type]  # of the ports only what a relay that never fails calls
        publisher=Everything(),  # type: ignore[arg-type]
        router=router,
        policy=Policy("profile", None),
        observer=Nobody(),
        position=Position(
            *("profile", 0, "1", ((1, Lsn(0)),), "cdc_profile", Fingerprint(0, 0, (), Lsn(0)), "cluster", Lsn(0), 0, "none", None),
            Existing("none", ""),
        ),
        waiting=nobody_waits,
        clock=time.monotonic,
        wall=time.time,
    )
    for _ in range(0, len(frames), AT_ONCE):
        relay.step()


def _produced(servers: Rig, records: Sequence[Record]) -> tuple[float, float]:
    """Hand records over and commit them; returns this thread's microseconds, and those of librdkafka's threads beside it."""
    publisher = app.command_publisher(servers.settings, "profile")
    publisher.fence(nobody_waits)
    publisher.route(records[0].topic, nobody_waits)
    best, beside = float("inf"), float("inf")
    for _ in range(LAPS):
        began, all_began = time.thread_time_ns(), time.process_time_ns()
        for at in range(0, len(records), AT_ONCE):
            publisher.produce(records[at : at + AT_ONCE], nobody_waits)
        ours = time.thread_time_ns() - began
        publisher.commit(None, nobody_waits)
        best = min(best, ours / 1000)
        beside = min(beside, (time.process_time_ns() - all_began - ours) / 1000)
    publisher.close()
    return best, beside


if __name__ == "__main__":
    sys.exit(main())
