"""A real Redis on loopback, from the `redis-server` that the machine has or that somebody unpacked."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdc.devstack.process import LOOPBACK, start
from cdc.devstack.server import Server
from cdc.errors import CdcError

SETTINGS: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "no",
    "save": '""',
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": "0",
}
"""What a sink needs: every write in the append-only file, and nothing evicted. A replica does not wait for company.

What was written survives a kill; only a machine that dies would lose what its disk was not told to keep.
"""


SENTINEL = "shop"
"""What our Sentinels call the primary."""


class RedisServer(Server):
    """One Redis; `restart` comes back on the same port and data. One that `watches` another is a Sentinel for it, alone and quick."""

    NAME = "Redis"

    def __init__(  # noqa: PLR0913 - what a server is started with, by keyword
        self,
        folder: Path | None = None,
        *,
        program: Path | None = None,
        libraries: Sequence[Path] = (),
        settings: Mapping[str, str] | None = None,
        watches: RedisServer | None = None,
        port: int | None = None,
        dies_with_us: bool = True,
    ) -> None:
        super().__init__(folder, dies_with_us=dies_with_us)
        [self.port] = [port] if port else self._own_ports(1)
        self.settings = {**SETTINGS, **(settings or {})} if watches is None else sentinel_settings(watches)
        self._options = [] if watches is None else ["--sentinel"]
        self._program = program
        self._libraries = libraries

    def __repr__(self) -> str:
        return f"<RedisServer on {self.url} pid={self.pid}>"

    @property
    def url(self) -> str:
        """What a client is configured with."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def prepare(self) -> None:
        """Look for the program; a folder needs nothing else."""
        self._program = self._program or (Path(found) if (found := shutil.which("redis-server")) else None)
        if self._program is None:
            msg = "there is no redis-server on this machine"
            raise CdcError(msg, "apt-get install redis-server, or name one that runs in redis.url")

    def restart(self) -> None:
        """Stop and start on the same port and data."""
        self._end(self.STOP_SIGNAL)
        self.start()

    def _launch(self) -> subprocess.Popen[bytes]:
        assert self._program is not None, "prepare comes first"
        own = {"port": str(self.port), "bind": LOOPBACK, "dir": str(self.folder), "daemonize": "no"}
        config = self.folder / "redis.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in {**own, **self.settings}.items()))
        paths = os.pathsep.join([*map(str, self._libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        environment = {"LD_LIBRARY_PATH": paths} if paths else None
        command: list[str | Path] = [self._program, config, *self._options]
        return start(command, self.log, dies_with_us=self._dies_with_us, cwd=self.folder, environment=environment)

    def _ready(self) -> bool:
        """Whether it answers PING: a server that still loads its data answers with an error."""
        try:
            with socket.create_connection((LOOPBACK, self.port), 1) as link:
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def sentinel_settings(primary: RedisServer) -> dict[str, str]:
    """Return what makes a Sentinel of a Redis: it needs nobody's vote."""
    return {
        "sentinel monitor": f"{SENTINEL} {LOOPBACK} {primary.port} 1",
        "sentinel down-after-milliseconds": f"{SENTINEL} 500",
        "sentinel failover-timeout": f"{SENTINEL} 3000",
    }
