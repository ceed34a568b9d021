"""`cdc dev`: a PostgreSQL and a Kafka for development, which stay until `cdc dev down`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cdc.cli.options import Json
from cdc.cli.output import print_json, progress, say
from cdc.devstack import stack
from cdc.devstack.postgres import client

app = typer.Typer(no_args_is_help=True, help="Start and stop a PostgreSQL and a Kafka for development.")

SHOWN = ("postgres_dsn", "bootstrap_servers", "postgres_pid", "kafka_pid")

SETTINGS = """
For cdc.toml:

[postgres]
dsn = "{postgres_dsn}"

[kafka]
"bootstrap.servers" = "{bootstrap_servers}"

For psql: export PATH="{path}:$PATH\""""

Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="FOLDER",
        help="Where the servers keep their data; else ~/.cache/cdc/dev, as root /var/cache/cdc/dev, or dev in CDC_CACHE_DIR.",
    ),
]


@app.command(epilog="Examples:\n\n  cdc dev up\n\n  cdc dev up --dir servers --json")
def up(folder: Folder = None, as_json: Json = False) -> None:
    """Start both servers, unless they run already, and say where they are."""
    with progress("starting PostgreSQL and Kafka"):
        running = stack.up(folder or stack.state_folder())
    _show(running, as_json=as_json)


@app.command(epilog="Example:\n\n  cdc dev status --json")
def status(folder: Folder = None, as_json: Json = False) -> int:
    """Say where the servers are; exit code 8 when they are down."""
    running = stack.status(folder or stack.state_folder())
    if running is None:
        print_json({"running": False}) if as_json else say("the servers are down; start them with: cdc dev up")
        return 8
    _show(running, as_json=as_json)
    return 0


@app.command(epilog="Example:\n\n  cdc dev down --dir servers")
def down(folder: Folder = None, as_json: Json = False) -> None:
    """Stop both servers; their data stays."""
    stopped = stack.down(folder or stack.state_folder())
    print_json({"stopped": stopped}) if as_json else say(f"stopped {len(stopped)} servers")


def _show(running: stack.Running, *, as_json: bool) -> None:
    document = {**{key: value for key, value in asdict(running).items() if key in SHOWN}, "psql": str(client("psql"))}
    if as_json:
        print_json({"running": True, **document})
    else:
        for key, value in document.items():
            print(f"{key:18} {value}")
        say(SETTINGS.format(path=client("psql").parent, **document))
