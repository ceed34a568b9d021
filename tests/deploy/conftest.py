"""What tests of the deployment share: files of docker/, programs of Debian packages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import packages

Debian = Callable[[str], Path]


@pytest.fixture
def debian() -> Debian:
    """Find a program of a Debian package: skip the test without it, or fail it where all are promised (`make test-all`)."""

    def find(name: str) -> Path:
        found = packages.program(name)
        if found is not None:
            return found
        reason = f"{name} is missing: python -m tests.packages"
        if os.environ.get(packages.REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)

    return find
