"""The status page: rendered here in parts, each of which stands alone, so that what has changed can be sent by itself.

Strategy: `parts` makes the inside of every part from snapshots, `page` puts them into a document with its style and script in
it: nothing is loaded from anywhere, and without a script the page is whole and loads itself again. Everything that comes from
outside is escaped. What moves is told in words as well as in colours and curves. Payloads never come here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from cdc.avro.registry import Registry
from cdc.observe.chart import Point, curve, strip, top_of
from cdc.observe.health import Health, Snapshot, Turn
from cdc.observe.history import History, Sample
from cdc.observe.metrics import Metrics
from cdc.observe.page_facts import letters_part, log_part, schemas_part, topics_part
from cdc.observe.page_words import clock, number, seconds, when
from cdc.pipeline.supervisor import State

REFRESH_S = 5
"""Seconds after which a browser without a script asks again."""

SPANS = ((300.0, "5 minutes", "5 min ago"), (900.0, "15 minutes", "15 min ago"), (3600.0, "hour", "1 h ago"))
"""What the curves may show: a young process would be a dot at the end of an hour."""

UNKNOWN = "&ndash;"

TURNS_SHOWN = 25

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
SCRIPT_SOURCE = "'sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode() + "'"
"""The script as a content security policy names it: no other one runs."""

MEANING: Mapping[str, str] = {
    State.STARTING: "It has just been started.",
    State.STANDBY: "Another instance has the slot. This one takes over as soon as it is free.",
    State.OPENING: "It takes the slot and proves that nothing is missing.",
    State.STREAMING: "What is committed in PostgreSQL is published.",
    State.BACKOFF: "A fault has ended the last attempt. It tries again by itself; nothing is lost, the slot keeps the log.",
    State.HELD: "It waits for an operator's command to end.",
    State.STOPPING: "It was told to stop.",
    State.STOPPED: "It has stopped.",
    State.FAILED: "It has given up: somebody has to decide.",
}

_SHAPES = {
    "good": '<svg viewBox="0 0 12 12" aria-hidden="true"><circle cx="6" cy="6" r="5"/></svg>',
    "wait": '<svg viewBox="0 0 12 12" aria-hidden="true"><rect x="1.5" y="1.5" width="9" height="9" rx="1"/></svg>',
    "bad": '<svg viewBox="0 0 12 12" aria-hidden="true"><path d="M6 .5 11.8 11H.2Z"/></svg>',
}

_ICONS = {
    mood: "data:image/svg+xml,"
    + quote(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="{colour}"/></svg>')
    for mood, colour in (("good", "#1f9d55"), ("wait", "#d99a1c"), ("bad", "#d9303e"))
}


@dataclass(frozen=True, slots=True)
class View:
    """All that the page shows. `payloads` says that dead letters have pages of their own (see `cdc.observe.letter`)."""

    health: Health
    metrics: Metrics
    history: History
    registry: Callable[[], Registry] | None = None
    payloads: bool = False


class Span(NamedTuple):
    """The time that the curves show, from and to in Unix seconds, and how it is called."""

    start_s: float
    end_s: float
    name: str
    ago: str


def span_of(samples: list[Sample]) -> Span:
    """Return the shortest time that shows all samples."""
    first_s, now_s = samples[0].time_s, samples[-1].time_s
    length_s, name, ago = next((span for span in SPANS if now_s - first_s <= span[0]), SPANS[-1])
    return Span(now_s - length_s, now_s, name, ago)


def mood(state: str, reason: str) -> str:
    """Return how a state is taken: good, wait (nothing is wrong, nothing is published) or bad."""
    if state == State.STREAMING:
        return "bad" if reason else "good"
    return "bad" if state in {State.BACKOFF, State.FAILED} else "wait"


def parts(view: View) -> dict[str, str]:
    """Return the inside of every part of the page, by its id."""
    samples, snapshot = view.history.samples, view.health.snapshot
    span = span_of(samples)
    shown = [sample for sample in samples if sample.time_s >= span.start_s]
    return {
        "state": _state(view.health),
        "tiles": _tiles(view),
        "throughput": _throughput(shown, span),
        "lag": _lag(shown, span),
        "log": log_part(snapshot),
        "letters": letters_part(view.health, payloads=view.payloads),
        "topics": topics_part(view.metrics),
        "schemas": schemas_part(None if view.registry is None else view.registry()),
        "timeline": _timeline(snapshot.turns, span),
    }


def page(view: View) -> str:
    """Return the document."""
    inside = parts(view)
    name = escape(view.health.snapshot.pipeline)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{name}: {escape(view.health.snapshot.turn.state)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" id="icon" href="{_ICONS[_mood(view.health)]}">
<style>{STYLE}</style>
<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>
</head>
<body data-pipeline="{name}">
<a class="skip" href="#facts">Skip to the figures</a>
<main>
<header>
<div id="state" role="status" aria-live="polite" aria-atomic="true">{inside["state"]}</div>
<p id="lost" class="reason bad" role="alert" hidden>The process does not answer. What stands here is old; it is asked again and again.</p>
</header>
<dl class="tiles" id="tiles">{inside["tiles"]}</dl>
<div class="two" id="facts">
<section class="card" id="throughput">{inside["throughput"]}</section>
<section class="card" id="lag">{inside["lag"]}</section>
</div>
<section class="card" id="timeline">{inside["timeline"]}</section>
<section class="card letters" id="letters">{inside["letters"]}</section>
<div class="two">
<section class="card" id="log">{inside["log"]}</section>
<div class="stack">
<section class="card" id="topics">{inside["topics"]}</section>
<section class="card" id="schemas">{inside["schemas"]}</section>
</div>
</div>
<footer>{_links()}</footer>
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _links() -> str:
    links = (("status", "as JSON"), ("metrics", "metrics"), ("registry/subjects", "schema registry"))
    return "<span>All times are UTC.</span>" + "".join(f'<a href="{path}">{text}</a>' for path, text in links)


def _mood(health: Health) -> str:
    turn = health.snapshot.turn
    return mood(turn.state, turn.reason) if health.live else "bad"


def _state(health: Health) -> str:
    snapshot = health.snapshot
    turn, how = snapshot.turn, _mood(health)
    told = "" if health.live else "The loop has not turned for too long: the process hangs, and its log says where."
    told = told or turn.reason
    reason = f'<p class="reason {how}">{escape(told)}</p>' if told else ""
    return (
        f'<div class="title"><h1>{escape(snapshot.pipeline)}</h1><span class="pill {how}" id="state-word" data-icon="{_ICONS[how]}">'
        f"{_SHAPES[how]}{escape(turn.state)}</span></div>"
        f'<p class="soft">{MEANING.get(turn.state, "")} Since {when(turn.time_us)}.</p>{reason}'
    )


def _tiles(view: View) -> str:
    health, snapshot, now = view.health, view.health.snapshot, view.history.now()
    slot, opened = snapshot.slot, health.dead_letters_open
    kept = None if slot is None else slot.retained_bytes
    in_a_row = snapshot.failures_in_a_row
    tiles = [
        ("Events a second", number(view.history.rate()), f"{snapshot.events:,} since the start"),
        ("Lag", seconds(now.lag_s), "behind PostgreSQL's commits" if now.lag_s else "nothing waits"),
        ("Rows under way", f"{health.pending.rows:,}", f"{snapshot.kafka_transactions:,} Kafka transactions so far"),
        ("Dead letters open", UNKNOWN if opened is None else f"{opened:,}", f"{snapshot.dead_letters:,} since the start"),
        ("Log kept for the slot", UNKNOWN if kept is None else number(kept, "B"), _slot_word(snapshot)),
        ("Faults", f"{snapshot.failures:,}", f"{in_a_row:,} in a row" if in_a_row else "none under way"),
    ]
    return "".join(
        f'<div class="card"><dt>{name}</dt><dd class="big">{value}</dd><dd class="soft small">{escape(more)}</dd></div>'
        for name, value, more in tiles
    )


def _slot_word(snapshot: Snapshot) -> str:
    if snapshot.slot is not None:
        return f"the slot is {snapshot.slot.wal_status or 'of unknown state'}"
    return "the server was not seen yet" if snapshot.server is None else "there is no slot"


def _throughput(samples: list[Sample], span: Span) -> str:
    points: list[Point] = [
        (after.time_s, (after.events - before.events) / (after.time_s - before.time_s))
        for before, after in pairwise(samples)
        if after.time_s - before.time_s >= 1  # this moment may follow a sample at once
    ]
    total = samples[-1].events - samples[0].events
    highest = max((value for _, value in points), default=0.0)
    words = f"{total:,} events in the last {span.name}"
    return _plot("Throughput", "events/s", words, f"{words}, at most {number(highest)} a second", points, span)


def _lag(samples: list[Sample], span: Span) -> str:
    points: list[Point] = [(sample.time_s, sample.lag_s) for sample in samples]
    words = f"at most {seconds(max(value for _, value in points))} in the last {span.name}"
    return _plot("Lag", "seconds", words, f"Lag now {seconds(points[-1][1])}, {words}", points, span)


def _plot(title: str, unit: str, summary: str, label: str, points: list[Point], span: Span) -> str:  # noqa: PLR0913, PLR0917
    top = top_of(max((value for _, value in points), default=0.0))
    scale = "".join(f"<span>{number(value)}</span>" for value in (top, top / 2, 0))
    return (
        f'<div class="head"><h2>{title} <span class="soft small">{unit}</span></h2><span class="soft small">{summary}</span></div>'
        f'<div class="plot"><div class="scale" aria-hidden="true">{scale}</div>{curve(points, span.start_s, span.end_s, top, label)}'
        f'<div class="ends" aria-hidden="true"><span>{span.ago}</span><span>now</span></div></div>'
    )


def _timeline(turns: tuple[Turn, ...], span: Span) -> str:
    starts = [turn.time_us / 1e6 for turn in turns]
    ends = [*starts[1:], span.end_s]
    moods = [mood(turn.state, turn.reason) for turn in turns]
    faults = moods.count("bad")
    summary = f"{faults:,} of the last {len(turns):,} states were faults" if faults else "no fault"
    drawn = strip(list(zip(starts, ends, moods, strict=True)), span.start_s, span.end_s)
    items = "".join(_turn(turns[i], None if i == len(turns) - 1 else ends[i] - starts[i]) for i in _newest(len(turns)))
    return (
        f'<div class="head"><h2>What happened <span class="soft small">in the last {span.name}, and before</span></h2>'
        f'<span class="soft small">{summary}</span></div>{drawn}<ol class="turns">{items}</ol>'
    )


def _newest(count: int) -> range:
    return range(count - 1, max(-1, count - 1 - TURNS_SHOWN), -1)


def _turn(turn: Turn, lasted_s: float | None) -> str:
    told = f'<span class="reason-text">{escape(turn.reason)}</span>' if turn.reason else ""
    told = told or f'<span class="reason-text soft">{MEANING.get(turn.state, "")}</span>'
    lasted = "until now" if lasted_s is None else f"for {seconds(max(0.0, lasted_s))}"
    return (
        f'<li><span class="nowrap soft">{clock(turn.time_us)}</span>'
        f'<span class="mood {mood(turn.state, turn.reason)}">{escape(turn.state)}</span>'
        f'<span class="soft nowrap">{lasted}</span>{told}</li>'
    )
