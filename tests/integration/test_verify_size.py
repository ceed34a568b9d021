"""`cdc verify` over a table of any size: bounded memory, and how long it takes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline import Pipeline, environment, sizes

pytestmark = pytest.mark.servers

RSS_LIMIT_MB = 200

SAMPLED_EVERY_S = 0.05

PER_TRANSACTION = 100

BACKLOG = """DO $$ BEGIN FOR batch IN 0..{last} LOOP
    INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
    SELECT 'thing', 'customer-' || i % 1000, 'Thing', jsonb_build_object('n', i, 'text', repeat(md5(i::text), 8))
    FROM generate_series(batch * {each} + 1, (batch + 1) * {each}) i; COMMIT; END LOOP; END $$"""
"""Events of about 300 bytes."""


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has held so far (proc(5), status); 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


@sizes(20_000, 1_000_000)
def test_any_number_of_events_in_bounded_memory(pipeline: Pipeline, size: int, figures: dict[str, Any]) -> None:
    pipeline.set(topics__create__partitions=6)
    pipeline.init()
    pipeline.started()
    pipeline.execute(BACKLOG.format(last=size // PER_TRANSACTION - 1, each=PER_TRANSACTION))
    pipeline.wait_confirmed(deadline_s=900)
    pipeline.stop()
    began, peak = time.monotonic(), 0.0
    command = [sys.executable, "-m", "cdc", "verify", "--json", "--config", str(pipeline.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        while process.poll() is None:
            peak = max(peak, peak_mb(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLED_EVERY_S)
        seconds = time.monotonic() - began
        assert process.stdout is not None
        document = json.loads(process.stdout.read().splitlines()[-1])
    assert {kind: count for kind, count in document.items() if count} == {"rows": size, "events": size}
    assert process.returncode == 0
    figures |= {"verify_events": size, "verify_seconds": round(seconds, 1), "verify_rss_mb": round(peak)}
    assert 0 < peak < RSS_LIMIT_MB
