"""The frame of the command line: errors become one line and an exit code, and nothing is loaded before it is called."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import structlog
import typer

from cdc import cli, errors
from cdc.cli import COMMANDS, Command, main
from cdc.cli.version import versions

CANARY = "canary-5d1e"

Install = Callable[[Callable[[], Any] | typer.Typer], None]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a command called `probe` into the table."""

    def put(target: Callable[[], Any] | typer.Typer) -> None:
        module = types.ModuleType("cdc.cli.probe")
        module.__spec__ = cli.__spec__
        module.__dict__["probe"] = target
        monkeypatch.setitem(sys.modules, "cdc.cli.probe", module)
        monkeypatch.setitem(COMMANDS, "probe", Command("cdc.cli.probe", "probe", "A probe.", ("cdc probe",)))

    return put


def raising(error: BaseException) -> Callable[[], None]:
    def probe() -> None:
        """Fail."""
        raise error

    return probe


EXIT_CODES = {
    errors.ProtocolError: 1,
    errors.ConfigurationError: 2,
    errors.PostgresRefused: 3,
    errors.ContinuityError: 4,
    errors.SinkRefused: 5,
    errors.KafkaRefused: 5,
    errors.IdentityTaken: 6,
    errors.StoppedByPolicy: 7,
    errors.AuditFailed: 8,
}


@pytest.mark.parametrize("kind", list(EXIT_CODES))
def test_an_error_is_one_line_and_its_exit_code(kind: type[errors.CdcError], install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(raising(kind("the slot\nis gone", "run cdc recover")))
    assert main(["probe"]) == EXIT_CODES[kind]
    out, err = capsys.readouterr()
    assert err == "cdc: the slot is gone. Fix: run cdc recover\n"
    assert out == ""


def test_an_error_hides_a_password(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(raising(errors.PostgresRefused(f"no connection to postgresql://u:{CANARY}@h/d", "start it")))
    assert main(["probe"]) == 3
    assert CANARY not in capsys.readouterr().err


def test_a_bug_is_logged_and_asks_to_be_reported(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(raising(KeyError(CANARY)))
    assert main(["probe"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("cdc: a bug: KeyError. Fix: ")
    assert "report" in err.splitlines()[-1]
    assert "test_cli_main.py" in err
    assert CANARY not in err


def test_interrupted(install: Install) -> None:
    install(raising(KeyboardInterrupt()))
    assert main(["probe"]) == 130


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (8, 8)])
def test_a_command_may_return_its_exit_code(returned: int | None, code: int, install: Install) -> None:
    install(lambda: returned)
    assert main(["probe"]) == code


def test_a_command_may_exit(install: Install) -> None:
    install(raising(typer.Exit(8)))
    assert main(["probe"]) == 8


def test_a_group_of_commands(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.Typer(help="A group.", no_args_is_help=True)
    group.command("one")(lambda: print("one"))
    group.command("two")(raising(errors.AuditFailed("found", "look")))
    install(group)
    assert main(["probe", "one"]) == 0
    assert capsys.readouterr().out == "one\n"
    assert main(["probe", "two"]) == 8
    assert main(["probe"]) == 2
    capsys.readouterr()
    assert main(["probe", "--help"]) == 0
    assert "Example" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nothing"], ["--nothing"], ["probe", "--nothing"], ["probe", "more"]])
def test_what_cannot_be_understood_is_one_line(arguments: list[str], install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(lambda: None)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("cdc: ")
    assert "--help" in err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        if find_spec(command.module):
            assert f" {name} " in out


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if find_spec(command.module)])
def test_every_command_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"cdc {name}" in capsys.readouterr().out.split("Example", 1)[1]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    lines = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines == versions()
    assert list(lines) == ["cdc", "python", "confluent-kafka", "librdkafka", "psycopg", "libpq", "fastavro"]
    assert all(lines.values())


def test_help_loads_no_client() -> None:
    script = (
        "import sys; from cdc.cli import main; main(['--help']);"
        "sys.exit(','.join({'confluent_kafka', 'psycopg', 'fastavro', 'uvicorn', 'pydantic'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_no_bug() -> None:
    script = "import os, sys; from cdc.cli import main; r, w = os.pipe(); os.close(r); os.dup2(w, 1);sys.exit(main(['--version']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_missing_extra_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(COMMANDS, "probe", Command("xml.dom.nothing", "x", "A probe.", (), extra="servers"))
    monkeypatch.setattr(cli.LazyGroup, "list_commands", lambda *_: ["probe"])
    assert main(["probe"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("cdc: cdc probe needs the package xml.dom.nothing")
    assert "pip install 'cdc[servers]'" in err
