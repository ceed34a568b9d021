"""Load a library without an optional one that it would take along."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(library: str) -> Iterator[None]:
    """Make `library` look as if it were not installed, unless it is loaded already (None in sys.modules, see `import`)."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # the import system's own way to say so
    try:
        yield
    finally:
        del sys.modules[library]
