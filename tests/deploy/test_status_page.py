"""The status page of a real pipeline in a real browser: it lives, shows a dead letter, turns red with each end and green again."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer
from tests.browser import DESKTOP, PHONE, Browser
from tests.conftest import Pipelines
from tests.deploy.conftest import Debian
from tests.pipeline import Pipeline
from tests.waiting import wait_for

RED_WITHIN_S = 15.0
"""What is promised is 5 s; a machine that is busy with other tests is given more, and the figures tell what it was."""

INVALID = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', %s) RETURNING id::text"


@pytest.fixture(scope="module")
def _browsers() -> Iterator[ExitStack]:
    with ExitStack() as started:
        yield started


_started: dict[Path, Browser] = {}


@pytest.fixture
def browser(debian: Debian, _browsers: ExitStack, tmp_path: Path) -> Browser:
    """One for all tests: its start is the longest part of them."""
    program = debian("chromium")
    if program not in _started:
        _started[program] = _browsers.enter_context(Browser(program, tmp_path))
        _browsers.callback(_started.clear)
    _started[program].look(DESKTOP)
    return _started[program]


def tile(browser: Browser, name: str) -> str:
    """The large figure of a tile, without its unit."""
    found = f"[...document.querySelectorAll('#tiles dt')].find((each) => each.innerText === '{name}')?.nextElementSibling.innerText"
    return str(browser.ask(found) or "").split(" ")[0]


def shown(browser: Browser) -> tuple[str, str]:
    """The state's word and its mood."""
    return browser.text("#state-word"), str(browser.ask("document.getElementById('state-word').className")).removeprefix("pill ")


@pytest.mark.packages
@pytest.mark.servers
def test_the_page_lives(
    pipelines: Pipelines,
    spare_postgres: PostgresServer,
    spare_kafka: KafkaBroker,
    spare_database: str,
    browser: Browser,
    figures: dict[str, Any],
) -> None:
    pipeline = pipelines(spare_database, spare_kafka.bootstrap_servers)
    pipeline.init()
    pipeline.started()
    browser.open(f"http://127.0.0.1:{pipeline.port}/")
    assert shown(browser) == ("streaming", "good")
    assert browser.ask("document.title") == f"{pipeline.name}: streaming"
    wait_for(lambda: browser.ask("document.body.dataset.live") == "yes", 30, "the page hears of changes")

    pipeline.insert(1, 2_000)
    topic = "document.querySelector('#topics tbody td')?.innerText"
    wait_for(lambda: browser.ask(topic) == "2,000", 30, "records of the topic are counted in the page")
    wait_for(lambda: tile(browser, "Events a second") not in {"", "0"}, 30, "the rate moves under load")
    assert "Thing" in browser.text("#schemas tbody tr")

    canary = "canary-7f3a"
    [(name,)] = pipeline.execute(INVALID, (f'{{"n": "{canary}"}}',))
    wait_for(lambda: name in browser.text("#letters"), 30, "a dead letter appears")
    letter = browser.text("#letters tbody tr")
    assert "schema" in letter
    assert "$.n" in letter
    assert canary not in browser.ask("document.documentElement.outerHTML")

    figures["red_without_kafka_s"] = _fault(pipeline, browser, spare_kafka.freeze, spare_kafka.thaw)
    figures["red_without_postgres_s"] = _fault(pipeline, browser, spare_postgres.stop, spare_postgres.start)
    assert "backoff" in browser.text("#timeline")

    browser.look(PHONE, "dark")
    assert browser.ask("document.documentElement.scrollWidth") <= PHONE.width, "a phone need not be moved sideways"
    assert pipeline.terminate() == 0, "an open page keeps nobody from stopping"
    wait_for(lambda: not browser.ask("document.getElementById('lost').hidden"), 30, "the page says that nobody answers")


def _fault(pipeline: Pipeline, browser: Browser, begin: Any, end: Any) -> float:  # noqa: ANN401 - calls of servers
    """Take one end away under load and give it back; return the seconds until the page was red."""
    pipeline.insert(1, 10)
    pipeline.hang_up()
    began = time.monotonic()
    begin()
    if begin.__name__ == "freeze":
        pipeline.insert(1, 10)
        pipeline.hang_up()
    wait_for(lambda: shown(browser)[1] == "bad", RED_WITHIN_S, "the page is red")
    seconds = time.monotonic() - began
    assert browser.text("#state .reason")
    end()
    wait_for(lambda: shown(browser) == ("streaming", "good"), 90, "the page is green again")
    return round(seconds, 1)


@pytest.mark.packages
@pytest.mark.servers
def test_payloads_are_for_who_has_the_token(pipeline: Pipeline, browser: Browser) -> None:
    pipeline.set(http__token="0123456789abcdef")
    pipeline.init()
    pipeline.start()
    wait_for(lambda: pipeline.get("/health/ready")[0] == 200, 60, "it streams")
    [(name,)] = pipeline.execute(INVALID, ('{"n": "not a number"}',))
    assert pipeline.get("/")[0] == pipeline.get("/events")[0] == pipeline.get("/dead-letter?at=0")[0] == 401
    browser.do("Network.enable")
    token = base64.b64encode(b"me:0123456789abcdef").decode()
    browser.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {token}"})
    browser.open(f"http://127.0.0.1:{pipeline.port}/")
    wait_for(lambda: name in browser.text("#letters"), 30, "a dead letter appears")
    assert "not a number" not in browser.text("body")
    link = "[...document.querySelectorAll('#letters a')].find((each) => each.innerText === %r)"
    browser.ask(f"{link % name}.focus()")
    wait_for(lambda: browser.ask("document.activeElement.innerText") == name, 10, "a link keeps the keyboard's place")
    browser.ask(f"{link % name}.click()")
    wait_for(lambda: "not a number" in browser.text("pre"), 60, "its payload was asked for")
    browser.do("Network.setExtraHTTPHeaders", headers={})
