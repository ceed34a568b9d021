"""What every simulation shares: a large transaction is one of few rows, and a failure tells its seed."""

from __future__ import annotations

import os
import random

import pytest

from tests.simulation.workloads import LARGE_ROWS


@pytest.fixture(autouse=True)
def _large_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.pipeline.relay.HELD_ROWS", LARGE_ROWS)


@pytest.fixture
def seed() -> int:
    """TEST_SIMULATION_SEED, or another one for each run."""
    return int(os.environ.get("TEST_SIMULATION_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
