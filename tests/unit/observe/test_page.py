"""The status page's parts, and the stream of its changes."""

from __future__ import annotations

import re
from http.client import HTTPConnection
from itertools import pairwise

import orjson
import pytest

from cdc.audit.dead_letters import LAST, Letter
from cdc.observe import live
from cdc.observe.chart import COLUMNS, columns, curve, strip, top_of
from cdc.observe.health import Health
from cdc.observe.history import SAMPLE_S, SAMPLES_KEPT, History
from cdc.observe.http import HttpServer
from cdc.observe.observer import PipelineObserver
from cdc.observe.page import MEANING, STYLE, View, mood, page, parts, span_of
from cdc.observe.page_words import number, seconds
from cdc.observe.web import create_app
from cdc.pipeline.supervisor import STALLED_S, State
from tests.unit.observe.observe_samples import POSITION, SERVER, Clock

PLACE = "0001" + "0" * 15 + "5" + "0" * 8


def observer(clock: Clock) -> PipelineObserver:
    return PipelineObserver("shop", monotonic=clock, wall_us=clock.us)


def view(watch: PipelineObserver) -> View:
    return View(watch.health, watch.metrics, watch.history)


def nobody() -> None:
    """Nothing ends meanwhile."""


def test_an_hour_is_kept_and_no_more() -> None:
    clock = Clock()
    watch = observer(clock)
    for i in range(SAMPLES_KEPT + 10):
        clock.now += SAMPLE_S
        watch.committed(POSITION, 50 if i % 2 else 150, 0, 0.01)
        watch.history.look(nobody)
    samples = watch.history.samples
    assert len(samples) == SAMPLES_KEPT + 1
    assert samples[0].time_s == clock.now - (SAMPLES_KEPT - 1) * SAMPLE_S
    assert watch.history.rate() == 20
    assert span_of(samples).name == "hour"
    assert repr(watch.history) == f"<History of {SAMPLES_KEPT} samples>"


def test_lag_is_also_what_waits_for_kafka() -> None:
    clock = Clock()
    watch = observer(clock)
    assert watch.history.now().lag_s == 0
    watch.pending(3, int((clock.now - 7) * 1000))
    assert watch.history.now().lag_s == pytest.approx(7)


def test_a_curve_keeps_its_peaks_within_its_columns() -> None:
    points = [(float(i), 1.0) for i in range(3600)]
    points[1800] = (1800.0, 50.0)
    kept = columns(points, 0, 3600)
    assert len(kept) <= COLUMNS
    assert max(value for _, value in kept) == 50
    assert all(before[0] < after[0] for before, after in pairwise(kept))
    assert curve([], 0, 10, 1, "nothing <yet>").count("&lt;yet&gt;") == 1
    assert [top_of(value) for value in (0, 1, 1.1, 20, 21, 499, 501)] == [1, 1, 2, 20, 50, 500, 1000]
    assert strip([(0, 1, "bad"), (50, 60, "good")], 40, 60).count("<rect") == 1


def test_words() -> None:
    assert [number(each) for each in (0, 0.25, 9, 99.5, 1500, 2_000_000)] == ["0", "0.2", "9", "99.5", "1.5k", "2M"]
    assert number(21_400_000, "B") == "21.4 <small>MB</small>"
    assert [seconds(each) for each in (0, 0.02, 3.21, 59, 600, 9000)] == ["0 s", "20 ms", "3.2 s", "59 s", "10 min", "2.5 h"]


def test_every_state_has_a_meaning_and_a_mood() -> None:
    assert set(MEANING) == set(State)
    assert {state: mood(state, "") for state in State if mood(state, "") != "wait"} == {
        State.STREAMING: "good",
        State.BACKOFF: "bad",
        State.FAILED: "bad",
    }
    assert mood(State.STREAMING, "Kafka has not answered") == "bad"


def test_a_fault_is_shown_in_time() -> None:
    assert STALLED_S + live.PUSH_S < 5


