"""What more than one core brings: shards measured, and a model that tells the rest: `python -m benchmarks.shards`.

`--store` drains the same backlog by one pipeline and by two shards and writes docs/performance/shards.json. Without it the model
is computed from that file, and put into docs/sizing.md. Its inputs are CPU for each event of the log, in microseconds: what a
pipeline's own thread and librdkafka's threads take for an event that they publish, what a walsender takes for one that it sends
and for one that its row filter hides, and what the broker takes. From these follow the three bounds of the rate with N shards: a
pipeline's thread, a walsender (one core each, and every walsender decodes everything), and all the cores together. It leaves out
disks and networks, waiting, and what cores that share caches lose to each other, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.machine import where
from benchmarks.rig import Child, Rig, cpu_s, pipeline, rig, set_up
from tests.waiting import wait_for

STORED = Path(__file__).parent.parent / "docs" / "performance" / "shards.json"

ROWS, PER_TRANSACTION = 200_000, 100

PAGE = STORED.parent.parent / "sizing.md"

PROFILE = STORED.with_name("profile.json")
"""Tells which part of a pipeline's CPU is its own thread's and which librdkafka's."""


class Costs(NamedTuple):
    """Microseconds of CPU for each event."""

    thread: float
    library: float
    sent: float
    hidden: float
    broker: float


def bounds(costs: Costs, shards: int, cores: int) -> dict[str, float]:
    """Return the most events a second that each bound lets through, by name."""
    decoding = costs.sent + (shards - 1) * costs.hidden
    return {
        "pipelines": 1e6 * shards / costs.thread,
        "walsenders": 1e6 * shards / decoding,
        "cores": 1e6 * cores / (costs.thread + costs.library + decoding + costs.broker),
    }


def rate(costs: Costs, shards: int, cores: int) -> tuple[float, str]:
    """Return the rate and the bound that sets it."""
    found = bounds(costs, shards, cores)
    name = min(found, key=found.__getitem__)
    return found[name], name


def needed(costs: Costs, wanted: float) -> tuple[int, int] | None:
    """Return the fewest shards, and the fewest cores for them, that pass a rate; None when decoding everywhere never lets it."""
    for shards in range(1, 65):
        if min(bounds(costs, shards, 1 << 20).values()) >= wanted:
            cores = next(cores for cores in range(1, 1 << 20) if rate(costs, shards, cores)[0] >= wanted)
            return shards, cores
    return None


def costs_of(stored: dict[str, Any]) -> Costs:
    """Read the model's inputs from what was measured."""
    one, two = stored["one"], stored["two"]
    # Of two walsenders each sends half and hides half: what both take is one event sent and one hidden.
    hidden = max(0.0, two["walsender_us"] - one["walsender_us"])
    steps = orjson.loads(PROFILE.read_bytes())["steps"]["hundred_rows"]
    own = one["pipeline_us"] / (1 + steps["librdkafka's threads"] / steps["all, in our thread"])
    return Costs(own, one["pipeline_us"] - own, one["walsender_us"], hidden, one["broker_us"])


def measured(rows: int) -> dict[str, Any]:
    """Drain one backlog by one pipeline, then by two shards, beside each other on the same servers."""
    found: dict[str, Any] = {"where": where(), "rows": rows}
    with rig() as servers:
        shards = [{**servers.environment, "CDC_SHARD": f"{number}/2"} for number in range(2)]
        settings = [set_up(environment) for environment in shards]
        servers.insert(rows, PER_TRANSACTION)
        found["one"] = _drained(servers, [servers.environment], [servers.settings.postgres.slot], rows)
        found["two"] = _drained(servers, shards, [each.postgres.slot for each in settings], rows)
    return found


