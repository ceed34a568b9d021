"""Where a shop is: what each of its processes is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from cdc.consumer import Create
from cdc.outbox import Outbox

ORDERS, STOCK, USERS = "Order", "Stock", "User"
"""What events are about (their aggregatetype): the pipelines' route, `outbox.event.{aggregatetype}`, makes topics of it."""

DATABASES = ("shop", "inventory", "notification", "analytics")


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses. `dsns` has one for each of DATABASES; `mail_fails` is the share of mails that the mail server refuses at first.

    `sink` is the one setting that chooses the broker, as a consumer takes it: `{"kafka": {"bootstrap.servers": ..}}`, or `redis`, or
    `rabbitmq`. `prefix` is put before the consumers' names, for several shops on one broker.
    """

    sink: dict[str, dict[str, Any]]
    schemas: str
    dsns: dict[str, str]
    port: int = 0
    mail_fails: float = 0.0
    route: str = "outbox.event"
    prefix: str = ""

    def __repr__(self) -> str:
        return f"<Place port={self.port}>"

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what `write` wrote."""
        return cls(**json.loads(file.read_text()))

    def write(self, file: Path) -> None:
        """Write it down for other processes."""
        file.write_text(json.dumps(asdict(self)))

    def topics(self, *about: str) -> list[str]:
        """Return topics."""
        return [f"{self.route}.{aggregatetype}" for aggregatetype in about]

    def outbox(self) -> Outbox:
        """Return where events are written."""
        return Outbox(schemas=self.schemas)

    def consumer(self, database: str | None) -> dict[str, Any]:
        """Return what every consumer of the shop has in common.

        With an `instance` a consumer that was killed and comes back within the session's time has its partitions at once; a new
        member would wait until the group has missed the old one (45 s with Kafka).
        """
        return {
            **self.sink,
            "schemas": self.schemas,
            "postgres": None if database is None else self.dsns[database],
            "create": Create(partitions=1, replication_factor=1, min_insync_replicas=1),
            "instance": "1",
        }
