"""A way to a server on loopback that can fail: cut, stalled, slowed to a trickle, reset in mid-message, or silent without a word.

One thread serves all connections and waits for none of them: a client that is frozen holds up nobody else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.process import LOOPBACK, held_ports, port_of

POLL_S = 0.05
CHUNK = 65_536


@dataclass(slots=True, eq=False)
class _Way:
    """One direction of a connection, and what has come and is not yet passed on."""

    source: socket.socket
    target: socket.socket
    from_server: bool
    pending: bytes = b""


class Proxy:
    """Forwards connections to a port of loopback; `flow` ends whatever `stall`, `slow` and `cut` began."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ways: list[_Way] = []
        self._lost: list[_Way] = []
        self._swallowing, self._cutting = threading.Event(), threading.Event()
        self._stalled, self._closed = threading.Event(), threading.Event()
        self._rate: float | None = None
        self._budget = 0.0
        self._reset_after: int | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()
        self._listener.close()
        for each in self._ways + self._lost:
            each.source.close()

    def swallow(self) -> None:
        """Forward nothing any more, in either direction, and close nothing: a cable that was pulled. New connections come through."""
        self._swallowing.set()

    def reset(self, after_bytes: int) -> None:
        """Reset the connection that gets so many more bytes from the server."""
        self._reset_after = after_bytes

    def stall(self) -> None:
        """Keep everything back, also what new connections send."""
        self._stalled.set()

    def slow(self, bytes_per_s: float) -> None:
        """Let no more than so much through in a second, in both directions together."""
        self._rate = bytes_per_s

    def cut(self) -> None:
        """Reset all connections, and each new one at once."""
        self._cutting.set()

    def flow(self) -> None:
        """Let everything through again."""
        self._stalled.clear()
        self._cutting.clear()
        self._rate, self._reset_after = None, None

    def _serve(self) -> None:
        then = time.monotonic()
        while not self._closed.is_set():
            now = time.monotonic()
            if (rate := self._rate) is not None:
                self._budget = min(self._budget + rate * (now - then), max(rate * POLL_S, 1))
            then = now
            self._change()
            self._step()
            if rate is not None:
                self._closed.wait(POLL_S / 2)  # a trickle is no reason to spin

    def _change(self) -> None:
        """Do what was asked for since."""
        if self._swallowing.is_set() and self._ways:
            self._lost += self._ways  # kept open
            self._ways = []
            self._swallowing.clear()
        if self._cutting.is_set():
            for way in self._ways:
                self._abort(way)
            self._ways = []

    def _step(self) -> None:
        """Take what has come, pass on what can be, and wait for more."""
        flows = not self._stalled.is_set() and not (self._rate is not None and self._budget < 1)
        reading = {way.source: way for way in self._ways if flows and not way.pending}
        writing = {way.target: way for way in self._ways if flows and way.pending}
        readable, writable, _ = select.select([self._listener, *reading], [*writing], [], POLL_S)
        for each in readable:
            if each is self._listener:
                self._accept()
            elif reading[each] in self._ways and not self._swallowing.is_set():  # an end that came since is swallowed, too
                self._read(reading[each])
        for each in writable:
            if writing[each] in self._ways:
                self._write(writing[each])

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ways += [_Way(client, server, from_server=False), _Way(server, client, from_server=True)]

    def _read(self, way: _Way) -> None:
        try:
            data = way.source.recv(CHUNK if self._rate is None else min(CHUNK, max(1, int(self._budget))))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._budget -= len(data)
        if not data:
            self._close(way)
            return
        way.pending = data
        if way.from_server and self._reset_after is not None:
            self._reset_after -= len(data)
            if self._reset_after < 0:
                self._reset_after = None
                way.pending = data[: len(data) // 2]
                self._write(way)
                self._abort(way)
                self._close(way)
                return
        self._write(way)

    def _write(self, way: _Way) -> None:
        try:
            way.pending = way.pending[way.target.send(way.pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self._close(way)

    def _close(self, way: _Way) -> None:
        self._ways = [each for each in self._ways if way.source not in {each.source, each.target}]
        for each in (way.source, way.target):
            each.close()

    @staticmethod
    def _abort(way: _Way) -> None:
        """Close both ends with RST."""
        for each in (way.source, way.target):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()


@contextmanager
def proxied_kafka(properties: Mapping[str, str] | None = None) -> Iterator[tuple[KafkaBroker, Proxy]]:
    """Give a broker, started, that is reached directly by its own address, and through a proxy by the proxy's."""
    [held] = held_ports(1)
    with held, Proxy(port_of(held)) as proxy:
        broker = KafkaBroker()
        own = f"PLAINTEXT://{broker.bootstrap_servers}"
        broker.properties |= {
            "listeners": f"{own},PROXIED://{LOOPBACK}:{port_of(held)},CONTROLLER://{LOOPBACK}:{broker.controller_port}",
            "advertised.listeners": f"{own},PROXIED://{LOOPBACK}:{proxy.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            **(properties or {}),
        }
        with broker:
            yield broker, proxy
