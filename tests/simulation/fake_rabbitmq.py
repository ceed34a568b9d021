"""A simulated RabbitMQ, and pika's end of a connection to it: deterministic, in one thread, with faults on demand.

Strategy: the publisher, its lease and its link are the real ones, down to the bytes of a message; what is replaced is pika's
connection with its loop. A broker takes messages at once, is sure of them at a later moment (`flush`), and only then confirms
and delivers them; what comes from it is taken up when the link pauses, which is when time passes.

What can happen to it:

    hold_next    from the next request on, a connection's bytes stay on their way, its end too, until `release` lets them
                 arrive or the broker has heard nothing for HEARTBEATS_S and gives the connection up
    late_next_s  the next confirm is on its way for so long, and what comes after it with it
    restart      connections end, and queues that are not named lose what the broker was not sure of yet
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from pika import exceptions, frame
from pika.spec import Basic, BasicProperties

from cdc.event import Record
from cdc.position import Position
from cdc.rabbitmq.link import CONNECT_S, HEARTBEAT_S, Link, Waiting, parameters_of
from cdc.rabbitmq.message import seen_of
from cdc.rabbitmq.positions import MARKER

HEARTBEATS_S = 2 * HEARTBEAT_S

FIRST_S, MOST_S = 0.01, 2.0
"""How much time passes in a pause in which nothing comes: more each time."""

EXCHANGE = "shop"

Gate = Callable[[str, Callable[[], Any]], Any]
"""Makes a request, by its name, or lets something else happen."""


@dataclass(eq=False)
class Kept:
    """A message in a queue; `sure` when it would outlast a restart, `holder` has it unacknowledged."""

    sender: Connection | None
    number: int
    properties: BasicProperties
    body: bytes
    written: float
    sure: bool = False
    holder: Connection | None = None
    tag: int = 0


class FakeRabbit:
    """The broker; an epoch begins with each connection that gets its own marker, and with that the lease."""

    cluster_id = "rabbitmq:/"

    def __init__(self, clock: Callable[[], float]) -> None:
        self.on_commit: Callable[[int, list[Record]], None] = lambda _epoch, _records: None
        self.on_init: Callable[[int], None] = lambda _epoch: None
        self.hold_next = False
        self.late_next_s = 0.0
        self.clock = clock
        self.queues: dict[str, list[Kept]] = {}
        self.position_queue = ""
        self._told: list[bytes] = []
        self._epoch = 0
        self._connections: list[Connection] = []
        self._consumers: list[Connection] = []

    def __repr__(self) -> str:
        return f"<FakeRabbit with {len(self._connections)} connections>"

    def connect(self, connection: Connection) -> None:
        """Take a connection."""
        self._connections.append(connection)

    def receive(self, connection: Connection, request: Callable[[], object]) -> None:
        """Take a request, unless it cannot arrive, or does so later."""
        connection.asleep = False
        if connection.gone:
            return
        if self.hold_next and connection.stuck is None:
            self.hold_next = False
            connection.stuck, connection.heard = [], self.clock()
        if connection.stuck is None:
            request()
        else:
            connection.stuck.append(request)

    def publish(self, connection: Connection, exchange: str, key: str, properties: BasicProperties, body: bytes) -> None:
        """Put a message into its queue, or send it back."""
        connection.published += 1
        queue = self.queues.get(key)
        if queue is None:
            returned = SimpleNamespace(exchange=exchange, routing_key=key, reply_text="NO_ROUTE")
            connection.say(partial(connection.returned, None, returned, properties, body))
            connection.confirm(connection.published)
            return
        queue.append(Kept(connection, connection.published, properties, body, self.clock()))
        if key != self.position_queue:
            self.on_commit(connection.epoch, [])

    def ack(self, connection: Connection, tag: int) -> None:
        """Forget a message that a consumer has done with."""
        found = self.queues[self.position_queue]
        found[:] = [each for each in found if (each.holder, each.tag) != (connection, tag)]

    def consume(self, connection: Connection) -> None:
        """Let a connection wait for the position's queue."""
        self._consumers.append(connection)

    def flush(self) -> None:
        """Be sure of what was written before now, confirm it, and deliver."""
        now = self.clock()
        for connection in [each for each in self._connections if each.silent and now - each.heard >= HEARTBEATS_S]:
            self.end(connection)
        confirmed: dict[Connection, int] = {}
        for queue in self.queues.values():
            for each in queue:
                if not each.sure and each.written < now:
                    each.sure = True
                    if each.sender is not None:
                        confirmed[each.sender] = max(confirmed.get(each.sender, 0), each.number)
        for connection, number in confirmed.items():
            late_s, self.late_next_s = self.late_next_s, 0.0
            connection.confirm(number, late_s)
        self._tell()
        self._deliver()

    def _tell(self) -> None:
        """Tell the newest position that outlasts a restart, when it is another one."""
        told, self._told = self._told, [each.body for each in self.queues[self.position_queue] if each.sure and each.body]
        if self._told and self._told != told:
            newest = max(map(Position.from_json, self._told), key=lambda each: (each.generation, each.end_lsn))
            self.on_commit(self._epoch, [Record(self.position_queue, b"", newest.to_json(), [], 0)])

    def active(self) -> Sequence[Connection]:
        """Return the consumers that are served: a single one."""
        return self._consumers[:1]

    def _deliver(self) -> None:
        for connection in self.active():
            for each in self.queues[self.position_queue]:
                if each.sure and each.holder is None:
                    connection.delivered += 1
                    each.holder, each.tag = connection, connection.delivered
                    if each.properties.type == MARKER and each.sender is connection:
                        self._epoch += 1
                        connection.epoch = self._epoch
                        self.on_init(self._epoch)
                    connection.say(partial(connection.deliver, each))

    # what it has

    def declare(self, *queues: str, position: str) -> None:
        """Make queues, to which messages are routed by their names."""
        self.position_queue = position
        for queue in (*queues, position):
            self.queues[queue] = []

    def begin(self, position: Position, key: str) -> None:
        """Take the first position, as `cdc init` makes it."""
        self.declare("outbox.event.order", "cdc.shop.dead-letter", position=key)
        self.queues[key].append(Kept(None, 0, BasicProperties(message_id="genesis/1"), position.to_json(), self.clock(), sure=True))

    def committed(self, topic: str) -> Iterator[tuple[int, int, Record]]:
        """Yield (0, offset, record) of a queue."""
        for offset, each in enumerate(self.queues[topic]):
            seen = seen_of(topic, offset, each.properties, each.body)
            yield 0, offset, Record(topic, seen.key, seen.value, seen.headers, seen.timestamp_ms)

    # what happens to it

    def release(self) -> int:
        """Let all that is on its way arrive, oldest connection first; return the number of requests."""
        count = 0
        for connection in [each for each in self._connections if each.stuck is not None]:
            stuck, connection.stuck = connection.stuck or [], None
            for request in stuck:
                self.receive(connection, request)
            count += len(stuck)
        return count

    def end(self, connection: Connection) -> None:
        """Give a connection up: what it held goes back to its place, and the next consumer is served."""
        connection.gone, connection.stuck = True, None
        connection.deaf = connection.deaf or connection.asleep
        self._connections = [each for each in self._connections if each is not connection]
        self._consumers = [each for each in self._consumers if each is not connection]
        for each in self.queues[self.position_queue]:
            if each.holder is connection:
                each.holder = None
        connection.say(connection.lost)

    def restart(self, keep: Collection[str] = ()) -> None:
        """Come back with what it is sure of, and with all that came to the queues of these names."""
        for name, queue in self.queues.items():
            queue[:] = [each for each in queue if each.sure or name in keep]
            for each in queue:
                each.sure = True
        for connection in list(self._connections):
            self.end(connection)


