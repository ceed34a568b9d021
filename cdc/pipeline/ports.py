"""The doors between the rooms: all that the pipeline knows of a socket and of Kafka.

A Source and a Publisher live for the whole process and are used by one thread. Each passage through the door calls them in
this order: `Source.look`, `Publisher.peek`, `Source.open`, `Publisher.recover`, `Source.start`, then `receive`, `produce`,
`commit`, `confirm` again and again, and at its end `Publisher.drop` and `Source.drop` (or `Source.finish`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from cdc.event import Place, Record, Route, Seen, Shape
from cdc.position import Lsn, Position
from cdc.postgres.server import Server
from cdc.postgres.transaction import Row, TransactionEnd

Waiting = Callable[[], None]
"""Called every few milliseconds while the owner thread waits for Kafka, so that it can answer PostgreSQL meanwhile."""


class Source(Protocol):
    """The write-ahead log, from our slot on. Every method may raise Retriable, PostgresRefused or ProtocolError."""

    def look(self) -> Server:
        """See the server and the slot without taking anything, on an ordinary connection."""

    def open(self) -> Server:
        """Take the slot (START_REPLICATION at 0/0), then look again; raises SlotBusy while another connection has it.

        Until `start`, what arrives is kept and every status says flush 0/0.
        """

    def start(self, position: Position) -> None:
        """Continuity is proved: skip what is not newer, and confirm from here on."""

    def receive(self, timeout_s: float) -> Sequence[Row | TransactionEnd]:
        """Rows in commit order, each transaction closed by its end; an end without rows is an idle advance.

        Empty when none came in time. Raises Retriable when the link is lost.
        """

    def watch(self) -> Server:
        """Look at the server while streaming from it."""

    def take_ignored(self) -> Mapping[str, int]:
        """Return how many messages of each kind were decoded and not used since the last call."""

    @property
    def urgent(self) -> bool:
        """Whether the server waits for the position: it asked for a reply."""

    def confirm(self, lsn: Lsn) -> None:
        """Kafka has committed everything up to `lsn`: let the slot forget it."""

    def keep_alive(self) -> None:
        """Do what the clock and the server ask for, without handing out rows; never blocks."""

    def finish(self) -> None:
        """Tell the server the last confirmed LSN, see that it heard, and close."""

    def drop(self) -> None:
        """Close at once; safe at any time and more than once."""


class Publisher(Protocol):
    """The transactional producer and the position topic. Every method may raise Retriable, Fenced or SinkRefused."""

    def peek(self) -> tuple[Position | None, str]:
        """Return the last committed position as far as it can be seen without fencing, and the Kafka cluster's id."""

    @property
    def transaction_timeout_s(self) -> float:
        """How long the broker lets a Kafka transaction of this passage stay open (transaction.timeout.ms)."""

    @property
    def full(self) -> bool:
        """Whether a commit is due for the sink's sake: it holds what is produced in memory, and has enough of it."""

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Open the topics that no row can change; raises SinkRefused for one that cannot take records."""

    def last(self) -> Position | None:
        """Return the last position when every transaction that could hide a newer one has ended; fences nobody."""

    def recover(self, waiting: Waiting, *, patient: bool, blaming: bool = False) -> Position | None:
        """Fence older instances, then return the last position that they committed.

        A patient passage takes the longest transaction timeout that the broker allows. A blaming one finds the record that
        the broker refuses: its commit raises Poisoned with the record's place.
        """

    def route(self, topic: str, waiting: Waiting) -> Route:
        """Open a route before its first record; raises InvalidEvent("route", ..) for a topic that cannot take records.

        Answers from its cache until the broker should be asked again. May raise Retriable when the route's limits need
        another producer.
        """

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Hand over records in order; calls `waiting` while the local queue is full."""

    def commit(self, position: Position, waiting: Waiting) -> None:
        """Commit what was produced and the position together, or raise; the outcome is then unknown.

        Calls `waiting` while a helper thread waits for the broker.
        """

    def abort(self, timeout_s: float) -> None:
        """On the way out of the process: abort the Kafka transaction under way, once, so that readers need not wait."""

    def drop(self) -> None:
        """Forget the producer as it is; never blocks, safe at any time and more than once."""


