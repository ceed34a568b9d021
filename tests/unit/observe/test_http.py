"""The endpoint on a real socket: what it answers, and how it starts and stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import orjson
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from cdc.errors import ConfigurationError
from cdc.observe import logs
from cdc.observe.health import HEARTBEAT_MAX_AGE_S
from cdc.observe.http import HttpServer
from cdc.observe.observer import PipelineObserver
from cdc.observe.web import create_app
from cdc.pipeline.supervisor import State
from tests.unit.observe.observe_samples import POSITION, SERVER, Clock

ANSWER_S = 10.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def observer(clock: Clock) -> PipelineObserver:
    return PipelineObserver("shop", monotonic=clock, wall_us=clock.us)


@pytest.fixture
def server(observer: PipelineObserver) -> Iterator[HttpServer]:
    extra = Route("/registry/x", lambda _: PlainTextResponse("from another room"))
    server = HttpServer("127.0.0.1", 0, lambda: create_app(observer.health, observer.metrics, [extra]))
    server.start()
    yield server
    server.stop()


def get(server: HttpServer, path: str) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection(server.host, server.port, timeout=ANSWER_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_live(server: HttpServer, clock: Clock) -> None:
    assert get(server, "/health/live")[0].status == 200
    clock.now += HEARTBEAT_MAX_AGE_S + 1
    answer, text = get(server, "/health/live")
    assert answer.status == 503
    assert "31 s" in text


def test_ready(server: HttpServer, observer: PipelineObserver, clock: Clock) -> None:
    assert get(server, "/health/ready")[0].status == 503
    observer.state(State.STANDBY, "replication slot 'cdc_shop' is active for backend pid 7")
    answer, text = get(server, "/health/ready")
    assert answer.status == 503
    assert text == "standby: replication slot 'cdc_shop' is active for backend pid 7\n"
    assert get(server, "/health/live")[0].status == 200
    answer, said = get(server, "/health/ready?standby=ok")
    assert (answer.status, said) == (200, text), "for who rolls out and drains by it"
    observer.state(State.STREAMING, "")
    assert get(server, "/health/ready")[0].status == get(server, "/health/ready?standby=ok")[0].status == 200
    clock.now += HEARTBEAT_MAX_AGE_S
    assert get(server, "/health/ready")[0].status == get(server, "/health/ready?standby=ok")[0].status == 503
    observer.state(State.BACKOFF, "no broker")
    assert get(server, "/health/ready?standby=ok")[0].status == 503


def test_status(server: HttpServer, observer: PipelineObserver) -> None:
    observer.server(SERVER, POSITION)
    answer, text = get(server, "/status")
    document = orjson.loads(text)
    assert answer.headers["content-type"] == "application/json"
    assert document == orjson.loads(orjson.dumps(observer.health.document()))
    assert document["slot"]["held_back_bytes"] == 100


def test_metrics(server: HttpServer) -> None:
    answer, text = get(server, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'cdc_state{state="starting"} 1.0' in text


def test_page_is_whole_and_escapes(server: HttpServer, observer: PipelineObserver) -> None:
    observer.server(SERVER, POSITION)
    observer.state(State.BACKOFF, "<script>alert(1)</script>")
    answer, text = get(server, "/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script>alert" not in text
    assert text.count("<script>") == 1, "our own"
    assert "&lt;script&gt;" in text
    assert "0/384" in text


def test_other_rooms_and_nobody(server: HttpServer) -> None:
    assert get(server, "/registry/x")[1] == "from another room"
    assert get(server, "/nothing")[0].status == 404


def test_a_port_in_use_names_the_setting(server: HttpServer) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.listen = .*the port is in use"):
        HttpServer("127.0.0.1", server.port, lambda: create_app(PipelineObserver("x").health, PipelineObserver("x").metrics))


def test_an_address_that_does_not_exist(observer: PipelineObserver) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.listen"):
        HttpServer("host.invalid", 1, lambda: create_app(observer.health, observer.metrics))


def test_stop_ends_the_thread_and_frees_the_port(server: HttpServer, observer: PipelineObserver) -> None:
    connection = HTTPConnection(server.host, server.port, timeout=ANSWER_S)
    connection.request("GET", "/status")
    connection.getresponse().read()  # and keep it open
    server.stop()
    server.stop()
    assert "http" not in {thread.name for thread in threading.enumerate()}
    HttpServer(server.host, server.port, lambda: create_app(observer.health, observer.metrics)).stop()
    connection.close()


def test_what_comes_while_it_loads_waits_and_is_answered(observer: PipelineObserver) -> None:
    asked, loaded = threading.Event(), create_app(observer.health, observer.metrics)

    def load() -> ASGIApp:
        assert asked.wait(ANSWER_S)
        return loaded

    server = HttpServer("127.0.0.1", 0, load)
    server.start()
    connection = HTTPConnection(server.host, server.port, timeout=ANSWER_S)
    connection.request("GET", "/health/live")
    asked.set()
    assert connection.getresponse().status == 200
    connection.close()
    server.stop()


def test_a_stop_while_it_loads_is_a_stop(observer: PipelineObserver) -> None:
    loading, stopped = threading.Event(), threading.Event()

    def load() -> ASGIApp:
        loading.set()
        while not endpoint._stopped:
            stopped.wait(0.001)
        return create_app(observer.health, observer.metrics)

    endpoint = HttpServer("127.0.0.1", 0, load)
    endpoint.start()
    assert loading.wait(ANSWER_S)
    endpoint.stop()
    assert "http" not in {thread.name for thread in threading.enumerate()}


def test_what_cannot_be_loaded_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> ASGIApp:
        raise ModuleNotFoundError

    logs.configure("json")
    server = HttpServer("127.0.0.1", 0, load)
    server.start()
    server.stop()
    assert "ModuleNotFoundError" in capsys.readouterr().err
