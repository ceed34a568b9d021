from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.devstack import process
from cdc.devstack.process import LOOPBACK
from cdc.errors import CdcError
from tests.waiting import wait_for

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]

STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def sleeper(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    started = process.start(SLEEPER, log, dies_with_us=True)
    yield started
    process.kill(started)


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    sockets = process.held_ports(20)
    yield sockets
    for each in sockets:
        each.close()


def test_ports_differ_are_free_and_are_never_those_of_outgoing_connections(held: list[socket.socket]) -> None:
    ports = list(map(process.port_of, held))
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert all(process.LOWEST_PORT <= port < first_ephemeral for port in ports)
    assert not any(map(process.accepts, ports))


def test_a_held_port_is_nobody_elses_and_a_server_listens_on_it_beside_us(held: list[socket.socket]) -> None:
    address = (LOOPBACK, process.port_of(held[0]))
    for _ in range(2):  # it may go and come back
        with socket.create_server(address):
            assert process.accepts(address[1])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)


def test_accepts_tells_whether_somebody_listens(held: list[socket.socket]) -> None:
    port = process.port_of(held[0])
    assert not process.accepts(port)
    held[0].listen()
    assert process.accepts(port)


def test_a_polite_end(sleeper: subprocess.Popen[bytes]) -> None:
    process.end(sleeper, signal.SIGTERM, 10)
    assert sleeper.returncode == -signal.SIGTERM
    process.end(sleeper, signal.SIGTERM, 10)  # it is gone already


def test_who_does_not_listen_is_killed(log: Path) -> None:
    stubborn = process.start(STUBBORN, log, dies_with_us=True)
    wait_for(lambda: log.read_text() == "deaf\n")
    process.end(stubborn, signal.SIGTERM, 0.1)
    assert stubborn.returncode == -signal.SIGKILL


def test_kill_takes_children_in_sessions_of_their_own_along(log: Path) -> None:
    parent = process.start([sys.executable, "-c", PARENT], log, dies_with_us=True)
    child = int(wait_for(log.read_text))
    assert process.children_of(parent.pid) == [child]
    process.kill(parent)
    assert process.start_time(child) is None


def test_a_stopped_process_can_be_killed(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    wait_for(lambda: process.state_of(sleeper.pid) == "T")
    process.kill(sleeper)
    assert sleeper.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("dies_with_us", "left"), [(True, False), (False, True)])
def test_a_child_dies_with_us_or_stays(tmp_path: Path, dies_with_us: bool, left: bool) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cdc.devstack.process import start;"
        f"child = start({SLEEPER!r}, Path({str(tmp_path / 'log')!r}), dies_with_us={dies_with_us});"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        started = process.start_time(child)
        parent.kill()
    if left:
        assert process.send(child, started, signal.SIGKILL)
    assert process.wait_gone([(child, started)], 10) == []


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    started = process.start_time(sleeper.pid)
    assert started is not None
    assert not process.send(sleeper.pid, started - 1, signal.SIGKILL)
    assert not process.send(sleeper.pid, None, signal.SIGKILL)
    assert sleeper.poll() is None
    assert process.wait_gone([(sleeper.pid, started)], 0) == [sleeper.pid]


def test_a_process_that_is_gone_has_no_start() -> None:
    done = subprocess.Popen(["true"])
    wait_for(lambda: process.state_of(done.pid) == "Z")
    assert process.start_time(done.pid) is None
    done.wait()
    assert process.state_of(done.pid) == "X"
    assert not process.send(done.pid, 1, signal.SIGTERM)


def test_waiting_says_why_a_server_did_not_come_up(log: Path) -> None:
    code = "print('port taken\\n\\tat Some.java'); raise SystemExit(3)"
    started = process.start([sys.executable, "-c", code], log, dies_with_us=True)
    with pytest.raises(CdcError, match=r"Thing ended with exit code 3 while starting: port taken\. Fix: see"):
        process.wait_ready(started, lambda: False, 30, "Thing", log)


def test_waiting_has_an_end(sleeper: subprocess.Popen[bytes], log: Path) -> None:
    before = time.monotonic()
    with pytest.raises(CdcError, match="Thing was not ready within 0 s"):
        process.wait_ready(sleeper, lambda: False, 0.1, "Thing", log)
    assert time.monotonic() - before < 5


def test_no_log_is_no_error(tmp_path: Path) -> None:
    assert process.last_lines(tmp_path / "none") == "no log"


def test_a_child_has_its_environment_and_folder(tmp_path: Path, log: Path) -> None:
    code = "import os; print(os.environ['THING'], os.getcwd())"
    started = process.start([sys.executable, "-c", code], log, dies_with_us=True, environment={"THING": "x"}, cwd=tmp_path)
    started.wait(30)
    assert log.read_text() == f"x {os.path.realpath(tmp_path)}\n"