def _drained(servers: Rig, environments: list[dict[str, str]], slots: list[str], rows: int) -> dict[str, float]:
    target = servers.ask("SELECT pg_current_wal_lsn()::text")
    listed = ", ".join(f"'{slot}'" for slot in slots)
    here = f"FROM pg_replication_slots WHERE slot_name IN ({listed})"
    broker = servers.stack.kafka.pid or 0
    began, broker_s = time.perf_counter(), cpu_s(broker)
    children = [pipeline(servers, environment) for environment in environments]
    try:
        wait_for(lambda: servers.ask(f"SELECT count(*)::text {here} AND active") == str(len(slots)), 120, "slots are taken")
        walsenders = [int(pid) for pid in servers.ask(f"SELECT string_agg(active_pid::text, ' ') {here}").split()]
        start_s = sum(map(Child.cpu_s, children))
        wait_for(lambda: servers.ask(f"SELECT bool_and(confirmed_flush_lsn >= '{target}'::pg_lsn)::text {here}") == "true", 900, "all")
        seconds = time.perf_counter() - began
        used = [sum(map(cpu_s, walsenders)), sum(map(Child.cpu_s, children)) - start_s, cpu_s(broker) - broker_s]
    finally:
        for child in children:
            child.close()
    walsender, own, kafka = (round(each / rows * 1e6, 2) for each in used)
    memory = max(child.peak_rss_mb for child in children)
    return {
        "events_per_s": round(rows / seconds),
        "pipeline_us": own,
        "walsender_us": walsender,
        "broker_us": kafka,
        "rss_mb": round(memory),
    }


def main() -> int:
    """Measure if asked to, and print the model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument("--store", action="store_true", help="measure, and keep what is measured as the model's input")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"events of the backlog (default {ROWS:,})")
    options = parser.parse_args()
    if options.store:
        STORED.write_bytes(orjson.dumps(measured(options.rows), option=orjson.OPT_INDENT_2) + b"\n")
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table(orjson.loads(STORED.read_bytes())))
    return 0


def rendered(page: str) -> str:
    """Return the page of the manual with what the stored figures say between the marks."""
    stored = orjson.loads(STORED.read_bytes())
    for name, text in (("measured", inputs(stored)), ("modelled", table(stored))):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"
    return page


def inputs(stored: dict[str, Any]) -> str:
    """Return what was measured, as the manual prints it."""
    machine, costs = stored["where"], costs_of(stored)
    rows = [
        ("events/s", "events_per_s"),
        ("pipelines, us an event", "pipeline_us"),
        ("walsenders, us an event", "walsender_us"),
        ("broker, us an event", "broker_us"),
        ("memory of a process at most, MB", "rss_mb"),
    ]
    about = (
        f"{stored['rows']:,} events in transactions of {PER_TRANSACTION}, {machine['cores']} cores of {machine['cpu']}, PostgreSQL "
        f"{machine['postgres']}, Kafka {machine['kafka']}, Python {machine['python']}, {machine['date']}; load of other work before: "
        f"{machine['load_before']}. Microseconds are CPU."
    )
    lines = [
        about,
        "",
        "| | one pipeline | two shards |",
        "|---|---:|---:|",
        *(f"| {name} | {stored['one'][key]:,} | {stored['two'][key]:,} |" for name, key in rows),
        "",
        f"So a walsender takes {costs.sent:.1f} us for an event that it sends and {costs.hidden:.1f} us for one that its row filter hides.",
    ]
    return "\n".join(lines)


def table(stored: dict[str, Any]) -> str:
    """Return the model's answers as the manual prints them."""
    costs = costs_of(stored)
    lines = ["| shards | cores | events/s at most | bound by |", "|---:|---:|---:|---|"]
    for shards, cores in ((1, 2), (2, 2), (1, 4), (2, 4), (2, 8), (4, 8), (8, 16)):
        most, name = rate(costs, shards, cores)
        lines.append(f"| {shards} | {cores} | {most:,.0f} | {name} |")
    answer = needed(costs, 150_000)
    says = "no number of shards" if answer is None else f"{answer[0]} shards and {answer[1]} cores"
    return "\n".join([*lines, "", f"150,000 events/s take {says} in this model, on cores as fast as these were."])


if __name__ == "__main__":
    sys.exit(main())
