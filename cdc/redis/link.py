"""One connection to Redis, and what each of its errors asks for.

A `Wire` is for a thread that may wait for Redis; a `Link` is for an owner that may not.

Rules.
- Neither ever reconnects or repeats a command: what an answer that was lost would have said, only the position knows, and
  a connection that came back by itself might reach another server (a replica that was promoted without our last commits).
- Everything of a link but the ownership of the socket happens in a helper thread, while the owner thread answers PostgreSQL.
- Redis's words name commands, keys and limits. Where they would repeat arguments they are cut.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, UnixDomainSocketConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from cdc.errors import CdcError, ConfigurationError, Retriable, SinkRefused
from cdc.resilience.call import CALL_MARGIN_S, Caller, PatienceEnded, nobody_waits

Answer = TypeVar("Answer")
Waiting = Callable[[], None]

PATIENCE_S = 30.0
"""How long an answer may take."""

CONNECT_S = 5.0
"""How long a connection may take, to Redis or to a Sentinel."""

PAUSE_S = 0.003
"""Time between two looks at PostgreSQL while Redis is waited for."""

CHUNK = 2_000
"""Pieces of a command that are joined for one write to the socket."""


class Wire:
    """One connection, made by its first command, for one thread; raises what redis-py raises and what `_connection` does."""

    def __init__(self, url: str, name: str, sentinel: str | None = None, timeout_s: float = PATIENCE_S + CALL_MARGIN_S) -> None:
        self._connect: Callable[[], Any] = lambda: _connection(url, f"cdc-{name}", sentinel, timeout_s)
        self._connection: Any = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Wire {'closed' if self._closed else 'open' if self._connection else 'not made yet'}>"

    def ask(self, *words: object) -> Any:  # noqa: ANN401 - the command's own type
        """Send a command and return its answer."""
        connection = self._connected()
        connection.send_command(*words, check_health=False)
        return connection.read_response()

    def exchange(self, pieces: Sequence[bytes]) -> Any:  # noqa: ANN401 - the command's own type
        """Send a command that is packed already, and return its answer."""
        connection = self._connected()
        connection.send_packed_command(_joined(pieces), check_health=False)
        return connection.read_response()

    def close(self) -> None:
        """Let the connection go; never blocks. What was sent in part is never executed."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(exceptions.RedisError, OSError):
                self._connection.disconnect()

    def _connected(self) -> Any:  # noqa: ANN401 - redis-py's types are incomplete
        if self._connection is None:
            self._connection = self._connect()
            self._connection.connect()
        if self._closed:  # while it was being made
            self._disconnect()
        return self._connection


class Link:
    """One connection and the thread that uses it; after an error it is never used again."""

    def __init__(self, url: str, name: str, sentinel: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._wire = Wire(url, name, sentinel)
        self._caller = Caller(f"cdc-redis-{name}", PAUSE_S, clock)
        self.failed = False

    def __repr__(self) -> str:
        return f"<Link {'failed' if self.failed else 'open'}>"

    def call(self, *words: object, waiting: Waiting = nobody_waits, doing: str) -> Any:  # noqa: ANN401 - the command's own type
        """Send a command and return its answer."""
        return self.run(lambda: self._wire.ask(*words), waiting, doing)

    def send(self, pieces: Sequence[bytes], waiting: Waiting, doing: str) -> Any:  # noqa: ANN401 - the command's own type
        """Send a command that is packed already, and return its answer."""
        return self.run(lambda: self._wire.exchange(pieces), waiting, doing)

    def run(self, function: Callable[[], Answer], waiting: Waiting, doing: str) -> Answer:
        """Run `function` in the helper thread, once; any error ends this link's use."""
        assert not self.failed, "a link is never used again after an error"
        answers: list[Answer] = []
        self.failed = True
        waiting()
        try:
            self._caller.call(lambda _: answers.append(function()), PATIENCE_S, waiting)
        except (exceptions.RedisError, OSError) as error:
            raise fault(error, doing) from None
        except PatienceEnded:
            msg = f"Redis gave no answer within {PATIENCE_S:.0f} s while {doing}"
            raise Retriable(msg) from None
        self.failed = False
        return answers[0]

    def close(self) -> None:
        """Let the connection go; never blocks."""
        self.failed = True
        self._caller.end()
        self._wire.close()


def _joined(pieces: Sequence[bytes]) -> Iterable[bytes]:
    for start in range(0, len(pieces), CHUNK):
        yield b"".join(pieces[start : start + CHUNK])


def _connection(url: str, client: str, sentinel: str | None, timeout_s: float) -> Any:  # noqa: ANN401 - untyped in part
    """Return a connection that is not made yet; raises ConfigurationError for an address that cannot be one."""
    try:
        settings = parse_url(url)
    except ValueError as error:
        msg = f"redis.url cannot be used: {error}"
        raise ConfigurationError(msg, "write it as redis://user@host:6379/0") from None
    kind = settings.pop("connection_class", Connection)
    own: dict[str, Any] = {
        "client_name": client,
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if kind is not UnixDomainSocketConnection:
        own |= {"socket_connect_timeout": CONNECT_S, "socket_keepalive": True}
    if sentinel is not None:
        own["host"], own["port"] = _primary(sentinel)
    try:
        return kind(**{**settings, **own})
    except TypeError as error:  # redis-py takes any parameter of a URL for an argument
        msg = f"redis.url cannot be used: {str(error).rpartition('() ')[2]}"
        raise ConfigurationError(msg, "leave the parameter out") from None


def _primary(sentinel: str) -> tuple[str, int]:
    """Ask the Sentinels where the primary is."""
    service, _, listed = sentinel.partition("@")
    places = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in listed.split(","))]
    asked: Any = Sentinel(places, socket_timeout=CONNECT_S, socket_connect_timeout=CONNECT_S)
    try:
        host, port = asked.discover_master(service)
    finally:
        for each in asked.sentinels:
            each.close()
    return str(host), int(port)


