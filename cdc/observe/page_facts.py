"""Parts of the status page that tell facts: the log, topics, schemas and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from cdc.avro.registry import Registry
from cdc.observe.chart import WIDTH
from cdc.observe.health import Health, SlotHealth, Snapshot
from cdc.observe.metrics import Metrics
from cdc.observe.page_words import clock, number, seconds
from cdc.position import time_text

if TYPE_CHECKING:
    from cdc.audit.dead_letters import Letter

ROWS_SHOWN = 25
"""Rows of a table; what is left out is counted below it."""


WORTH_TELLING_BYTES = 64_000_000
"""Log that an old transaction holds back, from which on the page says what to do: some segments are usual."""


def log_part(snapshot: Snapshot) -> str:
    """Tell where we are in the log and what holds it back."""
    position, server, health = snapshot.position, snapshot.server, snapshot.slot
    facts: list[tuple[str, str]] = []
    if position is not None:
        facts += [
            ("Published up to", f"<code>{position.end_lsn}</code>"),
            ("committed there", clock(position.commit_time_us)),
            ("Generation", str(position.generation)),
        ]
    if server is not None:
        facts.append(("Log ends at", f"<code>{server.flush_lsn}</code>"))
        if server.slot is not None:
            facts += [
                ("Confirmed", f"<code>{server.slot.confirmed_flush_lsn or '&ndash;'}</code>"),
                ("Kept from", f"<code>{server.slot.restart_lsn or '&ndash;'}</code>"),
            ]
        facts.append(("Server", f"PostgreSQL {server.version // 10_000}, system {escape(server.system_id)}"))
    told = "The server was not seen yet." if health is None else _kept(health)
    listed = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    table = f'<table aria-label="Places in the log"><tbody>{listed}</tbody></table>' if facts else ""
    return f'<div class="head"><h2>Where we are in the log</h2></div>{told}{table}'


def _kept(health: SlotHealth) -> str:
    own, held = health.confirmed_lag_bytes or 0, health.held_back_bytes or 0
    both = own + held
    lines = [f'<p><span class="key own"></span>{number(own, "B")} that this pipeline has not confirmed</p>']
    lines.append(f'<p><span class="key held"></span>{number(held, "B")} below that, for transactions that were open there</p>')
    if held > max(own, WORTH_TELLING_BYTES):
        lines.append('<p class="reason wait small">An old transaction, in whatever table, holds the log back. Ending it frees it.</p>')
    if health.wal_status not in {None, "reserved", "extended"} or health.seconds_until_lost is not None:
        left = "" if health.seconds_until_lost is None else f"; at the present rate it is lost in {seconds(health.seconds_until_lost)}"
        lines.append(f'<p class="reason bad small">The slot is {escape(health.wal_status or "unknown")}{left}.</p>')
    cut = 0.0 if not both else WIDTH * held / both
    blocks = (
        f'<rect class="held" width="{cut:.1f}" height="10"/><rect class="own" x="{cut:.1f}" width="{WIDTH - cut:.1f}" height="10"/>'
        if both
        else ""
    )
    drawn = f'<svg viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">{blocks}</svg>'
    return f'<div class="small"><div class="bar">{drawn}</div>{"".join(lines)}</div><br>'


def topics_part(metrics: Metrics) -> str:
    """Tell what was committed to which topic since the start."""
    records, sizes = dict(metrics.topic_records.counts), dict(metrics.topic_bytes.counts)
    rows = [
        (f'<th scope="row">{escape(topic)}</th>', _figure(f"{count:,}"), _figure(number(sizes.get((topic,), 0), "B")))
        for (topic,), count in sorted(records.items(), key=lambda item: -item[1])
    ]
    columns = (("Topic", ""), ("Records", "number"), ("Bytes", "number"))
    return _section("Topics", "committed since the start", columns, rows, "Nothing was published since the start.")


def schemas_part(registry: Registry | None) -> str:
    """Tell which schemas there are and which of them rows have asked for; those first."""
    if registry is None:
        return ""
    used = registry.used
    by_subject: dict[str, list[int]] = {}
    for subject, version in sorted(used):
        by_subject.setdefault(subject, []).append(version)
    rows = []
    for subject in sorted(registry.subjects, key=lambda name: (name not in by_subject, name)):
        newest, settings = registry.latest(subject), registry.settings_of(subject)
        versions = ", ".join(map(str, by_subject.get(subject, ()))) or '<span class="soft">not yet</span>'
        cells = (f'<th scope="row">{escape(subject)}</th>', _cell(versions), _figure(newest.number), _figure(newest.id))
        rows.append((*cells, _cell(escape(settings.owner) or "&ndash;")))
    columns = (("Subject", ""), ("In use", ""), ("Newest", "number"), ("Id", "number"), ("Owner", ""))
    summary = f"{len(by_subject)} of {len(registry.subjects)} in use since the start"
    return _section("Schemas", summary, columns, rows, "The schema folder is empty.")


def letters_part(health: Health, *, payloads: bool) -> str:
    """Tell of the last dead letters why and where, never what was in them."""
    known = {letter.sequence: letter for letter in (*health.letters, *health.letters_read)}
    letters = sorted(known.values(), key=lambda letter: letter.sequence, reverse=True)
    rows = []
    for letter in letters[:ROWS_SHOWN]:
        name = letter.id or letter.sequence
        shown = f"<code>{escape(name)}</code>"
        if payloads:
            shown = f'<a id="letter-{escape(letter.sequence)}" href="dead-letter?at={quote(letter.sequence)}">{shown}</a>'
        rows.append(
            (
                _cell(clock(letter.timestamp_ms * 1000), "nowrap"),
                _cell(f'<span class="mood {"bad" if letter.open else "good"}">{"open" if letter.open else "redriven"}</span>', "nowrap"),
                _cell(escape(letter.reason), "nowrap"),
                _cell(f"<code>{escape(letter.path) or '&ndash;'}</code>", "path"),
                _cell(shown, "event"),
                _cell(escape(letter.message), "what"),
            )
        )
    columns = (("Time", ""), ("", ""), ("Reason", ""), ("Path", ""), ("Event", ""), ("What", ""))
    nothing = "None was parked since the start."
    how = "with its payload behind the event's id" if payloads else "<code>cdc dead-letters show ID --payload</code> shows one whole"
    return _section("Last dead letters", how, columns, rows, nothing)


def letter_page(style: str, sequence: str, facts: Iterable[tuple[str, str]], payload: str | None) -> str:
    """Return a page for one dead letter with its payload (None: there is none), for who brought the token."""
    listed = "".join(f'<tr><th scope="row">{name}</th><td>{escape(value)}</td></tr>' for name, value in facts)
    told = '<p class="soft">It has none: the row was a tombstone.</p>' if payload is None else f"<pre><code>{escape(payload)}</code></pre>"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Dead letter {escape(sequence)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style>
</head>
<body>
<main>
<p><a href="./#letters">Back to the pipeline</a></p>
<h1>Dead letter</h1>
<section class="card"><table class="facts"><tbody>{listed}</tbody></table></section>
<section class="card">
<div class="head"><h2>Payload</h2><span class="soft small">personal fields are masked</span></div>
{told}
</section>
</main>
</body>
</html>
"""


def letter_facts(letter: Letter) -> list[tuple[str, str]]:
    """Return what a dead letter's page says beside the payload."""
    facts = (
        ("Id", letter.id),
        ("Place", letter.sequence),
        ("Reason", letter.reason),
        ("Path", letter.path),
        ("What", letter.message),
        ("Type", letter.type),
        ("Meant for", letter.topic),
        ("Time", time_text(letter.timestamp_ms * 1000)),
        ("State", "open" if letter.open else "redriven"),
    )
    return [(name, value or "-") for name, value in facts]


def _section(title: str, summary: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], nothing: str) -> str:
    head = f'<div class="head"><h2>{title}</h2><span class="soft small">{summary}</span></div>'
    if not rows:
        return f'{head}<p class="soft">{nothing}</p>'
    names = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in columns)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows[:ROWS_SHOWN])
    more = f'<p class="soft small">and {len(rows) - ROWS_SHOWN:,} more</p>' if len(rows) > ROWS_SHOWN else ""
    return f'{head}<div class="rows"><table aria-label="{title}"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _cell(html: str, kind: str = "") -> str:
    return f'<td class="{kind}">{html}</td>' if kind else f"<td>{html}</td>"


def _figure(value: object) -> str:
    return _cell(str(value), "number")
