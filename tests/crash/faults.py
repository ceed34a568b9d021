"""Every kind of fault that is done to the whole: to the process, to PostgreSQL, to Kafka, to the links, and by what is written.

A kind begins a fault, lets it last, and undoes it; the pipeline is not waited for. `Field.heal` undoes whatever is left of
any of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, NamedTuple

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from psycopg import sql

from cdc.audit.judge import Row
from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer
from tests.crash.keeper import Keeper
from tests.crash.storm import KEYS, Storm, insert
from tests.integration.test_slot import taken_away
from tests.pipeline import Pipeline
from tests.proxy import Proxy

PASSWORD, WRONG = "the right one", "the wrong one"

INVALID = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (%s, 'invalid', %s, %s) RETURNING id"

INVALID_ROWS = (("thing", "Thing", '{"n": "x"}'), ("thing", "Nobody", '{"n": 1}'), ("no such topic!", "Thing", '{"n": 1}'))
"""A value, a subject and a route that nobody knows."""

TAKEOVER_S = 60.0
"""For a standby to stream after its predecessor was frozen: the server's timeout, and a start when there was no standby."""

RECOVERED_S = 30.0
"""For PostgreSQL to go over its log after a crash."""

STOP_S = 25.0
"""For SIGTERM: shutdown_grace is 10 s, and the machine is busy."""


@dataclass(frozen=True, slots=True)
class Field:
    """Both servers, the ways to them, and the instances between."""

    pipeline: Pipeline
    keeper: Keeper
    storm: Storm
    chance: Random
    postgres: PostgresServer
    kafka: KafkaBroker
    to_postgres: Proxy
    to_kafka: Proxy
    role: str

    def last(self, least_s: float, most_s: float) -> None:
        """Let a fault last for a time between these."""
        self.keeper.spend(self.chance.uniform(least_s, most_s))

    def terminate(self, condition: str = "pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %(slot)s)") -> None:
        """Terminate server processes; by default the walsender."""
        self.pipeline.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {condition}", self._names)

    @property
    def _names(self) -> Any:  # noqa: ANN401 - parameters of a query
        return {"slot": self.pipeline.slot_name, "role": self.role}

    def postgres_answers(self) -> bool:
        """Whether PostgreSQL takes a statement, over a new connection if need be."""
        try:
            self.pipeline.execute("SELECT 1")
        except psycopg.OperationalError:
            self.pipeline.hang_up()
            return False
        return True

    def alter_role(self, what: str) -> None:
        """Change the pipeline's role."""
        self.pipeline.execute(sql.SQL("ALTER ROLE {} {}").format(sql.Identifier(self.role), sql.SQL(what)).as_string())

    def topic(self, **config: str | None) -> None:
        """Change the configuration of the events' topic; None is its default again."""
        changes = [
            ConfigEntry(
                name.replace("_", "."),
                value or "",
                incremental_operation=AlterConfigOpType.SET if value else AlterConfigOpType.DELETE,
            )
            for name, value in config.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.pipeline.bootstrap, "log_level": 0})
        resource = ConfigResource(ResourceType.TOPIC, self.pipeline.topic, incremental_configs=changes)
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(30)

    def heal(self) -> None:
        """Undo what a fault that failed may have left."""
        self.to_postgres.flow()
        self.to_kafka.flow()
        self.kafka.thaw()
        self.kafka.start()
        self.postgres.start()
        self.pipeline.hang_up()
        self.alter_role(f"REPLICATION PASSWORD '{PASSWORD}'")
        self.topic(max_message_bytes=None)


def kill_one(field: Field) -> None:
    field.keeper.kill([field.keeper.pick()])


def kill_both(field: Field) -> None:
    field.keeper.kill()


def terminate_one(field: Field) -> None:
    field.keeper.allow(0, -signal.SIGTERM)  # the latter while the interpreter starts
    process = field.keeper.signal(field.keeper.pick(), signal.SIGTERM)
    field.keeper.wait(lambda: process.poll() is not None, STOP_S, "it stops when it is asked to")


