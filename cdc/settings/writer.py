"""From the settings to the writer's side: the same names, so that what an application writes is what the pipeline reads."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from cdc.errors import ConfigurationError
from cdc.outbox.writer import MAX_BYTES, Outbox
from cdc.settings.loader import load
from cdc.settings.mapping import mapping


def load_outbox(
    config: str | Path | None = None, *, messages: bool = False, lacks: Collection[str] = (), max_bytes: int = MAX_BYTES
) -> Outbox:
    """Return the Outbox of a configuration file (else of CDC_CONFIG, else of ./cdc.toml) and the environment.

    `messages` makes it write table-less messages; then outbox.message_prefix must be set. `lacks` and `max_bytes` as in Outbox.
    Raises ConfigurationError. Nothing is connected to.
    """
    settings = load(None if config is None else Path(config), (), os.environ)
    prefix = settings.outbox.message_prefix
    if messages and prefix is None:
        raise ConfigurationError("outbox.message_prefix is not set, so the pipeline takes no messages", "set it, or write rows")
    table = settings.outbox.table
    return Outbox(
        schemas=settings.schemas.folder,
        table=(table.schema, table.name),
        mapping=replace(mapping(settings), message_prefix=prefix if messages else None),
        lacks=lacks,
        max_bytes=max_bytes,
    )
