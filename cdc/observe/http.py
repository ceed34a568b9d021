"""The HTTP endpoint: metrics, health, status and a page for people, in a thread of its own.

Strategy: the socket is bound before anything else starts, so that a port in use is a setting to fix and not a dead endpoint.
From then on the system takes connections; they wait until the thread has loaded the web server, which takes as long as the
way to the first event. So it is done beside that, and not before.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from cdc.errors import ConfigurationError
from cdc.observe import logs

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from cdc.observe.web import QuietServer

STOPPED_WITHIN_S = 2.0
"""Requests under way have so long to end; the thread is a daemon and cannot keep the process from exiting."""

BACKLOG = 64
"""Connections that wait to be accepted: scrapers and probes are few."""


class HttpServer:
    """The endpoint's thread: bound when made, serving what `load` returns from `start` to `stop`."""

    def __init__(self, host: str, port: int, load: Callable[[], ASGIApp]) -> None:
        self._socket = _bind(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        self._load = load
        self._server: QuietServer | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def __repr__(self) -> str:
        return f"<HttpServer {self.host}:{self.port}{' serving' if self._thread.is_alive() else ''}>"

    def start(self) -> None:
        """Serve; a request that comes before the web server is loaded waits for it."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and free the port; safe at any time and more than once."""
        self._stopped = True
        if self._server is not None:
            self._server.end()
        if self._thread.is_alive():
            self._thread.join(STOPPED_WITHIN_S)
        self._socket.close()

    def _serve(self) -> None:
        try:
            from cdc.observe.web import QuietServer  # noqa: PLC0415 - here and not in the thread that opens the pipeline

            self._server = server = QuietServer(self._load())
            if not self._stopped:
                server.run(sockets=[self._socket])
        except Exception as error:  # noqa: BLE001 - a thread's last words
            logs.crashed(error)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _refused(host, port, error) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise _refused(host, port, error) from None
    return bound


def _refused(host: str, port: int, error: OSError) -> ConfigurationError:
    reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
    return ConfigurationError(
        f'http.listen = "{host}:{port}" cannot be used: {reason}',
        'set http.listen to a free address (--set http.listen=127.0.0.1:8643), or to "off"',
    )