def zombie(field: Field) -> None:
    """Frozen until another one streams; it wakes up beside its successor."""
    port = field.keeper.pick()
    process = field.keeper.signal(port, signal.SIGSTOP)
    try:
        field.keeper.wait(lambda: field.keeper.streams(but=port), TAKEOVER_S, "the other one takes over")
        field.last(0, 2)
    finally:
        process.send_signal(signal.SIGCONT)


def nap(field: Field) -> None:
    process = field.keeper.signal(field.keeper.pick(), signal.SIGSTOP)
    field.last(0.1, 2.5)
    process.send_signal(signal.SIGCONT)


def walsender_terminated(field: Field) -> None:
    field.terminate()


def connections_terminated(field: Field) -> None:
    field.terminate("usename = %(role)s")


def backend_killed(field: Field) -> None:
    """SIGKILL of one server process: PostgreSQL ends all others and recovers."""
    found = field.pipeline.execute("SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walsender', 'client backend') LIMIT 5")
    os.kill(field.chance.choice(found)[0], signal.SIGKILL)
    field.keeper.wait(lambda: not field.postgres_answers(), RECOVERED_S, "PostgreSQL ends all connections, ours too")
    field.keeper.wait(field.postgres_answers, RECOVERED_S, "PostgreSQL has recovered")


def postgres_restarted(mode: Literal["fast", "immediate"]) -> Callable[[Field], None]:
    def restart(field: Field) -> None:
        field.postgres.stop(mode)
        field.last(0, 3)
        field.postgres.start()
        field.pipeline.hang_up()

    return restart


def postgres_killed(field: Field) -> None:
    field.postgres.kill()
    field.last(0, 2)
    field.postgres.start()
    field.pipeline.hang_up()


def kafka_killed(field: Field) -> None:
    field.kafka.kill()
    field.last(0, 3)
    field.kafka.start()


def kafka_restarted(field: Field) -> None:
    field.kafka.restart()


def kafka_frozen(field: Field) -> None:
    field.kafka.freeze()
    field.last(0.5, 7)
    field.kafka.thaw()


Way = Callable[[Field], Proxy]


def link_cut(way: Way) -> Callable[[Field], None]:
    return _failing(way, Proxy.cut, 0.5, 5)


def link_stalled(way: Way) -> Callable[[Field], None]:
    return _failing(way, Proxy.stall, 0.5, 8)


def link_slowed(way: Way) -> Callable[[Field], None]:
    return _failing(way, lambda proxy: proxy.slow(2_000), 2, 8)


def _failing(way: Way, begin: Callable[[Proxy], None], least_s: float, most_s: float) -> Callable[[Field], None]:
    def fail(field: Field) -> None:
        begin(way(field))
        field.last(least_s, most_s)
        way(field).flow()

    return fail


def link_reset(way: Way) -> Callable[[Field], None]:
    def reset(field: Field) -> None:
        way(field).reset(field.chance.randrange(5_000))
        field.last(0.5, 3)
        way(field).flow()

    return reset


def link_swallowed(way: Way) -> Callable[[Field], None]:
    """What is connected hears nothing any more, and is never told so."""

    def swallow(field: Field) -> None:
        way(field).swallow()

    return swallow


def slot_taken(field: Field) -> None:
    with taken_away(field.pipeline):
        field.last(0.5, 4)


def password_changed(field: Field) -> None:
    field.keeper.allow(3)
    field.alter_role(f"PASSWORD '{WRONG}'")
    field.terminate("usename = %(role)s")
    field.last(0.5, 4)
    field.alter_role(f"PASSWORD '{PASSWORD}'")


def replication_revoked(field: Field) -> None:
    field.keeper.allow(3)
    field.alter_role("NOREPLICATION")
    field.terminate("usename = %(role)s")
    field.last(0.5, 4)
    field.alter_role("REPLICATION")


def limit_lowered(field: Field) -> None:
    """Batches that are too large now, or every record."""
    field.topic(max_message_bytes=field.chance.choice(["600", "8000"]))
    field.last(2, 6)
    field.topic(max_message_bytes=None)


