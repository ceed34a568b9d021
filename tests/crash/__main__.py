"""The crash tests at any length, on servers of their own: `make crash ARGS="--rounds 100"`, `make chaos ARGS="--minutes 30"`."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from cdc.devstack.stack import Stack
from tests.crash.chaos import chaos
from tests.crash.rounds import rounds
from tests.pipeline import Pipeline

EXIT_FOUND = 8


def main() -> int:
    """Kill, or do random faults; print one JSON line, the seed in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("crash", "chaos"), default="crash")
    parser.add_argument("--rounds", type=int, default=20, help="of crash: how often the process is killed")
    parser.add_argument("--minutes", type=float, default=5.0, help="of chaos: for how long there are faults")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--folder", type=Path, help="keep settings and logs here")
    parser.add_argument("--json", action="store_true", help="end with one line that is one JSON object")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    kept = contextlib.nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory()
    with kept as folder, contextlib.redirect_stdout(sys.stderr):  # the last line is the answer
        if options.what == "chaos":
            found = chaos(Path(folder), options.seed, 60 * options.minutes)
        else:
            found = _crash(Path(folder), options.rounds, options.seed)
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:14} {value}" for name, value in found.items()))
    return 0 if found["clean"] else EXIT_FOUND


def _crash(folder: Path, count: int, seed: int) -> dict[str, Any]:
    with Stack() as stack:
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE crash")
        with Pipeline(folder, "crash", stack.postgres.dsn("crash"), stack.kafka.bootstrap_servers) as pipeline:
            return rounds(pipeline, count, seed)


if __name__ == "__main__":
    sys.exit(main())
