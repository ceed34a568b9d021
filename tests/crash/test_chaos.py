"""Chaos in short: quick kinds of fault, one after the other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.chaos import chaos
from tests.crash.faults import KINDS

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]


def test_random_faults_in_short(tmp_path: Path) -> None:
    quick = {name: kind for name, kind in KINDS.items() if kind.quick}
    found = chaos(tmp_path, random.randrange(1 << 31), 10, quick, (0.5, 2.0))
    print(found)  # with its seed
    assert found["clean"], found
    assert found["faults"] > 1
    assert found["events"] > 0
