"""From the files of figures to what people read: tables, the page, the README's lines, the plots.

One selection of the bench is one file, docs/performance/NAME.json. `write` makes everything else from those files and from the
prose in performance.template.md, and a test holds the result against them: no figure is typed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks import inbox, plots, sinks
from benchmarks.peers.debezium import LATENCY, THROUGHPUT

ROOT = Path(__file__).parent.parent

FOLDER, PAGE, README = ROOT / "docs" / "performance", ROOT / "docs" / "performance.md", ROOT / "README.md"

TEMPLATE = Path(__file__).with_name("performance.template.md")

BEGIN, END = "<!-- figures: make bench ARGS=--render -->\n", "<!-- end of figures -->\n"
"""Around the README's lines."""

Document = Mapping[str, Any]

BUSY = 1.0
"""A load before the run from which on its rates are not worth quoting."""

GOALS: Sequence[tuple[str, str, str, str]] = (
    ("rate, to `pg_recvlogical`'s", "at least 0.5", "backlog", "ratios.rate_to_recvlogical"),
    ("rate, to Debezium's (tuned)", "at least 1.4", "backlog", "ratios.rate_to_debezium"),
    ("rate over the first half million, to Debezium's (tuned)", "at least 1.8", "backlog", "ratios.first_rate_to_debezium"),
    ("CPU for each event, to Debezium's (tuned)", "at most 0.4", "backlog", "ratios.cpu_to_debezium"),
    ("the same with single-row transactions", "at most 0.4", "single", "ratios.cpu_to_debezium"),
    ("CPU for each event, to that of both limits together", "at most 2.5", "backlog", "ratios.cpu_to_both_limits"),
    ("memory at most, MB", "under 90", "backlog", "peers.ours.rss_mb"),
    ("memory at any payload, transaction, number of topics and backlog, MB", "under 90", "growth", "rss_mb"),
    ("start to first event, s", "under 1.5", "backlog", "peers.ours.start_s"),
    ("latency at 1,000 events/s, one partition: median, ms", "under 8", "latency", "peers.ours.at1000in1.p50"),
    ("the same: 99th percentile, ms", "under 50", "latency", "peers.ours.at1000in1.p99"),
    ("the median, to Debezium's (tuned for latency)", "under 1", "latency", "ratios.p50_to_debezium"),
    ("the 99th percentile, to Debezium's (tuned for latency)", "under 1", "latency", "ratios.p99_to_debezium"),
)
"""What we want, and where the figure is."""


def store(name: str, document: Document) -> None:
    """Keep the figures of a selection, and write all that shows them."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    write()


def write() -> None:
    """Write the page, the README's lines and the plots from the figures that are kept."""
    for path, text in rendered(kept()).items():
        path.write_text(text, encoding="utf-8")


def kept() -> dict[str, Document]:
    """Return the figures that are kept."""
    return {path.stem: orjson.loads(path.read_bytes()) for path in sorted(FOLDER.glob("*.json"))}


def rendered(documents: Mapping[str, Document]) -> dict[Path, str]:
    """Return every file that shows figures, with its text."""
    readme = README.read_text(encoding="utf-8")
    before, _, rest = readme.partition(BEGIN)
    files = {FOLDER / f"{name}.svg": text for name, text in drawings(documents).items()}
    files[README] = before + BEGIN + in_short(documents) + END + rest.partition(END)[2]
    files[PAGE] = _page(documents)
    return files


def _page(documents: Mapping[str, Document]) -> str:
    parts = {
        "goals": goals(documents),
        "debezium_settings": "\n".join(f"{key}={value}" for key, value in THROUGHPUT.items()),
        "debezium_latency_settings": " and ".join(f"`{key}={value}`" for key, value in LATENCY.items() if THROUGHPUT[key] != value),
        **{name: tables(name, documents[name]) if name in documents else "(not measured)" for name in _TABLES},
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], TEMPLATE.read_text(encoding="utf-8"))


def tables(name: str, document: Document) -> str:
    """Return a selection's figures as Markdown, with where and when they were measured."""
    return f"{_TABLES[name](document)}\n\n{_where(document['where'])}"


