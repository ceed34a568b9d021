"""Retention beside a constant load: the table levels off, and writers do not notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.integration.test_recover import verified
from tests.pipeline import Pipeline, sizes
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


WINDOWS_MAX = 60
"""Windows in which nothing is deleted, on a machine that is busy with other things, before it counts as starved."""


class Load(NamedTuple):
    """Events a second, the age in seconds, and windows (of so many seconds) without and with retention."""

    rate: int
    age_s: int
    window_s: float
    without: int
    beside: int


class Writer:
    """Writes one event in one transaction at a time, at a constant rate, and keeps how long each took."""

    def __init__(self, pipeline: Pipeline, rate: int) -> None:
        self.pipeline = pipeline
        self.rate = rate
        self.written = 0

    def window(self, seconds: float, look: Callable[[], object]) -> float:
        """Write for so long and call `look` at its end; return the 99th percentile in milliseconds."""
        took, pause, began = list[float](), threading.Event(), time.monotonic()
        with psycopg.connect(self.pipeline.dsn, autocommit=True) as connection:
            for number in range(round(seconds * self.rate)):
                pause.wait(max(0.0, began + number / self.rate - time.monotonic()))
                start = time.monotonic()
                self.written += 1
                self.pipeline.insert(self.written, on=connection)
                took.append((time.monotonic() - start) * 1000)
        look()
        return quantiles(took, n=100)[98]


@sizes(Load(200, 1, 1.0, 0, 3), Load(500, 60, 60.0, 4, 5))
def test_field_case_74_cleanup_keeps_up_while_the_system_is_busy(pipeline: Pipeline, size: Load, figures: dict[str, Any]) -> None:
    pipeline.init()
    writer, rows, megabytes = Writer(pipeline, size.rate), list[int](), list[float]()

    def look() -> None:
        [(count, occupied)] = pipeline.execute("SELECT count(*), pg_total_relation_size('outbox') / 1e6 FROM outbox")
        rows.append(count)
        megabytes.append(round(float(occupied), 1))

    without = list[float]()
    if size.without:
        pipeline.started()
        without = [writer.window(size.window_s, look) for _ in range(size.without)]
        pipeline.stop()
    pipeline.set(outbox__retention=f"{size.age_s}s").started()
    beside = [writer.window(size.window_s, look) for _ in range(size.beside)]
    while rows[-1] == writer.written and len(beside) < WINDOWS_MAX:
        beside.append(writer.window(size.window_s, look))
    assert rows[-1] < writer.written, "rows go while others come"
    wait_for(lambda: pipeline.execute("SELECT count(*) FROM outbox") == [(0,)], 4 * size.age_s + 30, "the rest goes when it is old")
    wait_for(lambda: len(pipeline.events()) >= writer.written, 60)
    assert pipeline.numbers() == list(range(1, writer.written + 1)), "publishing did not notice"
    assert verified(pipeline) == {"events": writer.written, "deleted": writer.written}
    figures["retention"] = {"rows": rows, "megabytes": megabytes, "p99_ms_without": without, "p99_ms_beside": beside}
    if size.without:
        # Rows are a twentieth older than the age at most, and as many more as come while a sweep is under way.
        assert rows[-1] < 2 * size.rate * size.age_s, rows
        assert megabytes[-1] <= 1.25 * megabytes[-3], "levels off"
        assert abs(median(beside) - median(without)) < max(without) - min(without), (without, beside)
