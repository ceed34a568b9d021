"""Logs say what happened and never what was in it."""

from __future__ import annotations

import io
import logging

import orjson
import pytest
import structlog

from cdc.errors import KafkaRefused
from cdc.observe import logs
from cdc.settings import mask

CANARY = "canary-81c2"
FORMATS: list[logs.Format] = ["json", "console"]


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in out.getvalue().splitlines()]


def fail() -> None:
    try:
        dict[str, str]()[CANARY]
    except KeyError as error:
        raise ValueError(CANARY) from error


def test_json_is_one_object_a_line() -> None:
    out = io.StringIO()
    logs.configure("auto", stream=out)
    logs.logger("door").info("standing by", slot="cdc_shop", active_pid=7)
    (line,) = lines(out)
    assert line["event"] == "standing by"
    assert line["room"] == "door"
    assert line["active_pid"] == 7
    assert line["level"] == "info"
    assert str(line["timestamp"]).endswith("Z")


def test_levels() -> None:
    out = io.StringIO()
    logs.configure("json", "warning", stream=out)
    log = logs.logger("x")
    log.info("no")
    log.warning("yes")
    assert [line["event"] for line in lines(out)] == ["yes"]


def test_libraries_go_the_same_way_from_warning_on() -> None:
    out = io.StringIO()
    logs.configure("json", "debug", stream=out)
    logging.getLogger("uvicorn.error").info("no")
    logging.getLogger("uvicorn.error").warning("port %d", 5)
    (line,) = lines(out)
    assert line["event"] == "port 5"
    assert line["logger"] == "uvicorn.error"


@pytest.mark.parametrize("form", FORMATS)
def test_no_canary(form: logs.Format) -> None:
    out = io.StringIO()
    logs.configure(form, "debug", stream=out, scrub=mask)
    log = logs.logger("x")
    log.info("row", payload=CANARY, key=CANARY, value=CANARY.encode(), other=CANARY.encode())
    log.info("settings", sasl_password=CANARY, nested={"token": CANARY, "list": [CANARY.encode()]})
    log.info("connecting", to=f"postgresql://cdc:{CANARY}@db/shop", also=f"host=db password={CANARY}")
    log.info(f"connecting to postgresql://cdc:{CANARY}@db/shop")  # noqa: G004 - what somebody might write
    logging.getLogger("lib").warning("postgresql://cdc:%s@db/shop", CANARY)
    try:
        fail()
    except ValueError as error:
        log.exception("failed")
        log.warning("failed", error=error)
        logging.getLogger("lib").exception("failed")
        logs.crashed(error)
    assert CANARY not in out.getvalue()
    assert out.getvalue().count("failed") >= 3


def test_a_trace_shows_places_of_the_cause_too() -> None:
    try:
        fail()
    except ValueError as error:
        trace = logs.trace(error)
    assert trace[0].endswith(" fail")
    assert trace[1] == "KeyError"
    assert trace[-1] == "ValueError"


def test_our_own_errors_keep_their_words() -> None:
    assert logs.describe(KafkaRefused("no topic", "create it")) == "KafkaRefused: no topic. Fix: create it"
    assert logs.describe(FileNotFoundError(2, "No such file", CANARY)) == "FileNotFoundError: No such file"


def test_crashed_needs_no_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()
    logs.crashed(ValueError(CANARY))
    shown = capsys.readouterr().err
    assert "ValueError" in shown
    assert CANARY not in shown
