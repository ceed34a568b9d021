"""`cdc run`: the pipeline, until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import signal
import threading
from typing import Annotated

import typer

from cdc import app
from cdc.cli.options import Config, Sets, settings_from
from cdc.observe import logs
from cdc.observe.http import HttpServer, create_app
from cdc.settings import mask


def run(
    config: Config = None,
    sets: Sets = None,
    log_format: Annotated[str, typer.Option(metavar="auto|console|json", help="How log lines look.")] = "auto",
    log_level: Annotated[str, typer.Option(metavar="debug|info|warning|error", help="From which level on.")] = "info",
) -> None:
    """Run the pipeline, until SIGTERM."""
    settings = settings_from(config, sets)
    logs.configure(log_format, log_level, scrub=mask)  # type: ignore[arg-type]  # checked by configure
    schemas = app.registry(settings)
    watch = app.observer(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = None
    if settings.http.address is not None:
        server = HttpServer(*settings.http.address, create_app(watch.health, watch.metrics))
        server.start()
    # What is here now stays for good; what comes for each row is freed by reference counting and leaves no cycles.
    gc.collect()
    gc.freeze()
    try:
        app.supervisor(settings, schemas, watch, stop).run()
    finally:
        if server is not None:
            server.stop()
