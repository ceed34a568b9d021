"""The manual's page about metrics, written from METRICS: `python -m cdc.observe.reference > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cdc.observe.consumers import CONSUMER_METRICS
from cdc.observe.metrics import METRICS, Definition

INTRODUCTION = """\
# Metrics

<!-- Written by `python -m cdc.observe.reference`; a test keeps it equal to the program. -->

`/metrics` on `http.listen` shows these in Prometheus' text format, besides `process_*` (CPU, memory, file descriptors).
A gauge whose value is not known yet is left out.

Three numbers tell why the server keeps log for the slot. `cdc_lag_bytes` is what is not published yet: the pipeline's own
lag. `cdc_slot_confirmed_lag_bytes` is what it has not confirmed, hardly more. `cdc_slot_held_back_bytes` is what the
server keeps below the confirmed place because a transaction was open there, in whatever table: the pipeline cannot free
it, ending that transaction does.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


CONSUMERS = """
## Consumers

What `cdc.observe.consumers.ConsumerMetrics` counts for the consumers of a process; see [consuming](consuming.md#watching-it).

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def markdown() -> str:
    """Write the page."""
    return INTRODUCTION + _rows(METRICS) + CONSUMERS + _rows(CONSUMER_METRICS)


def _rows(definitions: Sequence[Definition]) -> str:
    rows = (f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |" for each in definitions)
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
