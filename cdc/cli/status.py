"""`cdc status`: where the pipeline is, how far behind, and how its slot does.

Strategy: a running pipeline knows best, so its HTTP endpoint is asked first. When nobody answers there, the same document is
made from PostgreSQL and Kafka, and says that no pipeline runs.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from cdc.cli.options import Config, Json, Sets, settings_from
from cdc.cli.output import console, print_json, say, table
from cdc.settings import Settings, mask

ANSWER_WITHIN_S = 3.0
"""Seconds for the endpoint's answer: it reads a snapshot in memory, so a healthy one needs milliseconds."""

ANSWER_MAX_BYTES = 1_000_000
"""The document has some kilobytes; whatever sends more is not our endpoint."""

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound
"""An endpoint that listens on all addresses is asked on the loopback one."""


def status(config: Config = None, sets: Sets = None, as_json: Json = False) -> None:
    """Show positions, lag, the health of the slot and the last errors."""
    settings = settings_from(config, sets)
    document = ask(settings)
    if document is None:
        say(f"no pipeline {settings.name} answers at http.listen = {settings.http.listen!r}")
        document = look(settings)
    if as_json:
        print_json(document)
    else:
        show(document)


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


def look(settings: Settings) -> dict[str, Any]:
    """Return what PostgreSQL and Kafka tell while no pipeline answers, in the same form; an end that is away is a reason.

    The server is looked at before the position: a pipeline that runs elsewhere moves both, and the position moves first.
    """
    from cdc import app  # noqa: PLC0415 - loads the clients, which a running pipeline's answer does not need
    from cdc.audit.check import look as look_at_server  # noqa: PLC0415
    from cdc.cli.check import case  # noqa: PLC0415
    from cdc.errors import CdcError  # noqa: PLC0415
    from cdc.observe.health import Snapshot, Turn, status_document  # noqa: PLC0415

    now_us = time.time_ns() // 1000
    server = position = None
    reasons = []
    catalog, publisher = app.catalog(settings), app.publisher(settings)
    try:
        try:
            server = look_at_server(case(settings), catalog)
        except CdcError as error:
            reasons.append(error.what)
        try:
            position, _ = publisher.peek()
        except CdcError as error:
            reasons.append(error.what)
    finally:
        catalog.close()
        publisher.close()
    slot = None if server is None else server.slot
    if server is not None and slot is None:
        reasons.append(f"slot {settings.postgres.slot!r} does not exist")
    elif slot is not None and slot.active_pid is not None:
        reasons.append(f"backend {slot.active_pid} reads the slot: a pipeline runs somewhere else")
    turn = Turn(now_us, "not running", mask("; ".join(" ".join(reason.split()) for reason in reasons)))
    snapshot = Snapshot(settings.name, turn, (), position, server)
    return {"running": False, **status_document(snapshot, now_us)}


def show(document: Mapping[str, Any]) -> None:
    """Print the document for people: one line that says it all, then the facts."""
    out = console()
    out.print(headline(document), style="bold")
    out.print(table(("", ""), facts(document)))
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
    return line


def facts(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield what is known, name by name."""
    for section in ("position", "lag", "slot", "server", "totals"):
        for name, value in (document.get(section) or {}).items():
            if isinstance(value, Mapping):
                yield f"{section} {name.replace('_', ' ')}", ", ".join(f"{key} {each}" for key, each in value.items())
            elif value is not None:
                yield f"{section} {name.replace('_', ' ')}", value
