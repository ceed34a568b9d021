"""`cdc status`: where the pipeline is, how far behind, and how its slot does.

Strategy: a running pipeline knows best, so its HTTP endpoint is asked first. When nobody answers there, the same document is
made from PostgreSQL and Kafka, and says that no pipeline runs.
"""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from cdc.cli.options import Config, Json, Sets, settings_from
from cdc.cli.output import console, error_line, print_json, say, table
from cdc.errors import CdcError, PostgresRefused, Retriable
from cdc.settings import Settings, mask

ANSWER_WITHIN_S = 3.0
"""Seconds for the endpoint's answer: it reads a snapshot in memory, so a healthy one needs milliseconds."""

ANSWER_MAX_BYTES = 1_000_000
"""The document has some kilobytes; whatever sends more is not our endpoint."""

LETTERS_MAX = 10_000
"""A dead-letter topic with more records is not read while no pipeline runs: the answer comes within a second or so."""

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound
"""An endpoint that listens on all addresses is asked on the loopback one."""


def status(config: Config = None, sets: Sets = None, as_json: Json = False) -> None:
    """Show positions, lag, the health of the slot and the last errors."""
    settings = settings_from(config, sets)
    document, errors = ask(settings), list[CdcError]()
    if document is None:
        say(f"no pipeline {settings.name} answers at http.listen = {settings.http.listen!r}")
        document, errors = look(settings)
    if as_json:
        print_json(document)
    else:
        show(document)
    refused = next((error for error in errors if isinstance(error, PostgresRefused)), None)
    for error in errors:
        if error is not refused:
            say(error_line(error))
    if refused is not None:  # it could not be asked, which is no answer
        raise refused


def ask(settings: Settings) -> dict[str, Any] | None:
    """Return the document of the running pipeline, or None when none of this name answers."""
    if settings.http.address is None:
        return None
    host, port = settings.http.address
    connection = http.client.HTTPConnection(EVERYWHERE.get(host, host), port, timeout=ANSWER_WITHIN_S)
    try:
        token = settings.http.token
        headers = {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}
        connection.request("GET", "/status", headers={"accept": "application/json", **headers})
        answer = connection.getresponse()
        document = orjson.loads(answer.read(ANSWER_MAX_BYTES)) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, orjson.JSONDecodeError):
        return None
    finally:
        connection.close()
    if not isinstance(document, dict) or document.get("pipeline") != settings.name:
        return None
    return {"running": True, **document}


def look(settings: Settings) -> tuple[dict[str, Any], list[CdcError]]:
    """Return what PostgreSQL and Kafka tell while no pipeline answers, in the same form, and why one did not; that is a reason, too.

    The server is looked at before the position: a pipeline that runs elsewhere moves both, and the position moves first.
    """
    from cdc import app  # noqa: PLC0415 - loads the clients, which a running pipeline's answer does not need
    from cdc.audit.check import look as look_at_server  # noqa: PLC0415
    from cdc.cli.check import case  # noqa: PLC0415
    from cdc.observe.health import Snapshot, Turn, status_document  # noqa: PLC0415

    now_us = time.time_ns() // 1000
    server = position = None
    opened: int | None = None
    errors = list[CdcError]()
    catalog, publisher = app.catalog(settings), app.publisher(settings)
    try:
        try:
            server = look_at_server(case(settings), catalog)
        except CdcError as error:
            errors.append(_fixed(error, "start the server, or correct postgres.dsn"))
        try:
            position, _ = publisher.peek()
            opened = _open_letters(settings)
        except CdcError as error:
            errors.append(_fixed(error, 'start the broker, or correct kafka."bootstrap.servers"'))
    finally:
        catalog.close()
        publisher.close()
    reasons = [error.what for error in errors]
    slot = None if server is None else server.slot
    if server is not None and slot is None:
        reasons.append(f"slot {settings.postgres.slot!r} does not exist")
    elif slot is not None and slot.active_pid is not None:
        reasons.append(f"backend {slot.active_pid} reads the slot: a pipeline runs somewhere else")
    turn = Turn(now_us, "not running", mask("; ".join(" ".join(reason.split()) for reason in reasons)))
    snapshot = Snapshot(settings.name, turn, (), position, server)
    return {"running": False, **status_document(snapshot, now_us), "dead_letters_open": opened}, errors


def _fixed(error: CdcError, fix: str) -> CdcError:
    """Return an error of an end that is away with what to do about it."""
    return Retriable(error.what, fix) if isinstance(error, Retriable) and not error.fix else error


def _open_letters(settings: Settings) -> int | None:
    """Count the dead letters that are open, if they are few enough to be read for that and may be read."""
    from cdc import app  # noqa: PLC0415 - as in `look`
    from cdc.audit.open_letters import OpenLetters  # noqa: PLC0415
    from cdc.resilience.call import nobody_waits  # noqa: PLC0415

    if settings.rabbitmq is not None:
        return None
    with contextlib.suppress(CdcError):  # no topic yet, or no right to it
        return OpenLetters(lambda: app.subscriber(settings), settings.topics.dead_letter, settings.name, LETTERS_MAX).count(nobody_waits)
    return None


def show(document: Mapping[str, Any]) -> None:
    """Print the document for people: one line that says it all, then the facts."""
    out = console()
    out.print(headline(document), style="bold")
    if known := list(facts(document)):
        out.print(table(("", ""), known))
    errors = [(error["time"], error["state"], error["reason"]) for error in document.get("last_errors", ())]
    if errors:
        out.print(table(("time", "state", "reason"), errors, title="Last errors"))


def headline(document: Mapping[str, Any]) -> str:
    """Say how it is in one line."""
    reason = document.get("reason")
    line = f"{document['pipeline']}: {document['state']}{f', {reason}' if reason else ''}"
    lag = document.get("lag") or {}
    if lag.get("bytes") is not None:
        line += f", {lag['bytes']:,} bytes ({lag['seconds']:.1f} s) behind"
    opened, what = document.get("dead_letters_open"), "open"
    if opened is None:  # not counted yet
        opened, what = (document.get("totals") or {}).get("dead_letters"), "since it started"
    if opened:
        line += f"; {opened:,} dead letter{'s' * (opened > 1)} {what}: see `cdc dead-letters list`"
    return line


def facts(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield what is known, name by name; totals are of the process, and there are none without one."""
    if document.get("dead_letters_open") is not None:
        yield "dead letters open", document["dead_letters_open"]
    totals = document.get("totals") if document.get("running", True) else None
    sections = {name: document.get(name) for name in ("position", "lag", "slot", "server")} | {"since it started:": totals}
    for section, known in sections.items():
        for name, value in (known or {}).items():
            if isinstance(value, Mapping):
                yield f"{section} {name.replace('_', ' ')}", ", ".join(f"{key} {each}" for key, each in value.items())
            elif value is not None:
                yield f"{section} {name.replace('_', ' ')}", value
