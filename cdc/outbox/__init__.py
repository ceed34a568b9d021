"""The outbox: from an application's event to a row (`append`), and from a row to a record.

    from cdc.outbox import Event, append

    with connection.transaction():
        connection.execute("INSERT INTO orders ..")
        append(connection, Event("OrderPlaced", "order-1", {"orderId": "order-1", ..}, "Order"))

Names are loaded when they are first used: the pipeline needs none of them, and an application none of the pipeline.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cdc.outbox.context import event_context
    from cdc.outbox.event import Event
    from cdc.outbox.mapping import OutboxMapping
    from cdc.outbox.model import EventModel
    from cdc.outbox.pressure import Pressure, TooBusy
    from cdc.outbox.writer import Outbox, append, append_async, append_many, append_many_async, use

__all__ = [
    "Event", "EventModel", "Outbox", "OutboxMapping", "Pressure", "TooBusy", "append", "append_async", "append_many", "append_many_async",
    "event_context", "use",
]  # fmt: skip

_HOMES: Final = {
    "Event": "event",
    "EventModel": "model",
    "Outbox": "writer",
    "OutboxMapping": "mapping",
    "Pressure": "pressure",
    "TooBusy": "pressure",
    "append": "writer",
    "append_async": "writer",
    "append_many": "writer",
    "append_many_async": "writer",
    "event_context": "context",
    "use": "writer",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever stands there
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Name what is public, so that help() shows it before it was used."""
    return __all__
