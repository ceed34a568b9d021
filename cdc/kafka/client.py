"""What all Kafka clients share: how they are made, how their errors are read, how they are waited for and let go.

Rules.
- Nobody blocks the owner thread: whatever waits does so in pauses of PAUSE_S and calls `waiting` between them.
- librdkafka's log lines and errors are handed over by `poll`, so whoever waits polls. Its lines name topics, brokers and
  codes, and never a record.
- A client that is let go is destroyed in another thread, because its destructor waits for librdkafka's threads.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from cdc.errors import CdcError, ConfigurationError, KafkaRefused
from cdc.kafka.faults import Code, Fault, Remedy, exception, out_of_reach, remedy
from cdc.kafka.properties import Properties

Waiting = Callable[[], None]
Client = TypeVar("Client")
Answer = TypeVar("Answer")

LOG = logging.getLogger("cdc.kafka")

REPEATED_S = 30.0
"""How often librdkafka may say the same kind of thing; while a broker is away it would say it every second."""


class Seldom(logging.Filter):
    """Lets librdkafka's lines through as warnings at most, and each kind of line once in REPEATED_S.

    What it calls critical, such as a fenced producer, is daily work here: what matters is raised as an exception.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about one line; its first word tells its kind."""
        message = record.getMessage()
        if message.endswith(": retrying") and message.startswith("GETPID"):
            return False  # a step of every fence: the broker is still ending what the older instance left open
        if record.levelno > logging.WARNING:
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        kind, now = message.split(" ", 1)[0], self._clock()
        if now - self._last.get(kind, -REPEATED_S) < REPEATED_S:
            return False
        self._last[kind] = now
        return True


LIBRARY = logging.getLogger("cdc.kafka.librdkafka")
LIBRARY.addFilter(Seldom(time.monotonic))

PAUSE_S = 0.003
"""Longest time without a call of `waiting`; an answer that comes ends the pause at once."""

REQUEST_TIMEOUT_S = 10.0
"""How long an administrative request may take, as long as a socket may be silent."""


class Polled(Protocol):
    """A client whose events are handed over by poll."""

    def poll(self, timeout: float = ...) -> Any:  # noqa: ANN401 - a count or a message, and nobody reads it
        """Hand over what is there."""


UNKNOWN_TO_BROKER = frozenset(
    {Code.AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED, Code.UNSUPPORTED_SASL_MECHANISM, Code.ILLEGAL_SASL_STATE}
)
"""Errors that only a client's event tells, while its requests merely time out: the broker does not know us."""

KEY_FIX = 'see kafka."ssl.key.location" and "ssl.key.password": a key in PEM, the one of "ssl.certificate.location"'
"""What to do about a private key that cannot be read; OpenSSL does not say whether it is the file or its password."""

CALLBACK_S = 0.1
"""How long the callback that brought an answer may take to return."""

MEET_S, MEET_TIMES = 1.0, 10
"""How long a producer waits for a broker that is not just a bootstrap server, and how many answers of the latter it passes over."""

AWAY_S = 2.0
"""How long every broker may be out of reach before a request is given up; it has not been sent to anybody by then."""


SETTLED_S = 0.5
"""How long a producer is left alone that is let go within a Kafka transaction. librdkafka 2.16.0 aborts the process when it is
destroyed just as it tells the coordinator of the first record of a partition: the answer "destroyed" comes in another thread, and
is taken off a count to which the request was not added yet (rd_kafka_txn_handle_AddPartitionsToTxn)."""


TRANSACTION_FAILED = "TXNERR"
"""Facility of librdkafka's log line (rd_kafka_txn_set_abortable_error) after which the Kafka transaction must be aborted."""


class Notes:
    """What a client reported on its own, from whichever thread.

    That is the last error, the last one that gives a reason, a refusal for good, and a doomed Kafka transaction. librdkafka
    tells the latter by a line of its log only. The commit's own answer comes with the end of the transaction timeout, when
    batches of the same partition were on their way behind the one that failed: they wait for a new epoch, which only an abort
    brings, and the commit waits for them.
    """

    def __init__(self) -> None:
        self.last: Fault | None = None
        self.reason: Fault | None = None
        self.refusal: Fault | None = None
        self.doomed: Fault | None = None

    def __call__(self, error: KafkaError) -> None:
        """Take an error event (librdkafka's error_cb)."""
        fault = fault_of(error)
        self.last = fault
        if fault.code != Code.ALL_BROKERS_DOWN:
            self.reason = fault  # that all brokers are down is told beside it, as often
        if fault.code in UNKNOWN_TO_BROKER:
            self.refusal = fault

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Take a line of librdkafka's log, as the client hands it to a logger."""
        LIBRARY.log(level, form, facility, client, text)
        if facility == TRANSACTION_FAILED and self.doomed is None:
            name = text.rpartition("(")[2].rstrip(")")
            self.doomed = Fault(getattr(KafkaError, name, KafkaError.UNKNOWN), name, text.partition("]: ")[2] or text)

    def check(self, doing: str) -> None:
        """Raise KafkaRefused when the broker has refused us for good, such as a wrong password; or what dooms the commit."""
        if self.refusal is not None:
            raise exception(self.refusal, doing, transactional=False)
        if self.doomed is not None:
            raise exception(self.doomed, doing, transactional=True)


