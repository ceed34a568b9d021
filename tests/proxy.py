"""A way to a server on loopback that can be cut: it stops forwarding without a word, or resets in the middle of a message."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from types import TracebackType
from typing import Self

POLL_S = 0.05
CHUNK = 65_536


class Proxy:
    """Forwards connections to a port of loopback; `swallow` keeps all that comes, `reset` ends what is there with RST."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lost: list[tuple[socket.socket, socket.socket]] = []
        self._swallowing = threading.Event()
        self._closed = threading.Event()
        self._reset_after: int | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()
        for each in (self._listener, *(each for pair in self._pairs + self._lost for each in pair)):
            each.close()

    def swallow(self) -> None:
        """Forward nothing any more, in either direction, and close nothing: a cable that was pulled. New connections come through."""
        self._swallowing.set()

    def reset(self, after_bytes: int) -> None:
        """Reset the connection that gets so many more bytes from the server."""
        self._reset_after = after_bytes

    def _serve(self) -> None:
        while not self._closed.is_set():
            if self._swallowing.is_set() and self._pairs:
                self._lost += self._pairs  # kept open
                self._pairs = []
                self._swallowing.clear()
            ways = {one: other for client, server in self._pairs for one, other in ((client, server), (server, client))}
            ready, _, _ = select.select([self._listener, *ways], [], [], POLL_S)
            for each in ready:
                if each is self._listener:
                    client, _ = self._listener.accept()
                    self._pairs.append((client, socket.create_connection(("127.0.0.1", self._target))))
                elif not self._swallowing.is_set():
                    self._pass_on(each, ways[each])

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(CHUNK)
            from_server = any(server is source for _, server in self._pairs)
            if from_server and self._reset_after is not None and data:
                self._reset_after -= len(data)
                if self._reset_after < 0:
                    target.sendall(data[: len(data) // 2])
                    target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self._reset_after, data = None, b""
            if data:
                target.sendall(data)
                return
        except OSError:
            pass
        self._pairs = [pair for pair in self._pairs if source not in pair]
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.close()
