"""Server binaries from Maven: the versions and checksums of `jars.lock.toml`, fetched by jgo into a cache, verified each time.

A jar comes into the cache whole and verified, or not at all: jgo loads it into a folder of its own first (it writes in place,
and of a wrong checksum it only warns). One that is there is never asked for again, so a machine that has been set up works
without a network. The cache is CDC_CACHE_DIR, else XDG_CACHE_HOME/cdc, else ~/.cache/cdc; for root /var/cache/cdc, because
PostgreSQL does not run as root and its user must be able to reach what was unpacked there.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

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

    @property
    def path(self) -> Path:
        """Where it is in the cache."""
        return cache_dir() / "jars" / f"{self.artifact}-{self.version}.jar"

    def is_at(self, path: Path) -> bool:
        """Whether this file is the one that was locked."""
        try:
            with path.open("rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


def cache_dir() -> Path:
    """Return the folder that keeps what was fetched."""
    if own := os.environ.get("CDC_CACHE_DIR"):
        folder = Path(own).absolute()
    elif xdg := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(xdg).absolute() / "cdc"
    else:
        folder = Path("/var/cache/cdc") if os.geteuid() == 0 else Path.home() / ".cache" / "cdc"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def locked(section: str, lock: Path = LOCK) -> list[Jar]:
    """Return a section of a lock, in its order."""
    return [Jar(**entry) for entry in tomllib.loads(lock.read_text())[section]]


def fetch(jars: Iterable[Jar]) -> list[Path]:
    """Return the paths of these jars, fetched where they are missing; raises CdcError when one cannot be had or differs."""
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        return list(pool.map(_fetched, jars))


def _fetched(jar: Jar) -> Path:
    if not jar.is_at(jar.path):  # missing, cut off or changed
        jar.path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.path.parent, prefix="arriving-") as folder:
            arrived = _download(jar, Path(folder))
            if not jar.is_at(arrived):
                msg = f"{jar} came with another content than the one that was locked (SHA-256 {jar.sha256})"
                raise CdcError(msg, "do not use it; try again, and if it stays so, the repository serves a changed file")
            arrived.rename(jar.path)
    return jar.path


def _download(jar: Jar, folder: Path) -> Path:
    from jgo.maven import MavenContext  # noqa: PLC0415 - slow to load, and not needed once the cache is complete

    context = MavenContext(repo_cache=folder, timeout=TIMEOUT_S)
    try:
        return Path(context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())
    except Exception as error:  # jgo and its HTTP client raise many kinds
        msg = f"{jar} could not be fetched ({type(error).__name__})"
        raise CdcError(msg, "the servers' jars need a Maven repository once; with a network, try again") from error
