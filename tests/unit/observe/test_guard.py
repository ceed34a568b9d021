"""A token before what tells of the pipeline; none before probes and scrapers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from cdc.observe.guard import Guard
from cdc.observe.http import HttpServer

TOKEN = "a-token-of-thirty-two-characters"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def server() -> Iterator[HttpServer]:
    paths = ("/", "/metrics", "/health/live", "/healthy", "/registry/subjects")
    routes = [Route(path, lambda _: PlainTextResponse("inside")) for path in paths]
    server = HttpServer("127.0.0.1", 0, lambda: Guard(Starlette(routes=routes), TOKEN))
    server.start()
    yield server
    server.stop()


def status(server: HttpServer, path: str, authorization: str | None = None) -> int:
    connection = HTTPConnection(server.host, server.port, timeout=10)
    connection.request("GET", path, headers={} if authorization is None else {"authorization": authorization})
    answer = connection.getresponse()
    text = answer.read().decode()
    assert (text == "inside") == (answer.status == 200)
    assert TOKEN not in text
    assert answer.status == 200 or "Basic" in (answer.getheader("www-authenticate") or "")
    connection.close()
    return answer.status


@pytest.mark.parametrize("path", ["/metrics", "/health/live"])
def test_probes_and_scrapers_need_none(server: HttpServer, path: str) -> None:
    assert status(server, path) == 200


@pytest.mark.parametrize("path", ["/", "/registry/subjects", "/healthy", "//metrics"])
def test_everything_else_needs_it(server: HttpServer, path: str) -> None:
    assert status(server, path) == 401


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic("anybody", TOKEN), basic("", TOKEN)])
def test_bearer_and_basic_are_let_in(server: HttpServer, given: str) -> None:
    assert status(server, "/registry/subjects", given) == 200


@pytest.mark.parametrize("given", ["", TOKEN, "Bearer", "Bearer wrong", f"Digest {TOKEN}", basic(TOKEN, ""), "Basic %%%", "Basic " + TOKEN])
def test_others_are_not(server: HttpServer, given: str) -> None:
    assert status(server, "/registry/subjects", given) == 401


def test_its_repr_keeps_the_token() -> None:
    assert TOKEN not in repr(Guard(Starlette(), TOKEN))
