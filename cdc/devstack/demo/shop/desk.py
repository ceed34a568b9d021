"""What every request of the order service goes through: a connection, and an answer that is given once for each idempotency key."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

Answer = tuple[int, dict[str, Any]]
"""An HTTP status and a document."""


class Desk:
    """Lends connections to threads, at most `size` at once."""

    def __init__(self, dsn: str, size: int = 4) -> None:
        self._dsn = dsn
        self._free: queue.LifoQueue[psycopg.Connection[Any] | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)

    def close(self) -> None:
        """Hang up; whoever still works keeps his connection until he is done."""
        with contextlib.suppress(queue.Empty):
            while True:
                connection = self._free.get_nowait()
                if connection is not None:
                    connection.close()

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection in autocommit; one that broke is opened again by the next who needs it."""
        connection = self._free.get()
        try:
            if connection is None or connection.closed:
                connection = psycopg.connect(self._dsn, autocommit=True, application_name="shop-api")
            yield connection
        finally:
            self._free.put(connection)

    def once(self, key: str | None, asked: str, work: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
        """Do a piece of work in a transaction, and keep its answer there under the customer's key.

        Who asks again gets the first answer; who does it at the same instant waits for it, inside of PostgreSQL. A key that
        was used for another question is refused with 422.
        """
        with self.connection() as connection, connection.transaction():
            if key is None:
                return work(connection)
            query = "INSERT INTO requests (key, asked) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            if connection.execute(query, (key, asked)).rowcount:
                status, document = work(connection)
                kept = json.dumps([status, document])
                connection.execute("UPDATE requests SET answer = %s WHERE key = %s", (kept, key))
                return status, document
            found = connection.execute("SELECT asked, answer FROM requests WHERE key = %s", (key,)).fetchone()
            if found is None or found[0] != asked:
                return 422, {"error": "this Idempotency-Key belongs to another request"}
            status, document = found[1]
            return status, document