def identity_taken(field: Field) -> None:
    """Somebody uses our transactional.id, once."""
    field.keeper.allow(6)
    Producer({"bootstrap.servers": field.pipeline.bootstrap, "transactional.id": f"cdc-{field.pipeline.name}"}).init_transactions(30)


@contextmanager
def _writer(field: Field, count: int = 3) -> Iterator[psycopg.Connection[Any]]:
    """Give a connection on which so many rows were inserted, and enter them when the block has committed them."""
    with psycopg.connect(field.pipeline.dsn) as connection:
        rows = insert(connection, field.chance, count)
        yield connection
    field.storm.enter(rows)


def invalid_rows(field: Field) -> None:
    """Some that can't become events, between good ones."""
    with psycopg.connect(field.pipeline.dsn) as connection:
        rows = insert(connection, field.chance)
        for route, kind, payload in INVALID_ROWS:
            [(number,)] = connection.execute(INVALID, (route, kind, payload)).fetchall()
            rows.append(Row(str(number).encode(), b"invalid", kind.encode()))
        rows += insert(connection, field.chance)
    field.storm.enter(rows)


def huge_transaction(field: Field) -> None:
    with _writer(field, field.chance.randint(10_000, 40_000)):
        pass


def transaction_left_open(field: Field) -> None:
    with _writer(field):
        field.last(3, 8)


def transaction_prepared(field: Field) -> None:
    """Its session ends; another one commits it."""
    name = f"chaos{field.chance.getrandbits(32)}"
    with psycopg.connect(field.pipeline.dsn) as connection:
        rows = insert(connection, field.chance, 3)
        connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
    field.last(1, 4)
    field.pipeline.execute(f"COMMIT PREPARED '{name}'")
    field.storm.enter(rows)


def table_changed(field: Field) -> None:
    """A column comes and goes, with rows that have it."""
    field.pipeline.execute("ALTER TABLE outbox ADD COLUMN IF NOT EXISTS extra text DEFAULT 'x'")
    with _writer(field, KEYS):
        pass
    field.last(0.5, 2)
    field.pipeline.execute("ALTER TABLE outbox DROP COLUMN IF EXISTS extra")


def to_postgres(field: Field) -> Proxy:
    return field.to_postgres


def to_kafka(field: Field) -> Proxy:
    return field.to_kafka


class Kind(NamedTuple):
    """What is done; `quick` ones are over in a moment, and so is what follows."""

    do: Callable[[Field], None]
    quick: bool = False


KINDS: dict[str, Kind] = {
    "kill": Kind(kill_one, quick=True),
    "kill both": Kind(kill_both),
    "terminate": Kind(terminate_one, quick=True),
    "zombie": Kind(zombie, quick=True),
    "nap": Kind(nap, quick=True),
    "walsender terminated": Kind(walsender_terminated, quick=True),
    "connections terminated": Kind(connections_terminated, quick=True),
    "backend killed": Kind(backend_killed, quick=True),
    "postgres restarted fast": Kind(postgres_restarted("fast")),
    "postgres restarted immediate": Kind(postgres_restarted("immediate")),
    "postgres killed": Kind(postgres_killed),
    "kafka killed": Kind(kafka_killed),
    "kafka restarted": Kind(kafka_restarted),
    "kafka frozen": Kind(kafka_frozen),
    **{
        f"link to {name} {what}": Kind(link(way), quick=what == "reset")
        for name, way in (("postgres", to_postgres), ("kafka", to_kafka))
        for what, link in (
            ("cut", link_cut),
            ("stalled", link_stalled),
            ("slowed", link_slowed),
            ("reset", link_reset),
            ("swallowed", link_swallowed),
        )
    },
    "slot taken": Kind(slot_taken),
    "password changed": Kind(password_changed),
    "replication revoked": Kind(replication_revoked),
    "limit lowered": Kind(limit_lowered),
    "identity taken": Kind(identity_taken),
    "invalid rows": Kind(invalid_rows, quick=True),
    "huge transaction": Kind(huge_transaction),
    "transaction left open": Kind(transaction_left_open),
    "transaction prepared": Kind(transaction_prepared),
    "table changed": Kind(table_changed),
}
"""Some that need more than one machine have tests of their own: clocks, disks, and a broker among three."""
