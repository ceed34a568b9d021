"""Server binaries from Maven: the versions and checksums of `jars.lock.toml`, fetched by jgo into a cache, verified each time.

A jar that is in the cache is never asked for again, so a machine that has been set up works without a network. The cache is
CDC_CACHE_DIR, else XDG_CACHE_HOME/cdc, else ~/.cache/cdc; for root /var/cache/cdc, because PostgreSQL does not run as root and
its user must be able to reach what was unpacked there.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from jgo.maven import MavenContext

from cdc.errors import CdcError

LOCK = Path(__file__).with_name("jars.lock.toml")

DOWNLOADS = 8
"""Jars fetched at once."""

TIMEOUT_S = 120
"""For one answer of the repository."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked artifact."""

    group: str
    artifact: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def cache_dir() -> Path:
    """Return the folder that keeps what was fetched."""
    if own := os.environ.get("CDC_CACHE_DIR"):
        folder = Path(own)
    elif xdg := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(xdg) / "cdc"
    else:
        folder = Path("/var/cache/cdc") if os.geteuid() == 0 else Path.home() / ".cache" / "cdc"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def locked(section: str) -> list[Jar]:
    """Return a section of the lock, in its order."""
    return [Jar(**entry) for entry in tomllib.loads(LOCK.read_text())[section]]


def fetch(jars: Iterable[Jar]) -> list[Path]:
    """Return the paths of these jars, fetched where they are missing; raises CdcError when one cannot be had or differs."""
    context = MavenContext(repo_cache=cache_dir() / "maven", timeout=TIMEOUT_S)
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        return list(pool.map(lambda jar: _fetch(context, jar), jars))


def _fetch(context: MavenContext, jar: Jar) -> Path:
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    found = ""
    for _ in ("what is there, perhaps cut off", "fetched anew"):
        try:
            path = Path(artifact.resolve())
        except Exception as error:  # jgo and its HTTP client raise many kinds
            msg = f"{jar} could not be fetched: {type(error).__name__}"
            raise CdcError(msg, "the servers' jars need a Maven repository once; try again") from error
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found == jar.sha256:
            return path
        path.unlink()
    msg = f"{jar} has SHA-256 {found}, {jar.sha256} expected"
    raise CdcError(msg, "the repository serves another file than the one that was locked; do not use it")


if __name__ == "__main__":
    fetch(locked("kafka"))
