"""Peers side by side on one backlog: the same rows, the same servers, in turns, several rounds, each round the other way round."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.drain import Figures, drain, median
from benchmarks.peers.debezium import DEFAULTS, TUNED, TUNED_FOR_LATENCY
from benchmarks.peers.limits import PRODUCE, RECVLOGICAL
from benchmarks.peers.ours import OURS
from benchmarks.peers.peer import Peer, Run
from benchmarks.peers.polling import POLLING
from benchmarks.rig import rig
from cdc.errors import CdcError

PEERS = {peer.name: peer for peer in (OURS, RECVLOGICAL, PRODUCE, TUNED, DEFAULTS, POLLING, TUNED_FOR_LATENCY)}

LARGE_PEERS = (OURS, RECVLOGICAL, PRODUCE, TUNED, DEFAULTS, POLLING)

SINGLE_PEERS = (OURS, RECVLOGICAL, TUNED)


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many rows in transactions of what size, and who drains them."""

    rows: int
    per_transaction: int
    peers: Sequence[Peer]


def versus(backlog: Backlog, rounds: int) -> dict[str, Any]:
    """Return every peer's figures, round by round and as medians, and the ratios, each taken within a round."""
    found: dict[str, list[Figures]] = {peer.name: [] for peer in backlog.peers}
    with rig() as servers:
        runs = [Run(servers, str(number), backlog.rows) for number in range(1, rounds + 1)]
        for run in runs:
            servers.make_topics(*(peer.topic(run) for peer in backlog.peers if peer.publishes))
            for peer in backlog.peers:
                peer.prepare(run)
        tell(f"a backlog of {backlog.rows:,} rows in transactions of {backlog.per_transaction}")
        servers.insert(backlog.rows, backlog.per_transaction)
        end_lsn = servers.ask("SELECT pg_current_wal_lsn()")
        servers.execute("VACUUM ANALYZE outbox")
        servers.execute("CHECKPOINT")
        for number, run in enumerate(runs):
            source = OURS.topic(runs[0])
            for peer in backlog.peers if number % 2 == 0 else backlog.peers[::-1]:
                tell(f"round {run.name} of {rounds}: {peer.label}")
                found[peer.name].append(_turn(peer, replace(run, end_lsn=end_lsn, source=source)))
                if peer.publishes and peer.topic(run) != source:
                    servers.delete_topics(peer.topic(run))
    return {
        "rows": backlog.rows,
        "per_transaction": backlog.per_transaction,
        "rounds": rounds,
        "labels": {peer.name: peer.label for peer in backlog.peers},
        "peers": {name: median(turns) for name, turns in found.items()},
        "ratios": ratios(found),
        "by_round": found,
    }


def _turn(peer: Peer, run: Run) -> Figures:
    """Return the figures of one drain; none when it failed, because the others' turns took time as well."""
    try:
        figures = drain(peer, run)
    except (AssertionError, CdcError) as error:
        tell(f"    failed: {error}")
        return {}
    tell(f"    {figures['events_per_s']:,} events/s, CPU {figures['cpu_s_per_million']} s/M, {figures['rss_mb']} MB")
    return figures


def ratios(found: dict[str, list[Figures]]) -> dict[str, float]:
    """Return our figures as multiples of the others', as the median of the ratios within each round."""
    wanted = {
        "rate_to_recvlogical": ("events_per_s", "recvlogical", "events_per_s"),
        "rate_to_debezium": ("events_per_s", "debezium", "events_per_s"),
        "first_rate_to_debezium": ("first_events_per_s", "debezium", "first_events_per_s"),
        "cpu_to_debezium": ("cpu_s_per_million", "debezium", "cpu_s_per_million"),
        "rss_to_debezium": ("rss_mb", "debezium", "rss_mb"),
        "rate_to_debezium_defaults": ("events_per_s", "debezium-defaults", "events_per_s"),
        "cpu_to_debezium_defaults": ("cpu_s_per_million", "debezium-defaults", "cpu_s_per_million"),
        "rate_to_polling": ("events_per_s", "polling", "events_per_s"),
    }
    result = {}
    ours = found.get("ours", [])
    for name, (figure, peer, theirs) in wanted.items():
        pairs = [(mine.get(figure), other.get(theirs)) for mine, other in zip(ours, found.get(peer, []), strict=False)]
        both = [mine / other for mine, other in pairs if mine and other]
        if both:
            result[name] = round(statistics.median(both), 3)
    turns = zip(ours, found.get("recvlogical", []), found.get("produce", []), strict=False)
    costs = [[turn.get("cpu_s_per_million") for turn in each] for each in turns]
    limits = [mine / (receives + produces) for mine, receives, produces in costs if mine and receives and produces]
    if limits:
        result["cpu_to_both_limits"] = round(statistics.median(limits), 2)
    return result


def tell(what: str) -> None:
    """Say on stderr what is under way."""
    print(what, file=sys.stderr, flush=True)
