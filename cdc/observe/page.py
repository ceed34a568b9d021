"""The status page: the status document as HTML, rendered here, without a script and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

REFRESH_S = 5
"""Seconds after which a browser asks again."""

_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #cf222e; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
"""


def page(document: Mapping[str, Any]) -> str:
    """Render the status document."""
    name, state, reason = escape(document["pipeline"]), escape(document["state"]), escape(document["reason"])
    mood = "good" if document["ready"] and document["live"] else "bad"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{name}: {state}</title>',
        f'<meta http-equiv="refresh" content="{REFRESH_S}">',
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body><main>',
        f'<h1>{name} <span class="{mood}">{state}</span></h1>',
        f"<p>{reason or 'since ' + escape(document['since'])}</p>",
    ]
    for title, key in (
        ("Position", "position"),
        ("Lag", "lag"),
        ("Slot", "slot"),
        ("Server", "server"),
        ("Totals", "totals"),
    ):
        parts += _facts(title, document[key])
    parts += [
        "<h2>What happened</h2><table><thead><tr><th>Time</th><th>State</th><th>Reason</th></tr></thead><tbody>",
        *(_row(turn["time"], turn["state"], turn["reason"]) for turn in document["turns"]),
        "</tbody></table></main></body></html>",
    ]
    return "\n".join(parts)


def _facts(title: str, facts: Mapping[str, Any] | None) -> Iterable[str]:
    if facts is None:
        return
    yield f"<h2>{title}</h2><table><tbody>"
    for name, value in facts.items():
        shown = "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        yield f'<tr><th scope="row">{escape(name.replace("_", " "))}</th><td>{escape(shown)}</td></tr>'
    yield "</tbody></table>"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
