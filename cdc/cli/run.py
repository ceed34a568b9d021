"""`cdc run`: the pipeline, until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import signal
import threading
from typing import TYPE_CHECKING

from cdc import app
from cdc.cli.options import Config, LogFormat, LogLevel, Sets, settings_from, start_logs
from cdc.observe.http import HttpServer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from cdc.avro.current import CurrentRegistry
    from cdc.observe.observer import PipelineObserver

GC_THRESHOLD = 100_000
"""Objects that may be waiting for their reference counts before the collector looks for cycles: more than are in flight
between log and Kafka, so that it looks only when something has really been left behind. At Python's own 700 it looked a
hundred times a second, for a seventh of the time that an event takes."""


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
        server = HttpServer(*settings.http.address, lambda: _endpoint(watch, schemas))
        server.start()
    # What is here now stays for good; what comes for each row is freed by reference counting and leaves no cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    try:
        app.supervisor(settings, schemas, watch, stop).run()
    finally:
        if server is not None:
            server.stop()


def _endpoint(watch: PipelineObserver, schemas: CurrentRegistry) -> ASGIApp:
    """Make what HTTP answers; called, and so loaded, in the endpoint's thread, while this one opens the pipeline."""
    from starlette.routing import Mount  # noqa: PLC0415 - see above

    from cdc.avro.endpoint import application  # noqa: PLC0415
    from cdc.observe.web import create_app  # noqa: PLC0415

    return create_app(watch.health, watch.metrics, [Mount("/registry", application(lambda: schemas.registry))])
