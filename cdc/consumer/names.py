"""A consumer's own topics, and what else follows from names; no I/O."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from cdc.consumer.event import Event
from cdc.consumer.retry import Retry
from cdc.errors import ConfigurationError

Around = Callable[[Event, str], AbstractContextManager[object]]
"""What surrounds each call of a handler, by its event (of a list the first one) and name: a span, or the context of log lines."""

Choice = TypeVar("Choice", bound=StrEnum)

_FIELD: Final = re.compile(r"\{([A-Za-z_][\w.]*)\}")


class Names:
    """The topics that belong to one consumer."""

    def __init__(self, consumer: str, dead_letter: str | None = None) -> None:
        self.consumer = consumer
        self._prefix = f"cdc.{consumer}."
        self.dead_letter = dead_letter or f"{self._prefix}dead-letter"
        self.redriven = f"{self._prefix}redriven"

    def retry(self, attempts: int) -> str:
        """Return the topic for records that have failed so often."""
        return f"{self._prefix}retry-{attempts}"

    def own(self, retry: Retry | None) -> list[str]:
        """Return what the consumer reads beside the events' topics; one retry topic for each attempt but the last."""
        most = 0 if retry is None else max([retry.attempts, *(rule.attempts for _, rule in retry.for_class)])
        return [self.redriven, *(self.retry(number) for number in range(1, most))]

    def is_own(self, topic: str) -> bool:
        """Whether records come to this topic only by a move."""
        return topic.startswith(self._prefix)


def business_key(template: str) -> Callable[[Event], str]:
    """Return what makes the business key of an event: `welcome:{id}` takes `id` from the event's value, `{a.b}` from deeper.

    `{event.key}`, `{event.type}` and `{event.source}` are the event's own. The function raises KeyError for what is not there.
    """
    if not _FIELD.search(template):
        raise ConfigurationError(f"the business key {template!r} is the same for every event", "name a field, such as welcome:{id}")

    def key(event: Event) -> str:
        return _FIELD.sub(lambda match: _found(event, match[1]), template)

    return key


def _found(event: Event, path: str) -> str:
    first, *rest = path.split(".")
    if first == "event":
        return str(getattr(event, rest[0]))
    value: Any = event.value
    for part in (first, *rest):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return str(value)


def called(function: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Return what is called with an event and a connection, for a function that takes both or the event alone."""
    places = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL}
    ]
    if any(each.kind is each.VAR_POSITIONAL for each in places) or len(places) == 2:  # noqa: PLR2004 - event and connection
        return function
    if len(places) == 1 and inspect.iscoroutinefunction(function):

        async def alone(event: Event, _: object) -> None:
            await function(event)

        return alone
    if len(places) == 1:
        return lambda event, _: function(event)
    raise ConfigurationError(f"handler {name!r} takes {len(places)} arguments", "let it take the event, and the connection if it needs it")


def surrounded(call: Callable[[Any, Any], Any], name: str, around: Around | None) -> Callable[[Any, Any], Any]:
    """Return a handler that is called inside of `around(event, name)`."""
    if around is None:
        return call
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(inspect.unwrap(call)):

        async def inside_async(event: Event | list[Event], connection: Any) -> Any:  # noqa: ANN401 - the handler's own
            with around(event[0] if isinstance(event, list) else event, name):
                return await call(event, connection)

        return inside_async

    def inside(event: Event | list[Event], connection: Any) -> Any:  # noqa: ANN401 - the handler's own
        with around(event[0] if isinstance(event, list) else event, name):
            return call(event, connection)

    return inside


def validator(model: type) -> Callable[[Any], Any]:
    """Return what makes an instance of a class from a decoded value."""
    validate = getattr(model, "model_validate", None)
    if not callable(validate):
        raise ConfigurationError(f"{model.__name__} has no model_validate", "use a pydantic model, or name the type and give model=")
    found: Callable[[Any], Any] = validate
    return found


def too_short(topic: str, kept_ms: int, retention: timedelta, replay: timedelta) -> str | None:
    """Return a warning when an inbox forgets events that its topic still holds; -1 ms are for ever."""
    needed = timedelta(milliseconds=kept_ms) + replay if kept_ms >= 0 else None
    if needed is not None and retention >= needed:
        return None
    held = "for ever" if kept_ms < 0 else f"for {timedelta(milliseconds=kept_ms)}"
    more = f" and {replay} of replay are promised" if replay else ""
    return (
        f"the inbox keeps markers for {retention}, but topic {topic} holds events {held}{more}: a replay of older ones would be applied"
        " again. Fix: raise the consumer's retention, or let the topic keep them for less"
    )


def choice(kind: type[Choice], value: str, what: str) -> Choice:
    """Return the member of an enum that a setting names."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigurationError(f"{what} cannot be {value!r}", f"use one of {', '.join(kind)}") from None
