"""Server processes: free ports, children that die with their parent, and stopping each by its own pid."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cdc.errors import CdcError

LOOPBACK = "127.0.0.1"

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

POLL_S = 0.02


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that nobody listens on now; all are held until the last is found, so they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start(  # noqa: PLR0913 - what a process is started with
    command: Sequence[str | Path],
    log: Path,
    *,
    dies_with_us: bool,
    user: int | None = None,
    environment: Mapping[str, str] | None = None,
    death_signal: int = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own, its output appended to `log`.

    One that `dies_with_us` is sent `death_signal` by the kernel when this process ends, however it ends (prctl(2),
    PR_SET_PDEATHSIG); another one survives us.
    """

    def before_exec() -> None:
        if dies_with_us:
            _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal)

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            env={**os.environ, **environment} if environment else None,
            preexec_fn=before_exec,  # noqa: PLW1509 - one system call, no locks
        )


def wait_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], timeout_s: float, what: str, log: Path) -> None:
    """Return when `ready` holds; raises CdcError when the process ends before or takes too long."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None:
            msg = f"{what} ended with exit code {process.returncode} while starting: {last_lines(log)}"
            raise CdcError(msg, f"see {log}")
        if time.monotonic() >= deadline:
            msg = f"{what} was not ready within {timeout_s:.0f} s"
            raise CdcError(msg, f"see {log}")
        time.sleep(POLL_S)


def last_lines(log: Path, count: int = 3) -> str:
    """Return the end of a log, on one line."""
    try:
        return " | ".join(log.read_text(errors="replace").strip().splitlines()[-count:])
    except OSError:
        return "no log"


def end(process: subprocess.Popen[bytes], signal_number: int, timeout_s: float) -> None:
    """Send a signal and wait; SIGKILL to the whole process group when it does not end in time."""
    if process.poll() is not None:
        return
    process.send_signal(signal_number)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def accepts(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
