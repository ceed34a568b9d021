"""`cdc init` beside a running pipeline: it has nothing to make, and disturbs nobody."""

from __future__ import annotations

import pytest

from tests.inside import streaming
from tests.pipeline import Pipeline

pytestmark = pytest.mark.servers


def test_init_beside_a_running_pipeline_fences_nobody_and_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.init()
    with streaming(pipeline) as inside:
        pipeline.insert(1)
        pipeline.wait_numbers([1])
        pipeline.wait_confirmed()
        owner, first = pipeline.slot().active_pid, pipeline.events(pipeline.position_topic)[0]
        for _ in range(2):
            pipeline.init()
        pipeline.insert(2)
        pipeline.wait_numbers([1, 2])
        assert pipeline.slot().active_pid == owner
        assert inside.states[-1] == "streaming"
        assert inside.states.count("streaming") == 1, inside.states
    records = pipeline.events(pipeline.position_topic)
    assert records[0] == first
    assert not any(b'"pending":true' in (record.value or b"").replace(b" ", b"") for record in records[1:])
