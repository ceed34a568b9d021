"""`cdc verify` over a table of any size: bounded memory, and how long it takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.measuring import measured
from tests.pipeline import Pipeline, sizes

pytestmark = pytest.mark.servers

RSS_LIMIT_MB = 200

PER_TRANSACTION = 100

BACKLOG = """DO $$ BEGIN FOR batch IN 0..{last} LOOP
    INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
    SELECT 'thing', 'customer-' || i % 1000, 'Thing', jsonb_build_object('n', i, 'text', repeat(md5(i::text), 8))
    FROM generate_series(batch * {each} + 1, (batch + 1) * {each}) i; COMMIT; END LOOP; END $$"""
"""Events of about 300 bytes."""


@sizes(20_000, 1_000_000)
def test_any_number_of_events_in_bounded_memory(pipeline: Pipeline, size: int, figures: dict[str, Any]) -> None:
    pipeline.set(topics__create__partitions=6)
    pipeline.init()
    pipeline.started()
    pipeline.execute(BACKLOG.format(last=size // PER_TRANSACTION - 1, each=PER_TRANSACTION))
    pipeline.wait_confirmed(deadline_s=900)
    pipeline.stop()
    done = measured(pipeline, "verify")
    assert {kind: count for kind, count in done.document.items() if count} == {"rows": size, "events": size}
    assert done.code == 0
    figures |= {"verify_events": size, "verify_seconds": done.seconds, "verify_rss_mb": done.peak_mb}
    assert 0 < done.peak_mb < RSS_LIMIT_MB
