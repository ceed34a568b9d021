"""`make bench`: this pipeline, the limits and its peers side by side on the same backlog and servers.

Without options: the large backlog, the one of single-row transactions, latency, a profile by step, and the other sinks, in about 28
minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from benchmarks import growth, inbox, latency, profile, quick, report, sinks
from benchmarks.machine import where
from benchmarks.peers.peer import Peer
from benchmarks.versus import LARGE_PEERS, PEERS, SINGLE_PEERS, Backlog, tell, versus

EVENTS = 3_000_000
"""Of the large backlog: what a virtual machine spends on compiling is small beside it."""

PER_TRANSACTION = 100

SINGLE_SHARE = 15
"""The backlog of single-row transactions is so many times smaller."""

SELECTIONS = ("backlog", "single", "latency", "profile", "sinks", "inbox", "growth")


def main() -> int:
    """Measure what was chosen, print it, and keep it when asked to."""
    options = _options()
    if options.render:
        report.write()
        return 0
    if options.quick:
        figures = quick.measure(options.repeat or 3, options.seconds)
        for name, value in figures.items():
            print(f"{name:24} {value}")
    else:
        measured = _measured(options)
        print("\n\n".join(report.tables(name, document) for name, document in measured.items()))
        figures = {**report.summary(measured), **measured}
    if options.json:
        print(orjson.dumps(figures).decode())
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only ours and its limits, four minutes")
    parser.add_argument("--only", default="backlog,single,latency,profile,sinks", help=f"what is measured, of: {','.join(SELECTIONS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"who takes part, of: {','.join(PEERS)}")
    parser.add_argument("--curves", default=",".join(growth.curves(1)), help="which curves growth has (default all of these: %(default)s)")
    parser.add_argument(
        "--events", type=int, default=EVENTS, help="rows of the large backlog; all else grows with it (default %(default)s)"
    )
    parser.add_argument("--repeat", type=int, help="rounds of each backlog (default 3)")
    parser.add_argument("--seconds", type=float, default=10, help="length of a latency window (default 10)")
    parser.add_argument("--store", action="store_true", help="keep the figures in docs/performance/, and write the pages and plots")
    parser.add_argument("--render", action="store_true", help="measure nothing: write pages and plots from the figures that are kept")
    parser.add_argument("--json", action="store_true", help="end with one line that is one JSON object")
    options = parser.parse_args()
    options.only = _chosen(parser, options.only, SELECTIONS)
    options.curves = _chosen(parser, options.curves, list(growth.curves(1)))
    options.peers = [PEERS[name] for name in _chosen(parser, options.peers, list(PEERS))]
    if "produce" in (names := [peer.name for peer in options.peers]) and "ours" not in names:
        parser.error("produce repeats our records: name ours, too")
    return options


def _chosen(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"not known: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def _measured(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the documents of the chosen selections; each is kept as soon as it is there."""

    def backlog(rows: int, per_transaction: int, peers: Sequence[Peer]) -> dict[str, Any]:
        chosen = [peer for peer in peers if peer in options.peers]
        return versus(Backlog(rows, per_transaction, chosen), options.repeat or 3)

    scale = options.events / EVENTS
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "backlog": lambda: backlog(options.events // PER_TRANSACTION * PER_TRANSACTION, PER_TRANSACTION, LARGE_PEERS),
        "single": lambda: backlog(options.events // SINGLE_SHARE, 1, SINGLE_PEERS),
        "latency": lambda: latency.compare(options.peers, options.seconds, tell),
        "profile": lambda: profile.measured(max(1_000, round(profile.ROWS * min(scale, 1)))),
        "sinks": lambda: sinks.measured(max(10_000, round(sinks.ROWS * min(scale, 1))), options.repeat or 3, options.seconds, tell),
        "inbox": lambda: inbox.measured(max(10_000, round(inbox.RECORDS * min(scale, 1))), options.repeat or 3, tell),
        "growth": lambda: growth.grow(options.curves, scale, tell),
    }
    found, place = {}, where()
    for name in SELECTIONS:
        if name in options.only:
            tell(f"{name}:")
            found[name] = {"where": place, **kinds[name]()}
            if options.store:
                report.store(name, found[name])
    return found


if __name__ == "__main__":
    sys.exit(main())
