"""`make crash ARGS="--rounds 100 --json"`: the crash test at any length, on servers of its own."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path

import psycopg

from cdc.devstack.stack import Stack
from tests.crash.rounds import rounds
from tests.pipeline import Pipeline

EXIT_FOUND = 8


def main() -> int:
    """Run the rounds; print one JSON line, the seed in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--json", action="store_true", help="end with one line that is one JSON object")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    with Stack() as stack, tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE crash")
        with Pipeline(Path(folder), "crash", stack.postgres.dsn("crash"), stack.kafka.bootstrap_servers) as pipeline:
            found = rounds(pipeline, options.rounds, options.seed)
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:14} {value}" for name, value in found.items()))
    return 0 if found["clean"] else EXIT_FOUND


if __name__ == "__main__":
    sys.exit(main())
