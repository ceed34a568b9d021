"""Options that many commands share, and the settings that they lead to."""

import os
from pathlib import Path
from typing import Annotated

import typer

from cdc.settings import SchemaSettings, Settings, load, load_schemas

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration file; else CDC_CONFIG, else ./cdc.toml."),
]
"""`config: Config = None`."""

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, such as postgres.slot=cdc_shop; may be given again."),
]
"""`sets: Sets = None`."""

Json = Annotated[bool, typer.Option("--json", help="End with one line that is one JSON object.")]
"""`as_json: Json = False`."""

Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up on PostgreSQL or Kafka after so long.")]
"""`timeout_s: Timeout = TIMEOUT_S`."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nobody is asked anyway.")]
"""`yes: Yes = False`."""

TIMEOUT_S = 30.0
"""Seconds that a command for people waits for a server: a restart of one fits into it, and nobody waits longer."""


def settings_from(config: Path | None, sets: list[str] | None) -> Settings:
    """Load the settings of a command that takes `Config` and `Sets`."""
    return load(config, sets or (), os.environ)


def schemas_from(config: Path | None, sets: list[str] | None) -> SchemaSettings:
    """Load the settings of a command that only needs the schema folder."""
    return load_schemas(config, sets or (), os.environ)