def _where(place: Document) -> str:
    machine = f"{place['cores']} cores of {place['cpu']}, {place['memory_gb']} GB, Linux {place['kernel']}"
    servers = f"PostgreSQL {place['postgres']}, Kafka {place['kafka']}, Python {place['python']}, librdkafka {place['librdkafka']}"
    theirs = f"Debezium {place['debezium']} on Connect {place['connect']}, Java {place['java']}"
    when = f"Measured on {place['date']} at commit {place['commit']}, load before it {place['load_before']}"
    return f"*{when}; {machine}; {servers}; {theirs}.*{_provisional(place)}"


def _provisional(place: Document) -> str:
    """Say it where the machine was not ours alone."""
    return " **Provisional: the machine had other work.**" if place.get("load_before", 0) > BUSY else ""


def _backlog(document: Document) -> str:
    head = ["", "events/s", "(rounds)", "first half", "after it", "CPU, s", "broker's", "PostgreSQL's", "memory, MB", "start, s"]
    columns = [
        *("first_events_per_s", "steady_events_per_s"),
        *("cpu_s_per_million", "kafka_cpu_s_per_million", "postgres_cpu_s_per_million", "rss_mb", "start_s"),
    ]
    rows = []
    for name, figures in document["peers"].items():
        turns = [turn["events_per_s"] for turn in document["by_round"][name] if turn.get("events_per_s")]
        spread = f"{_number(min(turns))} to {_number(max(turns))}" if turns else "failed"
        cells = [_number(figures.get(column)) for column in columns]
        rows.append([document["labels"][name], _number(figures.get("events_per_s")), spread, *cells])
    return _table(head, rows)


def _latency(document: Document) -> str:
    loads = document["loads"]
    head = ["ms: median / 99th percentile / longest", *(_load(load) for load in loads.values())]
    rows = [[document["labels"][name], *(_percentiles(found.get(kind)) for kind in loads)] for name, found in document["peers"].items()]
    cost = [
        [document["labels"][name], *(_number((found.get(kind) or {}).get("cpu_percent")) for kind in loads)]
        for name, found in document["peers"].items()
        if name != "floor"
    ]
    return _table(head, rows) + "\n\n" + _table(["CPU, per cent of a core", *head[1:]], cost)


def _load(load: Document) -> str:
    return f"{load['rate']:,} events/s, {load['partitions']} partition{'s' if load['partitions'] > 1 else ''}"


def _percentiles(found: Document | None) -> str:
    if found is None:
        return ""
    missing = f" ({found['missing']:,} had not come in time)" if found.get("missing") else ""
    late = f" (the writer was {found['writer_late_s']:.1f} s late)" if found.get("writer_late_s") else ""
    return " / ".join(f"{found[name]:,.1f}" for name in ("p50", "p99", "max")) + missing + late


def _growth(document: Document) -> str:
    parts = []
    for name, curve in document["curves"].items():
        head = [curve["label"], "events", "events/s", "`pg_recvlogical`", "CPU, µs for each", "memory, MB"]
        columns = ("x", "events", "events_per_s", "limit_per_s", "cpu_us", "rss_mb")
        rows = [[_number(point[column]) for column in columns] for point in curve["points"]]
        parts.append(f"![{curve['label']}](performance/growth-{name}.svg)\n\n{_table(head, rows)}")
    return "\n\n".join(parts)


def _profile(document: Document) -> str:
    kinds = {"hundred_rows": "100 rows in a transaction", "single_row": "one row"}
    steps = document["steps"]
    rows = [[step, *(_number(steps[kind][step]) for kind in kinds)] for step in steps["hundred_rows"]]
    return _table(["µs of CPU for each event", *kinds.values()], rows)


_TABLES = {
    "backlog": _backlog,
    "single": _backlog,
    "latency": _latency,
    "profile": _profile,
    "sinks": sinks.table,
    "inbox": inbox.table,
    "growth": _growth,
}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *rows])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def goals(documents: Mapping[str, Document]) -> str:
    """Return what we want beside what was measured."""
    rows = [[what, goal, _number(_at(documents.get(name), path))] for what, goal, name, path in GOALS]
    return _table(["ours", "wanted", "measured"], rows)


