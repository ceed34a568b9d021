"""What people see of a consumer: its lines where nobody takes them, and names, never values, of what PostgreSQL refuses."""

from __future__ import annotations

import logging

import psycopg
import pytest

from cdc.consumer import Consumer
from cdc.consumer.console import described, ended, places, refusal, shown
from cdc.consumer.lane import Failure, Kind, Lane, Standing
from cdc.consumer.ports import LOG, Log
from tests.unit.consumer.records import seen


def test_lines_go_to_stderr_while_it_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOG, "propagate", False)  # as in a program that has not set up logging: pytest has
    monkeypatch.setattr(LOG, "handlers", [])
    with shown():
        Log().assigned("ledger", [("invoices", 1), ("invoices", 0), ("orders", 0)])
    LOG.info("nobody listens")
    assert capsys.readouterr().err.endswith("Z INFO ledger: reading invoices[0, 1], orders[0], 3 partitions\n")
    assert (LOG.handlers, LOG.level) == ([], logging.NOTSET)


def test_a_program_with_logging_of_its_own_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    with shown():
        LOG.warning("taken")
        assert LOG.handlers == []
    assert capsys.readouterr().err == ""


def test_a_failure_says_how_long_it_waits_and_which_table(caplog: pytest.LogCaptureFixture) -> None:
    lane = Lane("invoices", 0, "default")
    lane.standing, lane.not_before = Standing.WAITING, float("inf")
    Log().failed("ledger", seen(0), Failure(Kind.HANDLER, "UndefinedTable", where=" sqlstate=42P01 table=stock"), 1, lane)
    assert "attempt 1 failed: error=UndefinedTable sqlstate=42P01 table=stock handler=- kind=handler next=waiting for inf s" in caplog.text


def test_only_psycopgs_errors_have_places() -> None:
    assert places(ValueError("canary")) == ""
    assert places(psycopg.errors.UndefinedTable("canary")) == " sqlstate=42P01"
    assert refusal(ValueError("canary")) is None
    assert described(ValueError("canary")) == "ValueError"
    assert described(psycopg.OperationalError("connection failed\n")) == "OperationalError: connection failed"
    assert described(psycopg.errors.UndefinedTable("canary")) == "UndefinedTable sqlstate=42P01"
    assert "canary" not in described(psycopg.ProgrammingError('missing "=" after "canary" in connection info string'))


def test_a_mistake_is_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("ledger", ValueError("a bug")) is None
    wrong = psycopg.OperationalError('connection failed: FATAL:  password authentication failed for user "ada"\n')
    assert ended("ledger", wrong) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert 'password authentication failed for user "ada". Fix: correct postgres=' in said
    with pytest.raises(SystemExit, match="2"):
        Consumer("ledger", topics=["invoices"], kafka={"bootstrap.servers": "127.0.0.1:1"}).main()
    assert "consumer ledger has no handler. Fix: declare one" in capsys.readouterr().err
