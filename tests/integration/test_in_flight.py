"""Why one produce request at a time: what librdkafka makes of a first batch that is sent away while the second one is taken.

The broker that has just heard of a topic does not lead its partition yet for a moment. A proxy stands for that moment: it
answers the first produce request itself, by NOT_LEADER_OR_FOLLOWER, when the second one has come or does not come.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from cdc.kafka.properties import producer_properties
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.topics import Create
from tests.integration.kafka_help import nothing, publisher, until
from tests.pipeline import consume

pytestmark = pytest.mark.servers

PRODUCE, NOT_LEADER = 0, 6
ALONE_S = 0.3
"""How long the first request waits for company: 200 times what the second one needs on loopback."""


class SentAway:
    """Forwards to a broker, all but the first produce request."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        host, _, port = bootstrap.partition(":")
        self._server, self._topic = (host, int(port)), topic.encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.produced = 0
        self._first = b""
        self._writing = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        try:
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
                threading.Thread(target=self._to_client, args=(server, client), daemon=True).start()
        except OSError:
            pass

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        ours, theirs = struct.pack(">i", self.port), struct.pack(">i", self._server[1])
        for frame in frames(server):
            self._send(client, frame.replace(theirs, ours))  # the address that the broker advertises
        client.close()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        for frame in frames(client):
            key, version = struct.unpack_from(">hh", frame)
            if key == PRODUCE and self._topic in frame:
                assert version >= 9, "the answer below is of the flexible versions"
                self.produced += 1
                if self.produced == 1:
                    self._first = frame[4:8]
                    threading.Timer(ALONE_S, self._refuse, [client]).start()
                    continue
                self._refuse(client)
            server.sendall(struct.pack(">i", len(frame)) + frame)
        server.close()

    def _refuse(self, client: socket.socket) -> None:
        """Answer the first request, once (ProduceResponse version 9: the Kafka protocol guide)."""
        correlation, self._first = self._first, b""
        if correlation:
            partition = struct.pack(">ihqqq", 0, NOT_LEADER, -1, -1, -1) + b"\x01\x00\x00"
            topic = bytes([len(self._topic) + 1]) + self._topic + b"\x02" + partition + b"\x00"
            self._send(client, correlation + b"\x00\x02" + topic + struct.pack(">i", 0) + b"\x00")

    def _send(self, client: socket.socket, frame: bytes) -> None:
        with self._writing:
            client.sendall(struct.pack(">i", len(frame)) + frame)


def frames(end: socket.socket) -> Iterator[bytes]:
    """Yield what comes, without its length."""
    with end.makefile("rb") as stream:
        while len(length := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", length)[0])


@pytest.fixture
def topic(kafka: str, unique: str) -> Iterator[str]:
    made: KafkaPublisher = publisher(kafka, unique)
    made.topics.create(f"{unique}.new", Create(1, 1, 1), {}, nothing)
    yield f"{unique}.new"
    made.close()


@pytest.mark.parametrize(("more", "found"), [({}, [b"1", b"2"]), ({"max.in.flight": 5}, [b"2"])], ids=["ours", "what librdkafka loses"])
def test_a_first_batch_that_is_sent_away_is_not_overtaken(kafka: str, topic: str, more: dict[str, int], found: list[bytes]) -> None:
    """The second case is the fault of librdkafka itself: once it fails, IN_FLIGHT has lost its reason."""
    way = SentAway(kafka, topic)
    producer = Producer({**producer_properties({"bootstrap.servers": f"127.0.0.1:{way.port}"}, topic), **more})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    until(lambda: way.produced == 1, 30)
    producer.produce(topic, b"2")
    producer.commit_transaction(30)  # returns: it counts both as delivered
    assert [event.value for event in consume(kafka, [topic])] == found
    way.close()
