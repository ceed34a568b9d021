"""The registry's answers as an ASGI application, for `/registry` of a pipeline and for `cdc schemas serve`.

It holds no state but a function that returns the registry of the moment, so that added versions appear without a restart.
`HEAD` is answered as `GET`; a body is limited, because a schema is text that people write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from cdc.avro.confluent import MEDIA_TYPE, Answer, answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, MutableMapping

    from cdc.avro.registry import Registry

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES: Final = 4_000_000
"""As large as a schema file may be; more is not read."""


def application(registry: Callable[[], Registry], *prefixes: str) -> Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]:
    """Build the application; a path may begin with one of `prefixes`, such as /registry."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _body(receive)
        if body is None:
            reply = Answer(413, b'{"error_code":413,"message":"the body is too large for a schema"}')
        else:
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            reply = answer(registry(), method, _path(scope, prefixes), query, body)
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(reply.body)).encode())]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})

    return serve


def _path(scope: Scope, prefixes: tuple[str, ...]) -> str:
    """Return the encoded path below the mount point and the prefix."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path: str = raw.partition(b"?")[0].decode("latin-1")
    for prefix in (scope.get("root_path", ""), *prefixes):
        if prefix and (path == prefix or path.startswith(prefix + "/")):
            path = path[len(prefix) :]
    return path or "/"


async def _body(receive: Receive) -> bytes | None:
    """Read the body, None if it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)
