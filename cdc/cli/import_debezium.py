"""`cdc import-debezium`: a connector's configuration becomes a cdc.toml, and what could not be carried over is listed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cdc.cli.options import Json
from cdc.cli.output import console, print_json, say, table
from cdc.errors import ConfigurationError
from cdc.settings.debezium import Connector, read, summary, translate


def import_debezium(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The connector as JSON, as GET /connectors/NAME returns it.")],
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="Where the settings go; - prints them.")] = "cdc.toml",
    as_json: Json = False,
) -> None:
    """Make a cdc.toml of a Debezium connector with the outbox event router, and list what it cannot carry over."""
    found = translate(connector_of(file))
    notes = list(summary(found))
    if output == "-":
        sys.stdout.write(found.toml())
    else:
        _write(Path(output), found.toml())
    if as_json:
        document = {kind.replace(" ", "_"): [note for each, note in notes if each == kind] for kind in ("not carried over", "to do")}
        print_json({"file": None if output == "-" else output, "settings": found.tables, **document})
        return
    console(stderr=True).print(table(("", ""), notes))
    if output != "-":
        say(f"wrote {output}; next: mend what is listed, then `cdc check`, then docs/from-debezium.md")


def connector_of(file: Path) -> Connector:
    """Read a connector's file; raises ConfigurationError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{file} cannot be read: {why}", "name the connector's JSON") from None
    return read(text, str(file))


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already", "move it away, or name another file with --output") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}", "name another file with --output") from None
