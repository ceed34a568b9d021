"""A real RabbitMQ on loopback: one node, from Debian's packages as they were unpacked into a folder, and nothing of it installed.

Debian's scripts know one place for Erlang, one for the broker's data and one daemon that tells ports of nodes (epmd). Here each
broker has its own of all three: a starter of Erlang that knows where it was unpacked, folders of its own, and an epmd of its
own on a port of its own, because one that Erlang starts by itself outlives the broker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cdc.devstack.process import LOOPBACK, accepts, end, start, wait_ready
from cdc.devstack.server import Server
from cdc.errors import CdcError

CONFIG = """\
log.console = true
log.console.level = warning
log.file = false
loopback_users = none
disk_free_limit.absolute = 50MB
max_message_size = 1048576
"""
"""A small machine has less free disk than RabbitMQ wants by default; and what is too large for a message is soon made."""

ERLANG = "-noinput +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
"""One scheduler that sleeps when it has nothing to do; the node listens to its own machine alone."""

ERL = """\
#!/bin/sh
ROOTDIR='{root}' BINDIR='{bin}' EMU=beam PROGNAME=erl
export ROOTDIR BINDIR EMU PROGNAME
exec "$BINDIR/erlexec" "$@"
"""


ALARMS = {
    "memory": ("set_vm_memory_high_watermark", "0.00001", "0.4"),
    "disk": ("set_disk_free_limit", "1000GB", "50MB"),
}
"""What sets off an alarm, and ends it."""


class RabbitBroker(Server):
    """One broker; `unpacked` is where Debian's packages of it and of Erlang lie."""

    NAME = "RabbitMQ"

    def __init__(self, unpacked: Path, folder: Path | None = None, *, dies_with_us: bool = True) -> None:
        super().__init__(folder, dies_with_us=dies_with_us)
        self._unpacked = unpacked
        self.port, self._node_port, self._epmd_port = self._own_ports(3)
        self._epmd: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<RabbitBroker on {LOOPBACK}:{self.port} pid={self.pid}>"

    @property
    def url(self) -> str:
        """What a client is configured with."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/%2F"

    def prepare(self) -> None:
        """Write its configuration and the starter of Erlang."""
        erl = self.folder / "bin" / "erl"
        erl.parent.mkdir(exist_ok=True)
        erl.write_text(ERL.format(root=self._erlang, bin=self._runtime))
        erl.chmod(0o755)
        (self.folder / "rabbitmq.conf").write_text(CONFIG)
        (self.folder / "plugins").write_text("[].\n")

    def stop(self) -> None:
        """Stop it by SIGTERM."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start on the same ports and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it and its epmd."""
        super().close()
        if self._epmd is not None:
            end(self._epmd, signal.SIGKILL, self.STOP_TIMEOUT_S)

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl`; raises CdcError with its last words when it fails."""
        done = subprocess.run(
            [self._broker / "rabbitmqctl", *arguments], check=False, capture_output=True, text=True, env={**os.environ, **self._environment}
        )
        if done.returncode != 0:
            msg = f"rabbitmqctl {arguments[0]} failed: {done.stderr.strip()[-300:]}"
            raise CdcError(msg)
        return done.stdout

    @contextlib.contextmanager
    def alarm(self, resource: str = "memory") -> Iterator[None]:
        """Let it be out of memory, or of disk, for a while: it takes no messages then."""
        setting, low, usual = ALARMS[resource]
        self.control(setting, low)
        try:
            yield
        finally:
            self.control(setting, usual)

    @property
    def _erlang(self) -> Path:
        return self._unpacked / "usr" / "lib" / "erlang"

    @property
    def _runtime(self) -> Path:
        return next(self._erlang.glob("erts-*")) / "bin"

    @property
    def _broker(self) -> Path:
        return next((self._unpacked / "usr" / "lib" / "rabbitmq" / "lib").glob("rabbitmq_server-*")) / "sbin"

    @property
    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "PATH": os.pathsep.join((str(folder / "bin"), str(self._erlang / "bin"), os.environ.get("PATH", ""))),
            "HOME": str(folder),
            "LD_LIBRARY_PATH": str(self._unpacked / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": f"cdc{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the broker then, which gets our signals itself, and else is its parent
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
        }

    def _launch(self) -> subprocess.Popen[bytes]:
        if self._epmd is None or self._epmd.poll() is not None:
            command: list[str | Path] = [self._runtime / "epmd", "-port", str(self._epmd_port), "-address", LOOPBACK]
            self._epmd = start(command, self.log, dies_with_us=self._dies_with_us, environment=self._environment)
            wait_ready(self._epmd, lambda: accepts(self._epmd_port), self.START_TIMEOUT_S, "epmd", self.log)
        return start([self._broker / "rabbitmq-server"], self.log, dies_with_us=self._dies_with_us, environment=self._environment)

    def _ready(self) -> bool:
        return accepts(self.port)
