"""Options of commands that log: apart from the others, so that no command loads what it does not need."""

from typing import Annotated, Literal

import typer

from cdc.observe import logs
from cdc.settings import mask

LogFormat = Annotated[
    Literal["auto", "console", "json"],
    typer.Option("--log-format", envvar="CDC_LOG_FORMAT", help="How to log; auto is console on a terminal, else JSON lines."),
]
"""`log_format: LogFormat = "auto"`."""

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option("--log-level", envvar="CDC_LOG_LEVEL", help="The least important lines that are logged."),
]
"""`log_level: LogLevel = "info"`."""


def start_logs(log_format: logs.Format = "auto", log_level: logs.Level = "info") -> None:
    """Log to stderr from here on, with passwords masked."""
    logs.configure(log_format, log_level, scrub=mask)