TRANSIENT = ("LOADING", "BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "NOSCRIPT", "READONLY", "OOM", "TRYAGAIN", "UNBLOCKED")
"""Errors of the server that time, or an operator who sees them, heals (src/server.c, createSharedObjects)."""

_TRANSIENT = re.compile(rf"(?:^|: -)({'|'.join(TRANSIENT)})\b")
"""Redis 6.2 puts the script's line before an error that comes from inside of it: `@user_script: 11: -READONLY ..`."""

NO_CLUSTER = "a commit is one script over several keys: use one server, with Sentinel or without"

FIXES = {
    "OOM": "free memory or raise maxmemory; PostgreSQL keeps the log meanwhile",
    "READONLY": "it is a replica: Redis failed over, or redis.url names the wrong server; with Sentinel set redis.sentinel",
    "MISCONF": "Redis cannot write to its disk: see its log",
    "NOREPLICAS": "bring the replicas back that min-replicas-to-write asks for",
    "BUSY": "a script holds the server; it ends by itself, or see SCRIPT KILL",
}


def fault(error: Exception, doing: str) -> CdcError:
    """Return what an error of redis-py asks for."""
    words = " ".join(str(error).split()).partition(", with args beginning with")[0]
    found = _TRANSIENT.search(words)
    code = found[1] if found else _code(error)
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError | exceptions.AuthorizationError):
        return SinkRefused(
            f"Redis refuses us while {doing}: {words}", "see user and password in redis.url, and docs/redis.md for the rights"
        )
    if code in TRANSIENT:
        return Retriable(f"Redis says {code} while {doing}: {words}", FIXES.get(code, ""))
    if isinstance(error, exceptions.MovedError | exceptions.CrossSlotTransactionError | exceptions.ClusterCrossSlotError):
        return SinkRefused(f"this is a Redis Cluster: {words}", NO_CLUSTER)
    if isinstance(error, exceptions.ResponseError):
        return SinkRefused(f"Redis refuses while {doing}: {words}", "see docs/redis.md")
    return Retriable(f"Redis does not answer while {doing}: {words or type(error).__name__}")


def _code(error: Exception) -> str | None:
    """Return the code of an error whose class tells it: redis-py cuts the words that it knows."""
    kinds = {
        exceptions.BusyLoadingError: "LOADING",
        exceptions.ReadOnlyError: "READONLY",
        exceptions.OutOfMemoryError: "OOM",
        exceptions.NoScriptError: "NOSCRIPT",
        exceptions.MasterDownError: "MASTERDOWN",
        exceptions.TryAgainError: "TRYAGAIN",
    }
    return next((code for kind, code in kinds.items() if isinstance(error, kind)), None)