class Connection:
    """What a link sees of pika: a connection, which is its first channel as well; on each later one a single question is asked."""

    is_closing = False
    channel_number = 1
    _body_max_length = 1_000
    server_properties = {"version": "3.13.7"}  # noqa: RUF012 - never changed

    def __init__(self, server: FakeRabbit, link: FakeRabbitLink, gate: Gate) -> None:
        self.server, self._link, self._gate = server, link, gate
        self.is_open = True
        self.gone = self.deaf = self.asleep = False
        self.stuck: list[Callable[[], object]] | None = None
        self.heard = 0.0
        self.published = self.delivered = self.epoch = 0
        self._main: Connection | None = None
        self._said: deque[tuple[float, Callable[[], object]]] = deque()
        server.connect(self)

    @property
    def silent(self) -> bool:
        """Whether the broker hears nothing."""
        return self.asleep or self.stuck is not None

    def request(self, name: str, call: Callable[..., object], *args: object) -> None:
        """Send what the broker does by a call of its own."""
        self._gate(f"RabbitLink.{name}", partial(self.server.receive, self, partial(call, *args)))

    def say(self, what: Callable[[], object], late_s: float = 0.0) -> None:
        """Let the broker say something, which comes after all that it said before."""
        self._said.append((self.server.clock() + late_s, what))

    def confirm(self, number: int, late_s: float = 0.0) -> None:
        """Let the broker confirm all messages up to this one."""
        method = SimpleNamespace(delivery_tag=number, multiple=True)
        self.say(lambda: self.confirmed(SimpleNamespace(method=method)), late_s)

    def take(self) -> bool:
        """Take up what the broker said by now."""
        self.asleep = came = False
        while self._said and not self.deaf and self._said[0][0] <= self.server.clock():
            self._said.popleft()[1]()
            came = True
        return came

    def deliver(self, kept: Kept) -> None:
        """Hand a message to the consumer."""
        self.consumer(None, SimpleNamespace(delivery_tag=kept.tag), kept.properties, kept.body)

    def lost(self) -> None:
        """Tell the link that the connection has ended."""
        self.is_open = False
        self._link._end(exceptions.StreamLostError("the connection was lost"))  # as pika calls it

    # pika's names

    def channel(self, *, on_open_callback: Callable[[Any], object]) -> None:
        opened = self if self._main is None else Question(self)
        self._main = self._main or self
        self.request("channel", self.say, partial(on_open_callback, opened))

    def close(self) -> None:
        self.is_open, self.deaf = False, True
        self.request("close", self.server.end, self)

    def _output_marshaled_frames(self, pieces: list[bytes]) -> None:
        for message in messages(b"".join(pieces)):
            self.request("publish", self.server.publish, self, *message)

    def add_on_close_callback(self, callback: object) -> None:
        """A channel alone is never closed here."""

    add_on_cancel_callback = add_on_close_callback

    def add_on_return_callback(self, callback: Callable[..., object]) -> None:
        self.returned = callback

    def confirm_delivery(self, confirmed: Callable[[Any], object], callback: Callable[[Any], object]) -> None:
        self.confirmed = confirmed
        self.request("confirm_delivery", self.say, partial(callback, None))

    def basic_publish(self, exchange: str, key: str, body: bytes, properties: BasicProperties, *, mandatory: bool) -> None:
        assert mandatory
        self.request("publish", self.server.publish, self, exchange, key, properties, body)

    def basic_consume(self, queue: str, callback: Callable[..., object]) -> None:
        assert queue == self.server.position_queue
        self.consumer = callback
        self.request("consume", self.server.consume, self)

    def basic_ack(self, tag: int) -> None:
        self.request("ack", self.server.ack, self, tag)


