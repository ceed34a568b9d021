"""How the cost of an event grows: with its payload, its transaction, the number of topics, the fields of its schema, the backlog.

One curve after the other on the same servers, each point beside pg_recvlogical on a copy of the same slot. What a start costs is
measured by itself, with a backlog of one row, and taken off: the points of a curve differ in their number of events.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import backlog
from benchmarks.rig import SCHEMAS, Rig, rig
from tests.pipeline import write_schemas

FIELDS = (5, 20, 50, 100, 200)

WIDTHS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
"""Rows of a transaction; one transaction cannot be smaller than itself, so a smaller scale has fewer of them."""

EVENTS = 200_000
"""Of a point, where nothing else is said."""

SHORTEST_S = 0.2
"""Beside a start that is never twice the same, a rate over less says nothing."""

BYTES = 300_000_000
"""Of all payloads of a point, at most."""


@dataclass(frozen=True, slots=True)
class Point:
    """One backlog: what the curve counts, and how it is written (see Rig.insert)."""

    x: int
    rows: int = EVENTS
    per_transaction: int = 100
    form: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    """Topics that are made before, with one partition each."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points and what they count."""

    label: str
    points: Sequence[Point]


def curves(scale: float) -> dict[str, Curve]:
    """Return the curves; a scale below 1 makes the backlogs smaller."""

    def rows(count: int, multiple: int = 100) -> int:
        return max(multiple, round(count * scale) // multiple * multiple)

    def text(size: int) -> dict[str, str]:
        return {"subject": "Text", "payload": f"""'{{"n":' || i || ',"text":"{"x" * (size - 22)}"}}'"""}

    def wide(count: int) -> dict[str, str]:
        named = ",".join(f'"{name}":{"12345" if n % 2 else json.dumps("some text")}' for n, name in enumerate(_names(count)))
        return {"subject": f"Wide{count}", "payload": f"""'{{{named.replace("12345", "' || i || '", 1)}}}'"""}

    def spread(count: int) -> Point:
        return Point(count, rows(EVENTS), form={"kind": f"'t{count}_' || i % {count}"}, topics=_topics(count))

    sizes, widths = (100, 300, 1_000, 10_000, 100_000), [each for each in WIDTHS if each <= WIDTHS[-1] * scale]
    return {
        "payload": Curve("bytes of payload", [Point(size, rows(min(EVENTS, BYTES // size)), form=text(size)) for size in sizes]),
        "transaction": Curve("rows in a transaction", [Point(each, rows(max(EVENTS, each), each), each) for each in widths]),
        "topics": Curve("topics", [spread(count) for count in (1, 10, 100, 1_000)]),
        "fields": Curve("fields of the schema", [Point(count, rows(EVENTS // 2), form=wide(count)) for count in FIELDS]),
        "backlog": Curve("events of backlog", [Point(rows(count), rows(count)) for count in (10_000, 100_000, 1_000_000, 10_000_000)]),
    }


def grow(names: Sequence[str], scale: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the points of the named curves."""
    with tempfile.TemporaryDirectory() as folder, rig({"CDC_SCHEMAS__FOLDER": str(_schemas(Path(folder)))}) as servers:
        start = backlog.ours(servers, 1, servers.insert(1, 1))
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            curve = curves(scale)[name]
            found[name] = {"label": curve.label, "points": [_point(servers, point, start, name, tell) for point in curve.points]}
    peak_mb = max(point["rss_mb"] for curve in found.values() for point in curve["points"])
    return {"start": {"seconds": round(start["seconds"], 2), "rss_mb": round(start["rss_mb"])}, "rss_mb": peak_mb, "curves": found}


def _point(servers: Rig, point: Point, start: Mapping[str, float], name: str, tell: Callable[[str], None]) -> dict[str, float | None]:
    if point.topics:
        servers.make_topics(*point.topics, partitions=1)
    end = servers.insert(point.rows, point.per_transaction, **point.form)
    servers.execute("CHECKPOINT")
    limit_s = backlog.limit(servers, end)
    drained = backlog.ours(servers, point.rows, end)
    cpu_s = drained["cpu_s_per_million"] * point.rows / 1e6 - start["cpu_s_per_million"] / 1e6
    seconds = drained["seconds"] - start["seconds"]
    figures: dict[str, float | None] = {
        "x": point.x,
        "events": point.rows,
        "events_per_s": round(point.rows / seconds) if seconds > SHORTEST_S else None,
        "limit_per_s": round(point.rows / limit_s),
        "cpu_us": round(cpu_s / point.rows * 1e6, 1) if cpu_s > 0 else None,
        "rss_mb": round(drained["rss_mb"]),
    }
    rate, cost = figures["events_per_s"] or 0, figures["cpu_us"] or 0
    tell(f"{name} {point.x:>10,}: {rate:>8,} events/s, {cost:>7} us of CPU each, {figures['rss_mb']} MB")
    servers.execute("TRUNCATE outbox")  # its rows are published, and their pages would only be in the way
    return figures


def _topics(count: int) -> tuple[str, ...]:
    return tuple(f"outbox.event.t{count}_{number}" for number in range(count))


def _names(count: int) -> list[str]:
    return [f"field{number}" for number in range(count)]


def _schemas(folder: Path) -> Path:
    """Write a folder with the schemas of all points beside those of the shop."""
    shutil.copytree(SCHEMAS, folder / "schemas", ignore=shutil.ignore_patterns("registry.*"))
    text = {"type": "record", "name": "Text", "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]}
    made: dict[str, dict[str, Any]] = {"Text": text}
    for count in FIELDS:
        fields = [{"name": name, "type": "long" if number % 2 else "string"} for number, name in enumerate(_names(count))]
        made[f"Wide{count}"] = {"type": "record", "name": f"Wide{count}", "fields": fields}
    write_schemas(folder / "schemas", made)
    return folder / "schemas"
