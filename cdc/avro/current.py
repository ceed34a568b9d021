"""The registry of a running pipeline: taken up again when the lock or the settings of the folder change.

A version exists when it is in the lock, so two files tell whether there is anything new; reading the folder again is left to
the moments when they differ. A folder that cannot be taken up (a locked version was changed, a file is half written) changes
nothing: the pipeline goes on with what it has, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from cdc.avro import folder
from cdc.avro.encoder import Encoder
from cdc.errors import ConfigurationError, InvalidEvent

LOG = logging.getLogger("cdc.avro")

WATCHED = ("registry.lock", "registry.toml")


class CurrentRegistry:
    """Holds the newest registry; `changed` is called when another one has been taken up."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self.registry = folder.load(path)
        self.changed: Callable[[], None] = _nobody

    def __repr__(self) -> str:
        return f"<CurrentRegistry {self.registry!r}>"

    def encoder(self, subject: str, version: int | None) -> Encoder:
        """Return a compiled encoder; for one that is not known the folder is looked at once more."""
        try:
            return self.registry.encoder(subject, version)
        except InvalidEvent:
            if not self.refresh():
                raise
        return self.registry.encoder(subject, version)

    def refresh(self) -> bool:
        """Take up what was added; return whether anything was."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            newer = folder.refreshed(self.registry)
        except ConfigurationError as error:
            LOG.warning("the schema folder is not taken up: %s", error)
            return False
        for warning in newer.warnings:
            LOG.warning("%s", warning)
        if newer is self.registry:
            return False
        self.registry = newer
        self.changed()
        return True

    def _stamp(self) -> list[tuple[int, int] | None]:
        return [_stamp(self._path / name) for name in WATCHED]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _nobody() -> None:
    """Nobody has to know."""