class Question:
    """A channel on which it is asked whether something is there: it is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add_on_close_callback(self, callback: object) -> None:
        pass

    def close(self) -> None:
        pass

    def queue_declare(self, *_names: str, callback: Callable[[Any], object], **_arguments: object) -> None:
        self._connection.request("declare", self._connection.say, partial(callback, SimpleNamespace(method=None)))

    exchange_declare = queue_declare


class AtOnce:
    """A loop that does what it is given in the thread that gives it."""

    def add_callback_threadsafe(self, callback: Callable[[], object]) -> None:
        callback()

    def stop(self) -> None:
        pass


class FakeRabbitLink(Link):
    """The real link, without a thread and over this broker; `passes` lets time pass."""

    def __init__(
        self, server: FakeRabbit, clock: Callable[[], float], passes: Callable[[float], None], gate: Gate, patience_s: float
    ) -> None:
        super().__init__(parameters_of("amqp://"), "simulated", patience_s, clock)
        self._loop.close()
        self._loop = AtOnce()
        self._server, self._passes, self._gate = server, passes, gate
        self._pika: Connection | None = None
        self._pause_s = FIRST_S

    def open(self, waiting: Waiting) -> None:
        self._gate("RabbitLink.open", lambda: None)
        self._connection = self._pika = Connection(self._server, self, self._gate)
        self._opened(self._pika)
        self.wait(lambda: self._ready, waiting, "connecting", CONNECT_S)

    def pause(self, most_s: float) -> None:
        assert self._pika is not None, "it is open"
        self._server.flush()
        if self._pika.take():
            self._pause_s = FIRST_S
        else:
            self._passes(self._pause_s)
            self._pause_s = min(2 * self._pause_s, MOST_S)

    # what happens to it

    def break_(self) -> None:
        """End: both sides know."""
        if self._pika is not None:
            self._server.end(self._pika)

    def forsake(self) -> None:
        """Sleep: the broker gives the connection up if that takes too long, and nobody tells the client."""
        if self._pika is not None and not self._pika.gone:
            self._pika.asleep, self._pika.heard = True, self._clock()


def messages(sent: bytes) -> Iterator[tuple[str, str, BasicProperties, bytes]]:
    """Yield (exchange, routing key, properties, body) of what a client wrote."""
    while sent:
        frames: list[Any] = []
        size, body = 1, b""
        while len(frames) < 2 or len(body) < size:
            used, read = frame.decode_frame(sent)
            assert read is not None, "whole messages are written"
            sent = sent[used:]
            frames.append(read)
            size = getattr(frames[1], "body_size", 0) if len(frames) > 1 else 1
            body += getattr(read, "fragment", b"")
        method = frames[0].method
        assert isinstance(method, Basic.Publish)
        assert method.mandatory
        yield method.exchange, method.routing_key, frames[1].properties, body
