"""Processes of servers: free ports, children that die with their parent, and ending each by its own pid."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cdc.errors import CdcError

LOOPBACK = "127.0.0.1"

LOWEST_PORT = 15_000
"""Ports below are likely to belong to somebody."""

POLL_S = 0.02

KILL_TIMEOUT_S = 10.0
"""For the kernel to take a killed process away."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def held_ports(count: int) -> list[socket.socket]:
    """Return sockets that hold ports on loopback which nobody else has, and that nobody else finds free until they are closed.

    None of them listens. Whoever binds with SO_REUSEADDR, as servers do, can bind beside them; who looks for a free port binds
    without it, and cannot. So the port of a server that is starting, or down for a while, is not given to another one.

    They lie below the range from which the kernel takes the ports of outgoing connections. Inside it a client that knocks at
    a server being restarted can be given the server's own port, connects to itself, and keeps the server from coming back.
    """
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = list(range(LOWEST_PORT, first_ephemeral)) or [0]
    held: list[socket.socket] = []
    while len(held) < count:
        probe = socket.socket()
        try:
            probe.bind((LOOPBACK, random.choice(candidates)))  # noqa: S311 - no secret
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.append(probe)
    return held


def port_of(held: socket.socket) -> int:
    """Return the port that a socket holds."""
    return int(held.getsockname()[1])


def start(  # noqa: PLR0913 - what a process is started with
    command: Sequence[str | Path],
    log: Path,
    *,
    dies_with_us: bool,
    death_signal: int = signal.SIGKILL,
    user: int | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, its output appended to `log`.

    One that `dies_with_us` is sent `death_signal` by the kernel when the *thread* that called this ends, however it ends
    (prctl(2), PR_SET_PDEATHSIG): start what has to last from the main thread. Another one survives us.
    """
    parent = os.getpid()

    def before_exec() -> None:
        if dies_with_us:
            _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != parent:  # it ended before the kernel knew what we want
                os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=cwd,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            env={**os.environ, **environment} if environment else None,
            preexec_fn=before_exec,  # noqa: PLW1509 - three system calls, no locks
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
    """Return the end of a log, on one line, without Java's stack traces."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return "no log"
    return " | ".join([line for line in lines if not line.startswith("\tat ")][-count:])


def end(process: subprocess.Popen[bytes], signal_number: int, timeout_s: float) -> None:
    """Send a signal and wait; kill it with its children when it does not end in time."""
    if process.poll() is not None:
        return
    process.send_signal(signal_number)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its children, and return when all are gone.

    A backend of PostgreSQL is in no group with the postmaster, and one that is busy would outlive it for a while, holding
    the shared memory that the next postmaster wants.
    """
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)  # so that it has no more children while we count them
    children = {pid: start_time(pid) for pid in children_of(process.pid)}
    process.kill()
    process.wait()
    for pid, started in children.items():
        send(pid, started, signal.SIGKILL)
    wait_gone(children.items(), KILL_TIMEOUT_S)


def send(pid: int, started: int | None, signal_number: int) -> bool:
    """Send a signal to a process that was told by its pid and its start; False when it is gone."""
    if started is None or start_time(pid) != started:
        return False
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return False
    return True


def wait_gone(processes: Iterable[tuple[int, int | None]], timeout_s: float) -> list[int]:
    """Wait until processes (pid and start) are gone; return the pids of those that are not, in the end."""
    deadline = time.monotonic() + timeout_s
    remaining = list(processes)
    while True:
        remaining = [(pid, started) for pid, started in remaining if started is not None and start_time(pid) == started]
        if not remaining or time.monotonic() >= deadline:
            return [pid for pid, _ in remaining]
        time.sleep(POLL_S)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot: with it a pid names one process for ever. None when it is gone."""
    state, *fields = _stat(pid)
    return None if state in "ZX" else int(fields[18])


def state_of(pid: int) -> str:
    """Return the state of a process as proc(5) has it: R, S, D, T (stopped), Z, and X when it is gone."""
    return _stat(pid)[0]


def children_of(parent: int) -> list[int]:
    """Return the pids of a process's children."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if int(_stat(pid)[1]) == parent]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: state, parent, .. (proc(5)); a dead one's when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", *["0"] * 50]


def accepts(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
