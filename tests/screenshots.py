"""Pictures of the status page for the manual, `make screenshots`: an hour that was made up, shown by the real endpoint in a real browser.

The hour holds a rush, a silent Kafka, a restarted PostgreSQL and some rows that did not fit their schema.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Literal

from cdc.audit.dead_letters import Letter
from cdc.avro import folder
from cdc.observe.history import SAMPLE_S
from cdc.observe.http import HttpServer
from cdc.observe.observer import PipelineObserver
from cdc.observe.web import create_app
from cdc.pipeline.supervisor import State
from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.postgres.server import Server, SlotState
from tests import packages
from tests.browser import DESKTOP, PHONE, Browser

ROOT = Path(__file__).parents[1]

PICTURES = ROOT / "docs" / "images"

START_S = 1_767_261_600.0
"""2026-01-01 10:00 UTC."""

SAMPLES = 719

FAULTS = {
    (250, 256): (State.STREAMING, "Kafka has not answered for 3 s"),
    (256, 268): (State.BACKOFF, "kafka: _TIMED_OUT: the commit was not answered within 60 s"),
    (520, 524): (State.BACKOFF, "PostgreSQL closed the replication connection: terminating connection due to administrator command"),
}
"""Samples from and to, and what was wrong then."""

LETTERS = (
    (120, "schema", "$.lines[2].quantity: a long expected, a string came"),
    (395, "schema", "$.customer.email: the field is missing and has no default"),
    (601, "size", "1,262,144 bytes are more than topic 'shop.order' takes (max.message.bytes 1,048,588)"),
)

TOPICS = (("shop.order", 0.62, 412), ("shop.payment", 0.23, 188), ("shop.stock", 0.15, 96))


class Hour:
    """The clock of a process that has been running for an hour."""

    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now

    def us(self) -> int:
        return int(self.now * 1_000_000)


def observed() -> PipelineObserver:
    """Return what an observer has seen in that hour."""
    hour = Hour()
    watch = PipelineObserver("shop", monotonic=hour, wall_us=hour.us)
    watch.state(State.OPENING, "")
    watch.state(State.STREAMING, "")
    end, slot = Lsn(0x2A_5000_0000), SlotState("cdc_shop", "pgoutput", "shop", 4711, "reserved", None, Lsn(0), Lsn(0), None)
    position = Position(
        *("shop", 3, "7460213845120034", ((1, Lsn(0)),), "cdc_shop", Fingerprint(1, 1, (), Lsn(0)), "4L6g3nShTw6ZrjcG7Q8K9A"),
        *(end, hour.us(), "none", None, Existing("none", "")),
    )
    told = ""
    for i in range(SAMPLES):
        hour.now += SAMPLE_S
        wrong = next((what for (first, last), what in FAULTS.items() if first <= i < last), None)
        state, reason = wrong or (State.STREAMING, "")
        if reason != told:
            if state is State.BACKOFF:
                watch.health.failed()
            if not reason:
                watch.state(State.OPENING, "")
            watch.state(state, reason)
            told = reason
        for at, word, what in LETTERS:
            if at == i:
                watch.dead_letter(word, f"0199c2d4-7a0c-7b3e-9f1e-0a1b2c3d4{at:03x}", f"0003{int(end):016x}{at:08x}", what, "")
        if wrong is None:
            rush = 3.0 if 330 <= i < 420 else 1.0
            behind = next((last for (_, last) in FAULTS if last <= i < last + 4), None)
            events = int(SAMPLE_S * (410 + 90 * ((i * 37) % 11) / 11 + 60 * ((i // 40) % 3)) * rush * (3.5 if behind else 1))
            end = Lsn(end + events * 900)
            position = dataclasses.replace(position, end_lsn=end, commit_time_us=hour.us())
            watch.committed(position, events, 1 if any(at == i for at, *_ in LETTERS) else 0, 0.012)
            watch.published({topic: (int(events * part), int(events * part * size)) for topic, part, size in TOPICS})
            watch.pending(38, int(hour.now * 1000) - 22 - (i * 13) % 30)
        else:
            watch.pending(5_200, watch.health.pending.oldest_ms)
        watch.history.look(_nobody)
    seen = dataclasses.replace(slot, confirmed_flush_lsn=end, restart_lsn=Lsn(end - 21_400_000))
    watch.server(Server("7460213845120034", 180_001, False, ((1, Lsn(0)),), Lsn(end + 9_800_000), seen, None, True), None)
    watch.health.dead_letters_open = 2
    parked: list[Letter] = [letter._replace(topic="shop.order", type="OrderPlaced") for letter in watch.health.letters]
    watch.health.letters_read = (*parked[:2], parked[2]._replace(open=False))
    return watch


def _nobody() -> None:
    """Nothing ends meanwhile."""


def main() -> int:
    """Write the pictures."""
    program = packages.program("chromium")
    if program is None:
        sys.stderr.write("chromium is missing: python -m tests.packages\n")
        return 1
    watch, registry = observed(), folder.load(ROOT / "schemas")
    for subject in list(registry.subjects)[:3]:
        registry.encoder(subject, None)
    server = HttpServer("127.0.0.1", 0, lambda: create_app(watch.health, watch.metrics, history=watch.history, registry=lambda: registry))
    server.start()
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    try:
        with tempfile.TemporaryDirectory() as name, Browser(program, Path(name)) as browser:
            for size, called in ((DESKTOP, "desktop"), (PHONE, "phone")):
                for scheme in schemes:
                    browser.look(size, scheme)
                    browser.open(f"http://127.0.0.1:{server.port}/")
                    browser.picture(PICTURES / f"status-{scheme}-{called}.png", 2 * DESKTOP.height)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
