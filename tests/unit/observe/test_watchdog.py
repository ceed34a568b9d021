"""The watchdog: a loop that hangs is told with where it hangs, and the init system hears nothing then."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from cdc.errors import Retriable
from cdc.observe.health import HEARTBEAT_MAX_AGE_S, Health
from cdc.observe.observer import PipelineObserver
from cdc.observe.periodic import Periodic
from cdc.observe.watchdog import Watchdog, tell_systemd
from cdc.pipeline.supervisor import State
from tests.unit.observe.observe_samples import Clock
from tests.waiting import wait_for


@pytest.fixture
def clock() -> Clock:
    return Clock()


def leave() -> None:
    pass


def test_a_hang_is_told_once_with_its_place(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    health, said = Health("shop", monotonic=clock, wall_us=clock.us), list[str]()
    go_on = threading.Event()

    def hanging_here() -> None:
        go_on.wait(60)

    thread = threading.Thread(target=hanging_here)
    thread.start()
    dog = Watchdog(health, thread.ident, said.append)
    dog.look(leave)
    assert said == ["WATCHDOG=1\nSTATUS=starting"]
    clock.now += HEARTBEAT_MAX_AGE_S
    dog.look(leave)
    dog.look(leave)
    assert len(said) == 1, "nothing that could be taken for a sign of life"
    lines = [line for line in capsys.readouterr().out.splitlines() if "the loop hangs" in line]
    assert len(lines) == 1
    assert "hanging_here" in lines[0]
    assert repr(dog) == "<Watchdog of a loop that hangs>"
    health.beat()
    dog.look(leave)
    assert said[1:] == ["WATCHDOG=1"]
    assert "turns again" in capsys.readouterr().out
    go_on.set()
    thread.join()


def test_a_standby_is_told_to_the_init_system(clock: Clock) -> None:
    health, said = Health("shop", monotonic=clock, wall_us=clock.us), list[str]()
    health.turned(State.STANDBY, "slot is active for pid 7")
    Watchdog(health, None, said.append).look(leave)
    assert said == ["WATCHDOG=1\nSTATUS=standby: slot is active for pid 7"]


@pytest.mark.parametrize("abstract", [False, True])
def test_what_systemd_gets(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@cdc-test-{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        tell_systemd("READY=1")
        assert systemd.recv(100) == b"READY=1"
    tell_systemd("nobody is there")
    monkeypatch.delenv("NOTIFY_SOCKET")
    tell_systemd("nobody wants it")


def test_a_look_that_fails_is_tried_again_and_left_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    looks, left = list[str](), threading.Event()

    def look(leave: object) -> None:
        looks.append("look")
        if len(looks) == 1:
            raise Retriable("no broker")
        assert callable(leave)
        try:
            while True:
                leave()
        finally:
            left.set()

    with Periodic("x", look, 0.001) as watcher:
        wait_for(lambda: len(looks) == 2, 10, "it was tried again")
    assert left.is_set()
    assert repr(watcher) == "<Periodic x every 0.001 s>"


def test_a_look_with_a_bug_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def look(_: object) -> None:
        raise KeyError("secret")

    with Periodic("x", look, 0.001) as watcher:
        wait_for(lambda: not watcher._thread.is_alive(), 10, "it gave up")
    said = "".join(capsys.readouterr())
    assert "crashed" in said
    assert "secret" not in said


def test_dead_letters_are_counted_by_who_streams(clock: Clock) -> None:
    watch = PipelineObserver("shop", monotonic=clock, wall_us=clock.us)

    def opened() -> int | None:
        return watch.health.dead_letters_open

    watch.count_dead_letters(lambda _: 3, leave)
    assert opened() is None
    watch.health.turned(State.STREAMING, "")
    watch.count_dead_letters(lambda _: 3, leave)
    assert opened() == 3

    def fails(_: object) -> int:
        raise Retriable("no broker")

    with pytest.raises(Retriable):
        watch.count_dead_letters(fails, leave)
    assert opened() is None, "a number that nobody can vouch for any more"