def make(kind: Callable[..., Client], properties: Properties, notes: Notes) -> Client:
    """Create a client; a property that librdkafka does not take is a ConfigurationError."""
    try:
        return kind({**properties, "error_cb": notes}, logger=notes)
    except KafkaException as error:
        fault = fault_of(error.args[0])
        msg = f"the kafka table of the settings is not accepted: {fault.text}"
        raise ConfigurationError(msg, KEY_FIX if "ssl.key" in fault.text else "see librdkafka's CONFIGURATION.md") from None


def meet(producer: Producer, topic: str) -> None:
    """Wait until a broker of the cluster has told the producer where `topic` is; whatever fails, the fence will say it better.

    librdkafka lets go of the bootstrap server as soon as that has named the brokers. Was the transaction coordinator not found
    by then, it is looked for half a second later, since no broker is connected yet: every other start took so much longer.
    """
    with contextlib.suppress(KafkaException):
        for _ in range(MEET_TIMES):
            if producer.list_topics(topic, timeout=MEET_S).orig_broker_id >= 0:
                return


def learn(consumer: Consumer, topic: str) -> None:
    """Ask where a topic is before it is assigned to a consumer that is connected already; whatever fails, reading will say it better.

    librdkafka asks by itself only when its timer looks for topics without a leader, once a second (rd_kafka_topic_scan_all).
    """
    with contextlib.suppress(KafkaException):
        consumer.list_topics(topic, timeout=MEET_S)


def fault_of(error: KafkaError) -> Fault:
    """Read an error of the client as values."""
    return Fault(error.code(), error.name(), error.str(), error.fatal(), error.retriable(), error.txn_requires_abort())


def raised(error: KafkaException, doing: str, *, transactional: bool) -> CdcError:
    """Return what to raise for an exception of the client."""
    return exception(fault_of(error.args[0]), doing, transactional=transactional)


def answer(future: Future[Answer], client: Polled, notes: Notes, waiting: Waiting, doing: str) -> Answer:
    """Wait for an administrative request, which ends by its own timeout; its error is raised as KafkaException."""
    began = time.monotonic()
    while True:
        try:
            return future.result(timeout=PAUSE_S)
        except TimeoutError:
            client.poll(0)
            notes.check(doing)
            waiting()
        if notes.last is not None and notes.last.code == Code.ALL_BROKERS_DOWN and time.monotonic() - began >= AWAY_S:
            raise out_of_reach(notes.reason, doing)


def unanswered(fault: Fault, notes: Notes, doing: str) -> CdcError:
    """Return what to raise when a request failed, with the client's own complaint where the answer has none."""
    error = exception(fault, doing, transactional=False)
    if isinstance(error, KafkaRefused) or notes.last is None or fault.code not in {Code.TIMED_OUT, Code.TRANSPORT}:
        return error
    return type(error)(f"{error.what} ({notes.reason or notes.last})", error.fix or out_of_reach(notes.reason, doing).fix)


_retired: queue.SimpleQueue[tuple[float, list[object]]] = queue.SimpleQueue()
_reaper: list[threading.Thread] = []


def usable(messages: list[Message], doing: str) -> list[Message]:
    """Return the records and EOFs among what a consumer gave; raises for what no further try heals."""
    good = []
    for message in messages:
        failure = message.error()
        if failure is None or failure.code() == Code.PARTITION_EOF:
            good.append(message)
            continue
        fault = fault_of(failure)
        ours = fault.code != Code.GROUP_AUTHORIZATION_FAILED
        if ours and remedy(fault, transactional=False) is not Remedy.REPEAT:
            raise exception(fault, doing, transactional=False)
    return good


def retire_after(client: object, asked: Sequence[Future[Any]]) -> None:
    """Let a client go when all that it was asked has been answered, if only by a timeout.

    Its answers are handed over in a thread of its own. Were the client garbage by then (whoever keeps an error keeps the frames
    that it passed through, and the client in them), Python might collect it in that thread, and librdkafka aborts a process
    that destroys a client there.
    """

    def let_go(held: list[object]) -> None:
        wait(asked)
        time.sleep(CALLBACK_S)  # an answer is here a moment before the callback that brought it has returned
        retire(held.pop())

    threading.Thread(target=let_go, args=([client],), name="cdc-kafka-last-answers", daemon=True).start()


def retire(*clients: object, after_s: float = 0.0) -> None:
    """Let clients go without waiting for their destructors, which run no sooner than `after_s`."""
    if not _reaper:
        _reaper.append(threading.Thread(target=_reap, name="cdc-kafka-reaper", daemon=True))
        _reaper[0].start()
    _retired.put((time.monotonic() + after_s, list(clients)))


def _reap() -> None:
    while True:
        due, clients = _retired.get()
        time.sleep(max(0.0, due - time.monotonic()))
        for client in clients:
            close = getattr(client, "unsubscribe", None) and getattr(client, "close", None)
            if close is not None:
                close()
        clients.clear()
        client = None
