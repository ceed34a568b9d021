"""Logs: structlog to stderr, for people on a terminal and as JSON lines for everything else.

Strategy: whoever logs gives an event and named facts, and none of them is a payload, a key or a secret. Three nets hang
below that, because one forgotten line would be enough: facts with a telling name are hidden, passwords inside of texts are
masked by the `scrub` that the caller brings, and of an exception that is not ours only the type and the places are shown:
the words of a foreign exception may quote what it choked on.

The libraries' own logging goes the same way, from WARNING on.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal, TextIO

from cdc.errors import CdcError
from cdc.observe.loading import without

with without("rich"):
    # structlog loads it wherever it is installed, half of its own time, for coloured traces with values; ours have none.
    import structlog

Format = Literal["auto", "console", "json"]
Level = Literal["debug", "info", "warning", "error"]
Scrub = Callable[[str], str]

HIDDEN = "<hidden>"

TRACE_MAX_FRAMES = 40
"""Frames of a trace that are logged, the innermost: a deep recursion must not flood the log."""

FORBIDDEN = frozenset({"payload", "value", "key", "body", "row", "values", "record", "dsn", "headers"})
"""Names of facts that would carry what must not be logged."""

_FORBIDDEN_PARTS = ("password", "secret", "token", "passphrase")


def configure(form: Format = "auto", level: Level = "info", *, stream: TextIO | None = None, scrub: Scrub = lambda text: text) -> None:
    """Route all logging of the process to `stream` (stderr by default); may be called again."""
    out = stream or sys.stderr
    as_json = form == "json" or (form == "auto" and not out.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _explain,
        _Redact(scrub),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(default=str)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    logging.captureWarnings(capture=True)


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger; `name` is the room that speaks."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger(room=name)
    return log


def crashed(error: BaseException) -> None:
    """Log the trace of an error that nobody foresaw; logging is set up if it is not yet."""
    if not structlog.is_configured():
        configure()
    logger("cdc").error("crashed", exc_info=error)


def describe(error: BaseException) -> str:
    """Say what an error is without repeating words that may quote data."""
    if isinstance(error, CdcError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    return type(error).__name__


def trace(error: BaseException) -> list[str]:
    """Return where an error came from, outermost first, causes before it; places only, never values."""
    above = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines = trace(above) if above is not None else []
    frames = traceback.extract_tb(error.__traceback__)[-TRACE_MAX_FRAMES:]
    return [*lines, *(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames), describe(error)]


def _explain(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401 - structlog's
    """Put our own, discreet description in place of an exception."""
    info = event.pop("exc_info", None)
    error = info if isinstance(info, BaseException) else info[1] if isinstance(info, tuple) else None
    if info is True:
        error = sys.exc_info()[1]
    if error is not None:
        event["error"] = describe(error)
        event["trace"] = trace(error)
    return event


class _Redact:
    """Hide facts whose name tells that they carry data, and mask passwords in the rest."""

    def __init__(self, scrub: Scrub) -> None:
        self._scrub = scrub

    def __call__(self, _: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401
        for name, fact in event.items():
            event[name] = HIDDEN if forbidden(name) else self._clean(fact)
        return event

    def _clean(self, fact: object) -> object:
        match fact:
            case bool() | int() | float() | None:
                return fact
            case bytes() | bytearray() | memoryview():
                return HIDDEN
            case BaseException():
                return self._scrub(describe(fact))
            case Mapping():
                return {str(name): HIDDEN if forbidden(str(name)) else self._clean(item) for name, item in fact.items()}
            case list() | tuple() | set() | frozenset():
                return [self._clean(item) for item in fact]
            case _:
                return self._scrub(str(fact))


def forbidden(name: str) -> bool:
    """Whether a fact of this name would carry data or a secret."""
    lower = name.lower()
    return lower in FORBIDDEN or any(part in lower for part in _FORBIDDEN_PARTS)
