"""From a PostgreSQL outbox table to Kafka, each committed row exactly once.

What an application imports; docs/writing.md is the manual of the writer's side.

    Event, EventModel       one event; and the base of the classes that `cdc schemas codegen` writes
    Outbox, load_outbox     where events are written: `outbox.append(connection, event)`; from a configuration file
    event_context           correlation id, trace and headers for all events of a piece of work
    Pressure, TooBusy       whether the pipeline is so far behind that a writer should answer 429
    InvalidEvent            what an event that cannot be published raises, before it is written

Names are loaded when they are first used, so `import cdc` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cdc.errors import InvalidEvent
    from cdc.outbox import Event, EventModel, Outbox, Pressure, TooBusy, event_context
    from cdc.settings.writer import load_outbox

__all__ = ["Event", "EventModel", "InvalidEvent", "Outbox", "Pressure", "TooBusy", "event_context", "load_outbox"]

_HOMES: Final = {
    "Event": "cdc.outbox",
    "EventModel": "cdc.outbox",
    "InvalidEvent": "cdc.errors",
    "Outbox": "cdc.outbox",
    "Pressure": "cdc.outbox",
    "TooBusy": "cdc.outbox",
    "event_context": "cdc.outbox",
    "load_outbox": "cdc.settings.writer",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever stands there
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Name what is public, so that help() shows it before it was used."""
    return __all__
