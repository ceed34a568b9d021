"""The consumer's tables, and what is rarely asked of them: the marker itself is inserted by `steps`, in the handler's transaction.

processed_events     a row for each event and handler: applied
processed_keys       business keys that must not be used again until they expire
consumer_high_water  the highest sequence of each partition, for those who want no row for each event
consumer_attempts    failed attempts of the record at a partition's head, by its offset; below 0 by its event's id
consumer_parked      events that left their partition, by key: later ones are told of them, and they of later ones
consumer_breakers    shared breakers that are open
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, assert_never

from cdc.consumer.event import envelope, key_id, storable
from cdc.consumer.lane import Loaded
from cdc.consumer.shared import Act, Row

if TYPE_CHECKING:
    import psycopg

    from cdc.event import Seen

DDL: Final = """\
CREATE TABLE IF NOT EXISTS processed_events (
    consumer_name text NOT NULL,
    source text NOT NULL,
    event_id text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_name, source, event_id)
);
CREATE INDEX IF NOT EXISTS processed_events_processed_at ON processed_events USING brin (processed_at);
CREATE TABLE IF NOT EXISTS processed_keys (
    consumer_name text NOT NULL,
    business_key text NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (consumer_name, business_key)
);
CREATE TABLE IF NOT EXISTS consumer_high_water (
    consumer_name text NOT NULL,
    source text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    sequence text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_name, source, topic, partition)
);
CREATE TABLE IF NOT EXISTS consumer_attempts (
    consumer_name text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    attempts integer NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_name, topic, partition, "offset")
);
CREATE TABLE IF NOT EXISTS consumer_parked (
    consumer_name text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    key bytea NOT NULL,
    source text NOT NULL,
    event_id text NOT NULL,
    sequence text COLLATE "C" NOT NULL,
    newer_sequence text COLLATE "C" NOT NULL DEFAULT '',
    parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_name, topic, key, source, event_id)
);
CREATE TABLE IF NOT EXISTS consumer_breakers (
    consumer_name text NOT NULL,
    breaker text NOT NULL,
    open_until timestamptz NOT NULL,
    PRIMARY KEY (consumer_name, breaker)
);
"""
"""Safe to run again; `Consumer.create_tables` runs it."""

TABLES: Final = (
    *("processed_events", "processed_events_processed_at", "processed_keys"),
    *("consumer_high_water", "consumer_attempts", "consumer_parked", "consumer_breakers"),
)

LOCK: Final = 0x6364635F
"""Advisory lock of those who create the tables: IF NOT EXISTS alone fails when two do it at once."""

PRUNE_ROWS: Final = 5_000
"""Rows that one statement deletes at most, so that it never holds many locks or much time."""

NOTE: Final = (
    'INSERT INTO consumer_attempts (consumer_name, topic, partition, "offset", attempts) VALUES (%s, %s, %s, %s, %s)'
    ' ON CONFLICT (consumer_name, topic, partition, "offset") DO UPDATE SET attempts = excluded.attempts, failed_at = clock_timestamp()'
)

FORGET: Final = 'DELETE FROM consumer_attempts WHERE consumer_name = %s AND topic = %s AND partition = %s AND "offset" BETWEEN %s AND %s'

PARK: Final = (
    "INSERT INTO consumer_parked (consumer_name, topic, partition, key, source, event_id, sequence)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
)

BREAKER_OPEN: Final = (
    "INSERT INTO consumer_breakers (open_until, consumer_name, breaker) VALUES (clock_timestamp() + make_interval(secs => %s), %s, %s)"
    " ON CONFLICT (consumer_name, breaker) DO UPDATE SET open_until = excluded.open_until"
)

BREAKER_CLAIM: Final = (
    "UPDATE consumer_breakers SET open_until = clock_timestamp() + make_interval(secs => %s)"
    " WHERE consumer_name = %s AND breaker = %s AND open_until <= clock_timestamp()"
)

BREAKER_CLOSE: Final = "DELETE FROM consumer_breakers WHERE consumer_name = %s AND breaker = %s"

BREAKER_LOOK: Final = (
    "SELECT extract(epoch FROM open_until - clock_timestamp())::float8 FROM consumer_breakers WHERE consumer_name = %s AND breaker = %s"
)

PRUNE: Final = (
    "DELETE FROM processed_events WHERE ctid = ANY (ARRAY(SELECT ctid FROM processed_events"
    " WHERE processed_at < clock_timestamp() - %s AND consumer_name = ANY (%s) LIMIT %s))"
)

PRUNE_KEYS: Final = (
    "DELETE FROM processed_keys WHERE ctid = ANY (ARRAY(SELECT ctid FROM processed_keys"
    " WHERE expires_at < clock_timestamp() AND consumer_name = ANY (%s) LIMIT %s))"
)

Connect = Callable[[], "psycopg.Connection[Any]"]


class Store:
    """What is rarely asked of the tables, over one connection in autocommit that is opened again after it broke."""

    def __init__(self, consumer: str, connect: Connect) -> None:
        self._consumer = consumer
        self._connect = connect
        self._connection: psycopg.Connection[Any] | None = None

    def __repr__(self) -> str:
        return f"<Store of {self._consumer}>"

    def close(self) -> None:
        """Hang up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def create_tables(self) -> None:
        """Make what is missing.

        Where all is there nothing is locked: CREATE INDEX IF NOT EXISTS waits for every open transaction with a marker, and all
        later ones behind it.
        """
        connection = self._open()
        [(whole,)] = connection.execute(
            "SELECT count(to_regclass(name)) = %s FROM unnest(%s::text[]) name", (len(TABLES), list(TABLES))
        ).fetchall()
        if whole:
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            connection.execute(DDL.encode())

    def load(self, topic: str, partition: int) -> Loaded:
        """Return what is known of a partition."""
        where = (self._consumer, topic, partition)
        query = 'SELECT "offset", attempts FROM consumer_attempts WHERE consumer_name = %s AND topic = %s AND partition = %s'
        attempts = self._open().execute(query, where).fetchall()
        query = "SELECT key FROM consumer_parked WHERE consumer_name = %s AND topic = %s AND partition = %s"
        keys = self._open().execute(query, where).fetchall()
        return Loaded(dict(attempts), frozenset(bytes(key) for (key,) in keys))

    def note(self, topic: str, partition: int, number: int, attempts: int) -> None:
        """Keep how often a record has failed; 0 forgets it, and what lies before it where the number is an offset."""
        place = (self._consumer, topic, partition)
        if attempts:
            self._open().execute(NOTE, (*place, number, attempts))
        else:
            self._open().execute(FORGET, (*place, min(number, 0), number))

    def park(self, record: Seen) -> None:
        """Write down that a record will leave its partition, before it does."""
        if record.key is None:
            return
        told = envelope(record)
        origin = told.origin
        names = (storable(told.source), storable(told.id))
        self._open().execute(PARK, (self._consumer, origin.topic, origin.partition, key_id(record.key), *names, told.sequence))

    def share(self, breaker: str, act: Act, period_s: float) -> Row:
        """Do something with the row of a shared breaker, and return what it is then."""
        connection, name = self._open(), (self._consumer, breaker)
        granted = False
        match act:
            case Act.OPEN:
                connection.execute(BREAKER_OPEN, (period_s, *name))
            case Act.CLAIM:
                granted = connection.execute(BREAKER_CLAIM, (period_s, *name)).rowcount == 1
            case Act.CLOSE:
                connection.execute(BREAKER_CLOSE, name)
            case Act.LOOK:
                pass
            case _:
                assert_never(act)
        found = connection.execute(BREAKER_LOOK, name).fetchone()
        return Row(None if found is None else found[0], granted)

    def prune(self, markers: Sequence[str], keep: timedelta | None) -> int:
        """Delete what is older than it has to be kept; return how many rows there were, at most PRUNE_ROWS of each table."""
        connection = self._open()
        gone = connection.execute(PRUNE_KEYS, (list(markers), PRUNE_ROWS)).rowcount
        if keep is not None:
            gone += connection.execute(PRUNE, (keep, list(markers), PRUNE_ROWS)).rowcount
        return gone

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self.close()
            self._connection = self._connect()
        return self._connection
