"""A bare loop of a sink's client: what it can do with the same messages when nothing else is asked of it.

`python -m benchmarks.bare redis URL SOURCE ROWS`: entries that lie in stream SOURCE are added to another one, in pipelines of MULTI.
`python -m benchmarks.bare rabbitmq URL SOURCE ROWS`: messages that lie in queue SOURCE are published to another one, confirmed in bulk,
with as many unconfirmed at most as the pipeline has. Ends with one line of JSON: events_per_s, cpu_s.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import pika
import redis

from cdc.rabbitmq.publisher import OUTSTANDING

SAMPLE = 1_000
"""Messages that are repeated."""

BATCH = 2_000

TARGET = "bare"


def by_redis(url: str, source: str, rows: int) -> None:
    """Add entries, BATCH in a transaction."""
    client = redis.Redis.from_url(url, protocol=2)
    found: Any = client.xrange(source, count=SAMPLE)
    entries = itertools.cycle([fields for _, fields in found])
    for _ in range(rows // BATCH):
        pipeline = client.pipeline(transaction=True)
        for _ in range(BATCH):
            pipeline.xadd(TARGET, next(entries))
        pipeline.execute()


class ByPika:
    """Publishes with pika's own basic_publish; each confirm makes room for more."""

    def __init__(self, url: str, messages: list[tuple[Any, bytes]], rows: int) -> None:
        self._messages = itertools.cycle(messages)
        self._rows = rows
        self._sent = self._confirmed = 0
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            pika.URLParameters(url), on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened)
        )

    def __repr__(self) -> str:
        return f"<ByPika {self._confirmed} of {self._rows}>"

    def run(self) -> None:
        """Return when all are confirmed."""
        self._connection.ioloop.start()

    def _opened(self, channel: Any) -> None:  # noqa: ANN401 - pika has no types
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._publish())

    def _publish(self) -> None:
        publish = self._channel.basic_publish
        while self._sent < self._rows and self._sent - self._confirmed < OUTSTANDING:
            properties, body = next(self._messages)
            publish("", TARGET, body, properties, mandatory=True)
            self._sent += 1

    def _on_confirm(self, frame: Any) -> None:  # noqa: ANN401 - pika has no types
        method = frame.method
        self._confirmed = method.delivery_tag if method.multiple else self._confirmed + 1
        if self._confirmed >= self._rows:
            self._connection.ioloop.stop()
        elif self._sent - self._confirmed <= OUTSTANDING // 2:
            self._publish()


def by_rabbitmq(url: str, source: str, rows: int) -> ByPika:
    """Return what publishes, with messages of the queue."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(TARGET, durable=True, arguments={"x-queue-type": "quorum"})
    found = [channel.basic_get(source, auto_ack=True) for _ in range(SAMPLE)]
    channel.queue_purge(source)  # the broker is as empty as it was for the pipeline
    connection.close()
    return ByPika(url, [(properties, body) for method, properties, body in found if method is not None], rows)


def main(sink: str, url: str, source: str, rows: int) -> None:
    """Run, and say what it took; preparing is not counted."""
    loop = by_rabbitmq(url, source, rows) if sink == "rabbitmq" else None
    began, spent = time.perf_counter(), time.process_time()
    if loop is not None:
        loop.run()
    else:
        by_redis(url, source, rows)
    seconds = time.perf_counter() - began
    print(json.dumps({"events_per_s": round(rows / seconds), "cpu_s": round(time.process_time() - spent, 2)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