def _at(document: Document | None, path: str) -> float | None:
    found: Any = document
    for key in path.split("."):
        found = (found or {}).get(key)
    return found  # type: ignore[no-any-return]  # as the file has it


def in_short(documents: Mapping[str, Document]) -> str:
    """Return the README's lines."""
    backlog, latency = documents.get("backlog"), documents.get("latency")
    labels = {**(latency or {}).get("labels", {}), **(backlog or {}).get("labels", {})}
    rows = []
    for name in ("ours", "debezium", "debezium-latency", "polling"):
        figures = (backlog or {}).get("peers", {}).get(name, {})
        times = (latency or {}).get("peers", {}).get(name, {}).get("at1000in1")
        cells = [_number(figures.get(column)) for column in ("events_per_s", "cpu_s_per_million", "rss_mb", "start_s")]
        if name in labels:
            rows.append([labels[name], *cells, " / ".join(f"{times[each]:,.1f}" for each in ("p50", "p99")) if times else ""])
    head = ["", "events/s", "CPU s per million", "memory, MB", "start, s", "latency, ms (p50 / p99)"]
    place = (backlog or latency or {"where": {}})["where"]
    rows_of = f"{backlog['rows']:,} rows in transactions of {backlog['per_transaction']}" if backlog else "-"
    where = f"{place.get('cores')} cores for all, {place.get('date')}.{_provisional(place)}"
    return f"{_table(head, rows)}\n\nA backlog of {rows_of}, and latency at 1,000 events a second; {where}\n"


def drawings(documents: Mapping[str, Document]) -> dict[str, str]:
    """Return the plots by name."""
    found = {}
    for name, title in (("backlog", "transactions of 100 rows"), ("single", "transactions of one row")):
        if document := documents.get(name):
            label = document["labels"]
            for figure, what, unit in (
                ("events_per_s", "Events a second from a backlog", ""),
                ("cpu_s_per_million", "CPU for a million events", "s"),
                ("rss_mb", "Memory at most", "MB"),
            ):
                values = {label[peer]: figures[figure] for peer, figures in document["peers"].items() if figures.get(figure)}
                if values:
                    found[f"{name}-{figure.split('_')[0]}"] = plots.bars(f"{what}: {title}", values, unit, ours=label.get("ours", ""))
    if document := documents.get("latency"):
        for percentile, what in (("p50", "Median"), ("p99", "99th percentile of the")):
            peers = document["peers"].items()
            values = {document["labels"][peer]: times["at1000in6"][percentile] for peer, times in peers if "at1000in6" in times}
            title = f"{what} latency at 1,000 events/s, 6 partitions"
            found[f"latency-{percentile}"] = plots.bars(title, values, "ms", ours=document["labels"].get("ours", ""))
    for name, curve in documents.get("growth", {}).get("curves", {}).items():
        series = {
            "cdc": [(point["x"], point["events_per_s"]) for point in curve["points"] if point["events_per_s"]],
            "pg_recvlogical": [(point["x"], point["limit_per_s"]) for point in curve["points"]],
        }
        found[f"growth-{name}"] = plots.lines(
            f"Events a second by {curve['label']}", curve["label"], {each: points for each, points in series.items() if points}
        )
    return found


def summary(measured: Mapping[str, Document]) -> dict[str, Any]:
    """Return the figures that --quick has, as far as they were measured."""
    paths = {
        "backlog_ratio": ("backlog", "ratios.rate_to_recvlogical"),
        "rss_mb": ("backlog", "peers.ours.rss_mb"),
        "latency_ms": ("latency", "peers.ours.at1000in1"),
        "floor_ms": ("latency", "peers.floor.at1000in1"),
    }
    found = {key: _at(measured.get(name), path) for key, (name, path) in paths.items()}
    points = measured.get("growth", {}).get("curves", {}).get("transaction", {}).get("points", [])
    found["huge_rss_mb"] = points[-1]["rss_mb"] if points else None
    return {key: value for key, value in found.items() if value is not None}