class Positions(Protocol):
    """Where a sink keeps the positions of one pipeline: a topic of Kafka, or what stands in its place."""

    @property
    def topic(self) -> str:
        """What it is called in the sink (the settings' topics.position)."""

    def exists(self, waiting: Waiting) -> bool:
        """Tell whether it is there."""

    def create(self, replication_factor: int, min_insync_replicas: int, waiting: Waiting) -> bool:
        """Make it as it must be; return False when it was there already. A sink without replicas takes no notice of the numbers."""

    def verify(self, waiting: Waiting) -> None:
        """Raise SinkRefused unless it is there, is ours to use, and keeps the last position whatever happens."""


class Sink(Publisher, Protocol):
    """A Publisher as commands use it, beside the pipeline."""

    @property
    def positions(self) -> Positions:
        """Where it keeps positions."""

    @property
    def blocked(self) -> str:
        """Why the sink takes nothing for now, in its own words; empty while it does."""

    @property
    def opened_at(self) -> float | None:
        """When the present transaction of the sink began, by time.monotonic."""

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:
        """Fence older instances, then return the last position that they committed."""

    def cluster_id(self, waiting: Waiting) -> str:
        """Return what tells this sink from others, also where there is no position yet."""

    def close(self) -> None:
        """Let every client go."""


class Reader(Protocol):
    """Reads what a sink shows to consumers. Every method may raise Retriable or SinkRefused."""

    def names(self, waiting: Waiting) -> list[str]:
        """Return the names of all topics."""

    def shapes(self, topics: Sequence[str], waiting: Waiting) -> Mapping[str, Shape]:
        """Return how each of the topics that can be described keeps records."""

    def bounds(self, topics: Sequence[str], waiting: Waiting) -> Mapping[Place, tuple[int, int]]:
        """Return the first offset that is still there and the end of what is committed, for each partition."""

    def read(
        self,
        topics: Sequence[str],
        *,
        since_ms: int | None = None,
        starts: Mapping[Place, int] | None = None,
        follow: bool = False,
        waiting: Waiting = ...,
    ) -> Iterator[Seen]:
        """Yield the committed records of topics, from their beginning, a time or offsets on, in order within each partition.

        Ends where the topics end now, unless it is to follow. `waiting` is called now and then, and may raise to leave.
        """

    def settle(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Wait until all that was written to the topics by now is committed or aborted; raises Retriable when that takes too long."""

    def settled(self, topics: Sequence[str], patience_s: float, waiting: Waiting) -> bool:
        """Wait until all that was written to the topics by now is committed or aborted; return whether it is."""

    def close(self) -> None:
        """Let every client go."""


class Observer(Protocol):
    """Hooks for metrics, health and logs; none may raise or block."""

    def heartbeat(self) -> None:
        """Report that the loop turned, or waits and has looked around."""

    def failed(self, error: Exception) -> None:
        """Report that a passage ended with this error and that another one follows."""

    def state(self, state: str, reason: str) -> None:
        """Report that the supervisor entered a state (see supervisor.State)."""

    def server(self, server: Server, position: Position | None) -> None:
        """Report that the server was looked at."""

    def committed(self, position: Position, events: int, dead_letters: int, seconds: float) -> None:
        """Report a committed Kafka transaction; `seconds` from its first record to the broker's answer."""

    def pending(self, rows: int, oldest_ms: int) -> None:
        """Report what is about to be produced: rows that were read and not committed, and when the oldest one was (Unix ms)."""

    def dead_letter(self, reason: str, event_id: str, sequence: str, what: str, correlation_id: str) -> None:
        """Report a row that was parked; `what` tells place and kind, never the value; `correlation_id` may be empty."""

    def ignored(self, kind: str, count: int) -> None:
        """Report decoded messages that an outbox has no use for (update, delete, truncate, ..)."""

    def published(self, topics: Mapping[str, tuple[int, int]]) -> None:
        """Report what a committed Kafka transaction held: records and bytes by topic."""
