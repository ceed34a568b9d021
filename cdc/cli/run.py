"""`cdc run`: the pipeline, until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import signal
import threading

from starlette.routing import Mount

from cdc import app
from cdc.avro.endpoint import application
from cdc.cli.options import Config, LogFormat, LogLevel, Sets, settings_from, start_logs
from cdc.observe.http import HttpServer, create_app


def run(
    config: Config = None,
    sets: Sets = None,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Run the pipeline, until SIGTERM."""
    settings = settings_from(config, sets)
    start_logs(log_format, log_level)
    schemas = app.schemas(settings)
    watch = app.observer(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = None
    if settings.http.address is not None:
        server = HttpServer(
            *settings.http.address, create_app(watch.health, watch.metrics, [Mount("/registry", application(lambda: schemas.registry))])
        )
        server.start()
    # What is here now stays for good; what comes for each row is freed by reference counting and leaves no cycles.
    gc.collect()
    gc.freeze()
    try:
        app.supervisor(settings, schemas, watch, stop).run()
    finally:
        if server is not None:
            server.stop()