def test_dead_letters_are_told_once_and_the_last_ones_only() -> None:
    clock = Clock()
    watch = observer(clock)
    for i in range(LAST + 5):
        watch.dead_letter("schema", f"id-{i}", f"{i:028x}", "$.a.b: a long expected, <a string> came", "")
    read = Letter(f"id-{LAST}", f"{LAST:028x}", "schema", "T", "t", "$.a.b: wrong", 1, 0, 0, open=False)
    watch.count_dead_letters(lambda _: 3, nobody, lambda: (read,))
    shown = parts(view(watch))["letters"]
    assert shown.count("<tr>") == LAST + 1
    assert shown.count("redriven") == 1
    assert "&lt;a string&gt;" in shown
    assert "<code>$.a.b</code>" in shown
    assert "href" not in shown, "payloads are for who has a token"


def test_what_holds_the_log_is_told() -> None:
    watch = observer(Clock())
    assert "not seen yet" in parts(view(watch))["log"]
    watch.server(SERVER, POSITION)
    told = parts(view(watch))["log"]
    assert "100 <small>B</small> below that" in told
    assert "0/384" in told


def test_the_page_is_whole_without_its_script() -> None:
    watch = observer(Clock())
    watch.state(State.BACKOFF, "no broker")
    inside = parts(view(watch))
    whole = page(view(watch))
    assert all(html in whole for html in inside.values())
    assert all(f'id="{name}"' in whole for name in inside)
    assert '<noscript><meta http-equiv="refresh"' in whole
    assert 'lang="en"' in whole
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", whole)


def luminance(colour: str) -> float:
    digits = colour * 1 if len(colour) == 6 else "".join(2 * each for each in colour)
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(scheme: int) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 for text."""
    block = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[scheme]
    colours = {name: luminance(value) for name, value in re.findall(r"--([\w-]+): #([0-9a-f]{3}|[0-9a-f]{6});", block)}
    pairs = [(text, ground) for text in ("ink", "soft", "accent", "good", "bad", "wait") for ground in ("card", "ground")]
    pairs += [(mood, f"{mood}-soft") for mood in ("good", "bad", "wait")] + [("ink", "bad-soft"), ("ink", "wait-soft")]
    for text, ground in pairs:
        lighter, darker = sorted((colours[text], colours[ground]), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, ground)


def test_changes_are_streamed_and_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PUSH_S", 0.02)
    monkeypatch.setattr(live, "VIEWERS_MAX", 1)
    health = Health("shop")
    metrics = PipelineObserver("shop").metrics
    server = HttpServer("127.0.0.1", 0, lambda: create_app(health, metrics, history=History(health)))
    server.start()
    browser = HTTPConnection(server.host, server.port, timeout=10)
    browser.request("GET", "/events")
    answer = browser.getresponse()
    assert answer.headers["content-type"] == "text/event-stream"

    def message() -> dict[str, str]:
        line = answer.readline()
        assert answer.readline() == b"\n"
        document: dict[str, str] = orjson.loads(line.removeprefix(b"data: "))
        return document

    assert message().keys() == parts(View(health, metrics, History(health))).keys(), "first all of it"
    health.turned(State.FAILED, "a reason")
    changed = message()
    while "state" not in changed:
        changed = message()
    assert "a reason" in changed["state"]
    assert "topics" not in changed

    second = HTTPConnection(server.host, server.port, timeout=10)
    second.request("GET", "/events")
    assert second.getresponse().status == 503
    second.close()
    server.stop()
    while answer.readline():
        pass
    browser.close()


def test_a_payload_needs_a_token() -> None:
    watch = observer(Clock())
    server = HttpServer("127.0.0.1", 0, lambda: create_app(watch.health, watch.metrics))
    server.start()
    browser = HTTPConnection(server.host, server.port, timeout=10)
    browser.request("GET", f"/dead-letter?at={PLACE}")
    assert browser.getresponse().status == 403
    browser.close()
    server.stop()
