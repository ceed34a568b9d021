"""One connection to RabbitMQ with one channel in confirm mode, driven by a thread of its own; a passage has one link.

Strategy: pika's loop runs in the thread, so heartbeats are answered while the owner does something else. The owner hands
over messages in order, and waits for their confirms in bulk; what the broker says lies in fields that the thread writes and
the owner reads.

Rules.
- Nobody blocks the owner: it waits in pauses of PAUSE_S and calls `waiting` between them.
- A link is never used again after an error: the next passage makes another one.
- A time-out counts from the last sign of progress, and does not run while the broker has said that it takes nothing for
  now (connection.blocked: a memory or disk alarm): what was sent waits there, and to send it again would double it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import pika
from pika.adapters.select_connection import IOLoop
from pika.spec import Basic

from cdc.errors import CdcError, ConfigurationError, Retriable
from cdc.rabbitmq.faults import raised
from cdc.rabbitmq.subscription import Subscription

LOG = logging.getLogger("cdc.rabbitmq")
logging.getLogger("pika").setLevel(logging.CRITICAL)  # what matters in it is raised

Waiting = Callable[[], None]
Item = TypeVar("Item")
Deliver = Callable[[Any, Any, bytes], object]
"""Takes a delivery: method, properties and body, as pika has them."""

PAUSE_S = 0.003
"""Longest time without a call of `waiting`; an answer that comes ends the pause at once."""

CONNECT_S = 10.0
"""How long connecting, or one question to the broker, may take."""

HEARTBEAT_S = 10
"""After two of them without a word the broker takes us for dead, and another instance may have the lease."""


WRITE_BYTES = 64 * 1024
"""Bytes that are joined for one write: what the socket does not take of a piece at once is copied."""


class Message(NamedTuple):
    """What is published; `exchange` is empty for a queue by its name."""

    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties


QUESTION = Message("", "cdc.question", b"", pika.BasicProperties())
"""A message for a queue that nobody has; it comes back, and is confirmed, when the broker takes messages."""


class Delivery(NamedTuple):
    """A message that the broker delivered to our one consumer."""

    tag: int
    message_id: str
    body: bytes


class Link:
    """A connection, its channel and its thread."""

    def __init__(self, parameters: pika.connection.Parameters, name: str, patience_s: float, clock: Callable[[], float]) -> None:
        self._parameters = parameters
        self._patience_s = patience_s
        self._clock = clock
        self._loop = IOLoop()
        self._changed = threading.Event()
        self._failure: BaseException | None = None
        self._connection: pika.SelectConnection | None = None
        self._channel: Any = None
        self._ready = False
        self._tag = self._handed = self._settled = self._bytes = 0
        self._unconfirmed: OrderedDict[int, int] = OrderedDict()
        self.blocked = ""
        self.returned: list[tuple[str, str, str]] = []
        self.on_delivery: Callable[[Delivery], None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"cdc-rabbitmq-{name}", daemon=True)

    def __repr__(self) -> str:
        state = "failed" if self.failed else f"blocked ({self.blocked})" if self.blocked else "open" if self._ready else "opening"
        return f"<Link {state}, {self.outstanding} messages unconfirmed>"

    @property
    def failed(self) -> bool:
        """Whether it cannot be used any more."""
        return self._failure is not None

    @property
    def virtual_host(self) -> str:
        """Where on the broker we are."""
        return str(self._parameters.virtual_host)

    @property
    def version(self) -> str:
        """The broker's version."""
        return "" if self._connection is None else str((self._connection.server_properties or {}).get("version", ""))

    @property
    def outstanding(self) -> int:
        """Messages that were handed over and not confirmed yet."""
        return self._handed - self._settled

    @property
    def outstanding_bytes(self) -> int:
        """Bytes that were sent and not confirmed yet."""
        return self._bytes

    def open(self, waiting: Waiting) -> None:
        """Connect; raises Retriable or SinkRefused."""
        self._thread.start()
        self.wait(lambda: self._ready, waiting, f"connecting to {self._parameters.host}:{self._parameters.port}", CONNECT_S)

    def publish(self, items: Sequence[Item], make: Callable[[Item], Message]) -> None:
        """Hand over what `make` makes messages of, in order; it is called in the link's thread."""
        self._handed += len(items)
        self.do(lambda: self._publish(map(make, items)))

    def question(self) -> None:
        """Publish what no queue takes, and what is confirmed when the broker takes messages.

        Twice, because in an alarm it takes the first message of a connection before it blocks that.
        """
        self.publish([QUESTION, QUESTION], lambda message: message)

    def send(self, items: Sequence[Item], frames: Callable[[Item], bytes]) -> None:
        """Hand over what `frames` makes whole messages of, as bytes; it is called in the link's thread."""
        self._handed += len(items)
        self.do(lambda: self._send(items, frames))

    def framed(self) -> tuple[int, int]:
        """Return the number of our channel, and the bytes of a body that one frame takes."""
        assert self._connection is not None, "it is open"
        return int(self._channel.channel_number), int(self._connection._body_max_length)  # noqa: SLF001 - as negotiated

    def consume(self, queue: str, on_delivery: Callable[[Delivery], None]) -> None:
        """Subscribe to a queue; `on_delivery` is called in the link's thread, and acknowledges by `ack`."""
        self.on_delivery = on_delivery
        self.do(lambda: self._channel.basic_consume(queue, self._delivered))

    def subscribe(self, queue: str, prefetch: int, deliver: Deliver, arguments: dict[str, object] | None = None) -> Subscription:
        """Consume a queue on a channel of its own; `deliver` is called in the link's thread. What ends the channel ends the link."""
        made = Subscription(self.do, queue)

        def opened(channel: Any) -> None:  # noqa: ANN401 - pika has no types
            made.channel = channel
            channel.add_on_close_callback(lambda _, reason: None if made.ended else self._fail(reason))
            channel.add_on_cancel_callback(lambda _: self._fail(Retriable(f"RabbitMQ took our consumer away: queue {queue!r} is gone")))
            channel.basic_qos(prefetch_count=prefetch, callback=lambda _: consume(channel))

        def consume(channel: Any) -> None:  # noqa: ANN401 - pika has no types
            channel.basic_consume(
                queue, lambda _, method, properties, body: deliver(method, properties, body), arguments=arguments, callback=consuming
            )

        def consuming(_: object) -> None:
            made.ready = True
            self._changed.set()

        self.do(lambda: self._connection and self._connection.channel(on_open_callback=opened))
        return made

    def ack(self, tag: int) -> None:
        """Acknowledge one delivery; in the link's thread."""
        self._channel.basic_ack(tag)

    def ask(self, question: Callable[[Any, Callable[[Any], None]], object], waiting: Waiting, doing: str) -> object:
        """Ask on a channel of its own, which the broker closes for a no; returns the method of the answer."""
        answers: list[Any] = []

        def answered(answer: object) -> None:
            answers.append(answer)
            self._changed.set()

        def opened(channel: Any) -> None:  # noqa: ANN401 - pika has no types
            def done(frame: Any) -> None:  # noqa: ANN401 - the same
                answered(frame.method)
                channel.close()

            channel.add_on_close_callback(lambda _, reason: answered(reason))
            question(channel, done)

        self.do(lambda: self._connection and self._connection.channel(on_open_callback=opened))
        self.wait(lambda: bool(answers), waiting, doing, CONNECT_S)
        if isinstance(answers[0], BaseException):
            raise raised(answers[0], doing)
        return answers[0]

    def wake(self) -> None:
        """End a pause of the owner; in the link's thread."""
        self._changed.set()

    def pause(self, most_s: float) -> None:
        """Wait until something has come, for so long at most."""
        self._changed.wait(most_s)
        self._changed.clear()

    def wait(self, done: Callable[[], bool], waiting: Waiting, doing: str, patience_s: float | None = None) -> None:
        """Return when `done` holds; raises what the broker said, or Retriable when nothing moves for `patience_s`."""
        patience_s = self._patience_s if patience_s is None else patience_s
        seen, since = self._settled, self._clock()
        while not done():
            if self._failure is not None:
                raise self.failure(doing)
            self.pause(PAUSE_S)
            waiting()
            if self.blocked or self._settled != seen:
                seen, since = self._settled, self._clock()
            elif self._clock() - since >= patience_s:
                self._failure = TimeoutError()
                msg = f"RabbitMQ gave no answer within {patience_s:.0f} s while {doing}"
                raise Retriable(msg)
        if self._failure is not None:
            raise self.failure(doing)

    def close(self) -> None:
        """Let the broker know that we go; never blocks."""
        self._failure = self._failure or ConnectionAbortedError("closed by us")
        self.do(self._leave)

    def join(self, most_s: float) -> None:
        """Wait until a link that was closed has ended, for so long at most."""
        self._thread.join(most_s)

    def failure(self, doing: str) -> CdcError:
        """Return what ended it."""
        failure = self._failure
        assert failure is not None
        return failure if isinstance(failure, CdcError) else raised(failure, doing, publishing=self._ready)

    # In the link's thread.

    def _run(self) -> None:
        try:
            self._connection = pika.SelectConnection(
                self._parameters,
                on_open_callback=self._opened,
                on_open_error_callback=lambda _, error: self._end(error),
                on_close_callback=lambda _, reason: self._end(reason),
                custom_ioloop=self._loop,
            )
            self._connection.add_on_connection_blocked_callback(self._on_blocked)
            self._connection.add_on_connection_unblocked_callback(self._on_unblocked)
            self._loop.start()
        except Exception as error:  # noqa: BLE001 - handed to the owner, who raises it
            self._fail(error)
        finally:
            self._loop.close()

    def do(self, function: Callable[[], object]) -> None:
        """Run a function in the link's thread."""

        def guarded() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - handed to the owner, who raises it
                self._fail(error)

        self._loop.add_callback_threadsafe(guarded)

    def _opened(self, connection: Any) -> None:  # noqa: ANN401 - pika has no types
        if self._failure is not None:  # closed meanwhile
            connection.close()
        else:
            connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:  # noqa: ANN401 - pika has no types
        self._channel = channel
        channel.add_on_close_callback(lambda _, reason: self._fail(reason))
        channel.add_on_return_callback(self._on_return)
        channel.add_on_cancel_callback(lambda _: self._fail(Retriable("RabbitMQ took our consumer away: its queue was deleted or moved")))
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._become_ready())

    def _become_ready(self) -> None:
        self._ready = True
        self._changed.set()

    def _publish(self, messages: Iterable[Message]) -> None:
        publish, unconfirmed = self._channel.basic_publish, self._unconfirmed
        for exchange, routing_key, body, properties in messages:
            publish(exchange, routing_key, body, properties, mandatory=True)
            self._tag += 1
            unconfirmed[self._tag] = len(body)
            self._bytes += len(body)

    def _send(self, items: Sequence[Item], frames: Callable[[Item], bytes]) -> None:
        unconfirmed, pieces, size = self._unconfirmed, [], 0
        for item in items:
            message = frames(item)
            self._tag += 1
            unconfirmed[self._tag] = len(message)
            size += len(message)
            pieces.append(message)
            if size >= WRITE_BYTES:
                self._write(pieces, size)
                pieces, size = [], 0
        if pieces:
            self._write(pieces, size)

    def _write(self, pieces: list[bytes], size: int) -> None:
        assert self._connection is not None, "it is open"
        self._bytes += size
        # What basic_publish ends in; pika has no other way for frames that are made already.
        self._connection._output_marshaled_frames([b"".join(pieces)])  # noqa: SLF001

    def _confirmed(self, frame: Any) -> None:  # noqa: ANN401 - pika has no types
        method, unconfirmed = frame.method, self._unconfirmed
        if isinstance(method, Basic.Nack):
            self._fail(Retriable("RabbitMQ could not take a message (basic.nack): a queue is full and rejects, or has no leader"))
            return
        tags = [tag for tag in (method.delivery_tag,) if tag in unconfirmed]
        if method.multiple:
            tags = []
            for tag in unconfirmed:
                if tag > method.delivery_tag:
                    break
                tags.append(tag)
        for tag in tags:
            self._bytes -= unconfirmed.pop(tag)
        self._settled += len(tags)
        if not unconfirmed:  # a commit waits for that; whoever waits for room looks every PAUSE_S, which costs less than each confirm
            self._changed.set()

    def _delivered(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:  # noqa: ANN401 - pika has no types
        if self.on_delivery is not None:
            self.on_delivery(Delivery(method.delivery_tag, properties.message_id or "", body))
        self._changed.set()

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:  # noqa: ANN401 - pika has no types
        self.returned.append((method.exchange, method.routing_key, method.reply_text))

    def _on_blocked(self, _connection: Any, frame: Any) -> None:  # noqa: ANN401 - pika has no types
        self.blocked = str(frame.method.reason) or "no reason given"
        LOG.warning("RabbitMQ takes no messages for now: %s", self.blocked)
        self._changed.set()

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:  # noqa: ANN401 - pika has no types
        self.blocked = ""
        LOG.warning("RabbitMQ takes messages again")
        self._changed.set()

    def _leave(self) -> None:
        connection = self._connection
        if connection is not None and connection.is_open:
            # Closing, pika would cancel the consumer first: for a moment the lease would be free, and the position not there yet.
            getattr(self._channel, "_consumers", {}).clear()
            connection.close()
        elif connection is None or connection.is_closed:
            self._loop.stop()
        # While it opens, stopping would leave its socket: `_opened` closes it, or pika's time for opening is over.

    def _end(self, reason: BaseException) -> None:
        self._fail(reason)
        self._loop.stop()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.set()


def new_link(url: str, name: str, patience_s: float, clock: Callable[[], float] = time.monotonic) -> Link:
    """Return a link to where a URL leads."""
    parameters = parameters_of(url)
    parameters.client_properties = {"connection_name": f"cdc-{name}"}
    return Link(parameters, name, patience_s, clock)


def parameters_of(url: str) -> Any:  # noqa: ANN401 - pika has no types
    """Return how a URL is connected to; raises ConfigurationError for one that cannot be read."""
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, LookupError):  # whose words may hold parts of it
        fix = "write amqp://user:password@host:5672/vhost, with %2F for a slash in a name or a password"
        raise ConfigurationError("rabbitmq.url cannot be read", fix) from None
    if parameters.heartbeat is None:
        parameters.heartbeat = HEARTBEAT_S
    parameters.connection_attempts = 1
    return parameters
