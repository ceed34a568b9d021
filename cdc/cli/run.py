"""`cdc run`: the pipeline, until SIGTERM or SIGINT."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

from cdc import app
from cdc.cli.garbage import seldom_collected, thrifty
from cdc.cli.log_options import LogFormat, LogLevel, start_logs
from cdc.cli.options import Config, Sets, settings_from
from cdc.cli.shards import Shards, each, run_all, stop_with_parent
from cdc.observe.guard import Guard
from cdc.observe.http import HttpServer
from cdc.observe.watchdog import tell_systemd

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from cdc.avro.current import CurrentRegistry
    from cdc.observe.observer import PipelineObserver
    from cdc.settings import Settings


def run(
    config: Config = None,
    sets: Sets = None,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
    shards: Shards = None,
) -> int:
    """Run the pipeline, until SIGTERM."""
    if shards is not None:
        each(config, sets, shards)  # what is wrong with the settings is told once
        file = [] if config is None else ["--config", str(config)]
        named = [part for setting in sets or () for part in ("--set", setting)]
        return run_all([*file, *named, "--log-format", log_format, "--log-level", log_level], shards)
    thrifty()
    settings = settings_from(config, sets)
    start_logs(log_format, log_level)
    schemas = app.schemas(settings)
    watch = app.observer(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop_with_parent(stop)
    server = None
    if settings.http.address is not None:
        server = HttpServer(*settings.http.address, lambda: _endpoint(settings, watch, schemas))
        server.start()
    try:
        with seldom_collected(), contextlib.ExitStack() as beside:
            for watcher in app.watchers(settings, watch):
                beside.enter_context(watcher)
            tell_systemd("READY=1")  # also a standby is: it does what it was started for
            app.supervisor(settings, schemas, watch, stop).run()
    finally:
        if server is not None:
            server.stop()
    return 0


def _endpoint(settings: Settings, watch: PipelineObserver, schemas: CurrentRegistry) -> ASGIApp:
    """Make what HTTP answers; called, and so loaded, in the endpoint's thread, while this one opens the pipeline."""
    from starlette.routing import Mount  # noqa: PLC0415 - see above

    from cdc.avro.endpoint import application  # noqa: PLC0415
    from cdc.observe.web import create_app  # noqa: PLC0415

    token = settings.http.token
    answers = create_app(
        watch.health,
        watch.metrics,
        [Mount("/registry", application(lambda: schemas.registry))],
        history=watch.history,
        registry=lambda: schemas.registry,
        payloads=None if token is None else app.payloads(settings, schemas),
    )
    return answers if token is None else Guard(answers, token.get_secret_value())
