"""Who may ask: a token before everything but health and metrics, which probes and scrapers ask without one.

Bearer as RFC 6750 has it, or Basic (RFC 7617) with the token as the password, as Confluent's clients send
`basic.auth.user.info`. Without a token everybody may ask; the settings allow that on a loopback address only.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = ("/health/", "/metrics")
"""What needs no token: it tells numbers and states, and no names of the outbox's contents."""

_CHALLENGE = b'Bearer realm="cdc", Basic realm="cdc", charset="UTF-8"'


class Guard:
    """An application behind a token; paths that begin with one of `open_paths` are answered to everybody."""

    def __init__(self, app: ASGIApp, token: str, open_paths: tuple[str, ...] = OPEN) -> None:
        self._app = app
        self._token = token.encode()
        self._open = open_paths

    def __repr__(self) -> str:
        return f"<Guard of {self._app!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 unless the request brings the token (ASGI 3)."""
        if scope["type"] == "http" and not scope["path"].startswith(self._open) and not self._knows(dict(scope["headers"])):
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", _CHALLENGE)]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"a token is needed: http.token\n"})
            return
        await self._app(scope, receive, send)

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        given = credentials.strip()
        if scheme.lower() == b"basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(given, self._token)
