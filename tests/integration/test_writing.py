"""Events appended by applications on a real PostgreSQL: psycopg, SQLAlchemy and Django, sync and async, rows and messages."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from cdc import Event, InvalidEvent, Outbox, Pressure, TooBusy, event_context
from cdc.errors import NoTransaction, PostgresRefused
from cdc.outbox import OutboxMapping, append, append_async, append_many, append_many_async, use
from cdc.outbox.table import create_sql
from cdc.postgres import pgoutput
from cdc.postgres.slot import Table
from tests.pipeline import write_schemas
from tests.statistics import told_at_once
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def thing(n: int, **more: Any) -> Event:  # noqa: ANN401 - the fields of Event
    return Event("Thing", "k", {"n": n}, "thing", **more)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writing") / "schemas"
    write_schemas(folder)
    return folder


@pytest.fixture
def connection(database: str, schemas: Path) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database) as opened:
        opened.execute(create_sql(Table("public", "outbox"), OutboxMapping()).encode())
        opened.commit()
        use(Outbox(schemas=schemas))
        yield opened


def rows(connection: psycopg.Connection[Any], *, rollback: bool = True) -> list[tuple[Any, ...]]:
    if rollback:
        connection.rollback()
    return connection.execute(
        "SELECT id, type, payload, schema_version, headers, occurred_at FROM outbox ORDER BY payload->>'n'"
    ).fetchall()


def url_of(dsn: str) -> URL:
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    return URL.create(
        "postgresql+psycopg", parts.get("user"), parts.get("password"), parts.get("host"), int(parts.get("port", 5432)), parts["dbname"]
    )


@contextmanager
def engine(dsn: str, **options: str) -> Iterator[Engine]:
    made = create_engine(url_of(dsn), poolclass=NullPool, **options)
    yield made
    made.dispose()


@contextmanager
def django_connection(dsn: str) -> Iterator[Any]:
    parts = conninfo_to_dict(dsn)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database = {"ENGINE": "django.db.backends.postgresql", **{key: str(parts[part]) for key, part in named.items() if part in parts}}
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    connections["default"] = ConnectionHandler({"default": database})["default"]
    try:
        yield connections["default"]
    finally:
        connections["default"].close()
        del connections["default"]


Events = Event | list[Event]


def put(target: object, events: Events) -> None:
    if isinstance(events, Event):
        append(target, events)
    else:
        append_many(target, events)


async def put_async(target: object, events: Events) -> None:
    if isinstance(events, Event):
        await append_async(target, events)
    else:
        await append_many_async(target, events)


def in_psycopg(dsn: str, events: Events, *, fails: bool) -> None:
    with psycopg.connect(dsn) as opened, opened.transaction(force_rollback=fails):
        put(opened, events)


def in_a_cursor(dsn: str, events: Events, *, fails: bool) -> None:
    with psycopg.connect(dsn, autocommit=True) as opened, opened.transaction(force_rollback=fails), opened.cursor() as cursor:
        put(cursor, events)


def in_a_pipeline(dsn: str, events: Events, *, fails: bool) -> None:
    with psycopg.connect(dsn, autocommit=True) as opened, opened.pipeline(), opened.transaction(force_rollback=fails):
        put(opened, events)


def in_sqlalchemy(dsn: str, events: Events, *, fails: bool) -> None:
    with engine(dsn) as made, made.connect() as opened:
        put(opened, events)
        opened.rollback() if fails else opened.commit()


def in_a_session(dsn: str, events: Events, *, fails: bool) -> None:
    with engine(dsn) as made, Session(made) as session:
        put(session, events)
        session.rollback() if fails else session.commit()


def in_django(dsn: str, events: Events, *, fails: bool) -> None:
    with django_connection(dsn) as opened, transaction.atomic():
        put(opened, events)
        transaction.set_rollback(fails)


def in_a_django_cursor(dsn: str, events: Events, *, fails: bool) -> None:
    with django_connection(dsn) as opened, transaction.atomic(), opened.cursor() as cursor:
        put(cursor, events)
        transaction.set_rollback(fails)


def in_async_psycopg(dsn: str, events: Events, *, fails: bool) -> None:
    async def write() -> None:
        async with (
            await psycopg.AsyncConnection.connect(dsn) as opened,
            opened.transaction(force_rollback=fails),
            opened.cursor() as cursor,
        ):
            await put_async(opened if fails else cursor, events)

    asyncio.run(write())


def in_async_sqlalchemy(dsn: str, events: Events, *, fails: bool) -> None:
    async def write() -> None:
        made = create_async_engine(url_of(dsn), poolclass=NullPool)
        async with made.connect() as opened, AsyncSession(opened) as session:
            await put_async(opened if fails else session, events)
            await (opened.rollback() if fails else session.commit())
            if not fails:
                await opened.commit()
        await made.dispose()

    asyncio.run(write())


WAYS = (
    in_psycopg, in_a_cursor, in_a_pipeline, in_sqlalchemy, in_a_session, in_django, in_a_django_cursor,
    in_async_psycopg, in_async_sqlalchemy,
)  # fmt: skip


def test_an_event_stays_if_and_only_if_the_transaction_does_whatever_the_library(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    stayed = []
    for number, way in enumerate(WAYS):
        event = thing(number)
        with event_context(correlation_id=way.__name__, traceparent=TRACE):
            way(database, thing(100 + number), fails=True)
            way(database, event, fails=False)
        stayed.append((event.id, "Thing", {"n": number}, 1, {"correlationid": way.__name__, "traceparent": TRACE}))
    assert [row[:-1] for row in rows(connection)] == stayed


def test_a_list_is_written_in_its_order_or_not_at_all_whatever_the_library(
    database: str, connection: psycopg.Connection[Any], schemas: Path
) -> None:
    connection.execute("CREATE PUBLICATION nothing")
    connection.commit()
    connection.execute("SELECT pg_create_logical_replication_slot('lists', 'pgoutput', true)")
    connection.commit()
    rows_of, messages = Outbox(schemas=schemas), Outbox(schemas=schemas, mapping=OutboxMapping(message_prefix="out"))
    wanted = []
    for number, way in enumerate(WAYS):
        events = [thing(10 * number + n, headers={"odd": "yes"} if n == 3 else {}) for n in range(5)]
        for outbox in (rows_of, messages):
            use(outbox)
            way(database, [thing(1000), thing(1001)], fails=True)
            way(database, events, fails=False)
        wanted += [(event.id, event.payload, event.headers or None) for event in events]
    connection.rollback()
    assert connection.execute("SELECT id, payload, headers FROM outbox ORDER BY ctid").fetchall() == wanted
    options = "'proto_version', '1', 'publication_names', 'nothing', 'messages', 'true'"
    changes = connection.execute(f"SELECT data FROM pg_logical_slot_get_binary_changes('lists', NULL, NULL, {options})".encode()).fetchall()
    contents = [json.loads(each.content) for each in (pgoutput.decode(data) for (data,) in changes) if isinstance(each, pgoutput.Message)]
    assert [(uuid.UUID(each["id"]), each["payload"], each.get("headers")) for each in contents] == wanted


def test_a_list_with_an_event_that_could_not_be_published_says_which_and_writes_none(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    def things(*numbers: object) -> Iterator[Event]:
        for n in numbers:
            with event_context(correlation_id=f"request {n}"):
                yield Event("Thing", "k", {"n": n}, "thing")

    with pytest.raises(InvalidEvent, match=r"^events\[3\]: Thing/1 \$\.n: expected long, came a text") as refused:
        append_many(connection, things(0, 1, 2, "canary", 4))
    assert refused.value.reason == "schema"
    assert "canary" not in str(refused.value)
    assert append_many(connection, [thing(7)])[0].headers == {}, "and the generator's context has ended"
    assert append_many(connection, []) == []
    assert connection.execute("SELECT payload, headers FROM outbox").fetchall() == [({"n": 7}, None)], "the transaction is as it was"
    connection.rollback()
    with psycopg.connect(database, autocommit=True) as alone, pytest.raises(NoTransaction, match="committed alone"):
        append_many(alone, [thing(1), thing(2)])
    append_many(connection, things(1, 2))
    append(connection, thing(3))
    assert [row[4] for row in rows(connection, rollback=False)] == [
        {"correlationid": "request 1"},
        {"correlationid": "request 2"},
        None,
    ]


def test_an_event_that_could_not_be_published_fails_where_it_is_written(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(InvalidEvent, match=r"Thing/1 \$\.n: expected long, came a text") as refused:
        append(connection, Event("Thing", "k", {"n": "canary"}, "thing"))
    assert refused.value.reason == "schema"
    assert "canary" not in str(refused.value)
    assert rows(connection) == [], "and the transaction is as it was"


def test_an_event_that_would_commit_alone_is_refused(database: str, connection: psycopg.Connection[Any]) -> None:
    with psycopg.connect(database, autocommit=True) as alone, pytest.raises(NoTransaction, match="committed alone"):
        append(alone, thing(1))
    with (
        engine(database, isolation_level="AUTOCOMMIT") as made,
        made.connect() as opened,
        pytest.raises(NoTransaction, match="committed alone"),
    ):
        append(opened, thing(1))
    with django_connection(database) as opened, pytest.raises(NoTransaction, match="committed alone"):
        append(opened, thing(1))
    assert rows(connection) == []


def test_async_and_sync_are_not_mistaken_for_each_other(database: str, connection: psycopg.Connection[Any]) -> None:
    async def write() -> None:
        async with await psycopg.AsyncConnection.connect(database) as opened:
            with pytest.raises(TypeError, match="await append_async"):
                append(opened, thing(1))
        with pytest.raises(TypeError, match="call append"):
            await append_async(connection, thing(1))
        made = create_async_engine(url_of(database), poolclass=NullPool)
        async with made.connect() as opened:
            with pytest.raises(TypeError, match="await append_async"):
                append(opened, thing(1))
        await made.dispose()

    asyncio.run(write())
    with pytest.raises(TypeError, match="no connection"):
        append(object(), thing(1))
    assert rows(connection) == []


def test_a_transaction_that_is_tried_again_writes_the_same_event(connection: psycopg.Connection[Any]) -> None:
    event = thing(1)
    append(connection, event)
    connection.rollback()
    append(connection, event)
    connection.commit()
    with pytest.raises(psycopg.errors.UniqueViolation):
        append(connection, event)
    [row] = rows(connection)
    assert row[0] == event.id
    assert isinstance(event.id, uuid.UUID)
    assert event.id.version == 7


def test_only_what_is_said_is_written_and_columns_keep_their_defaults(connection: psycopg.Connection[Any]) -> None:
    append(connection, thing(1))
    append(connection, thing(2, occurred_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), headers={"tenant": "a"}))
    append(connection, Event("Thing", "k", None, "thing"))
    connection.commit()
    first, second, tombstone = rows(connection)
    assert first[4] is None
    assert abs((datetime.now(UTC) - first[5]).total_seconds()) < 3600
    assert second[4:] == ({"tenant": "a"}, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert tombstone[2:4] == (None, None)


def test_a_table_with_other_names_and_columns(connection: psycopg.Connection[Any], schemas: Path) -> None:
    connection.execute(
        """CREATE TABLE "We%ird" ("Id" text, kind text, "key" text, body json, trace text, "to" text, place text, extra text DEFAULT 'x')"""
    )
    columns = {
        "id": "Id",
        "type": "kind",
        "aggregateid": "key",
        "payload": "body",
        "traceparent": "trace",
        "topic": "to",
        "partition": "place",
    }
    mapping = OutboxMapping(columns=columns, route="things")
    outbox = Outbox(schemas=schemas, table="public.We%ird", mapping=mapping, lacks=("schema_version", "headers"))
    with event_context(correlation_id="has no place", traceparent=TRACE):
        written = outbox.append(connection, Event("Thing", "k", {"n": 1}, topic="elsewhere", partition=3))
    assert connection.execute(b'SELECT * FROM "We%ird"').fetchall() == [
        (str(written.id), "Thing", "k", {"n": 1}, TRACE, "elsewhere", "3", "x")
    ]


def test_a_column_that_the_table_lacks_is_named_with_what_to_do(database: str, schemas: Path) -> None:
    with psycopg.connect(database, autocommit=True) as opened:
        opened.execute("CREATE TABLE bare (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb)")
    use(Outbox(schemas=schemas, table="bare"))
    ways = (in_psycopg, in_a_session, in_django, in_async_psycopg, in_async_sqlalchemy)
    for way in ways:
        with pytest.raises(PostgresRefused, match=r"table public\.bare has no column 'schema_version'") as refused:
            way(database, thing(1), fails=False)
        assert 'lacks=("schema_version",)' in refused.value.fix
        assert refused.value.__cause__ is not None, "the driver's own error is kept"
    use(Outbox(schemas=schemas, table="bare", lacks=("schema_version",)))
    with pytest.raises(PostgresRefused, match="no column 'headers'"):
        in_psycopg(database, thing(1, headers={"tenant": "a"}), fails=False)
    with pytest.raises(PostgresRefused, match=r"no column 'occurred_at'.*outbox\.columns"):
        in_psycopg(database, thing(1, occurred_at=datetime(2026, 1, 2, tzinfo=UTC)), fails=False)
    use(Outbox(schemas=schemas, table="bare", lacks=("schema_version", "headers")))
    in_psycopg(database, thing(1, schema_version=1), fails=False)
    with psycopg.connect(database) as opened:
        assert opened.execute("SELECT count(*) FROM bare").fetchone() == (1,)


def test_avro_payloads_and_paths_into_the_payload(connection: psycopg.Connection[Any], schemas: Path) -> None:
    connection.execute("CREATE TABLE bytes (id uuid, aggregateid text, type text, payload bytea)")
    encoded = Outbox(schemas=schemas, table="bytes", mapping=OutboxMapping(payload="avro", route="t"), lacks=("schema_version", "headers"))
    encoded.append(connection, Event("Thing", "k", {"n": 1}))
    assert connection.execute("SELECT payload FROM bytes").fetchone() == (b"\0\0\0\0\1\2\0",)
    connection.execute("CREATE TABLE paths (id uuid, type text, payload jsonb)")
    mapping = OutboxMapping(columns={"aggregateid": "payload.text"}, route="t")
    paths = Outbox(schemas=schemas, table="paths", mapping=mapping, lacks=("schema_version", "headers"))
    paths.append(connection, Event("Thing", "k", {"n": 1, "text": "k"}))
    assert connection.execute("SELECT payload FROM paths").fetchall() == [({"n": 1, "text": "k"},)]
    with pytest.raises(InvalidEvent, match="aggregateid is not the one"):
        paths.append(connection, Event("Thing", "k", {"n": 1, "text": "other"}))


def test_field_case_45_a_nul_character_fails_where_it_is_written_or_is_carried(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.UntranslatableCharacter):
        append(connection, Event("Thing", "k", {"n": 1, "text": "a\0b"}, "thing"))
    connection.rollback()
    connection.execute("ALTER TABLE outbox ALTER payload TYPE json")
    append(connection, Event("Thing", "k", {"n": 1, "text": "a\0b"}, "thing"))
    assert connection.execute("SELECT payload FROM outbox").fetchall() == [({"n": 1, "text": "a\0b"},)]


def test_field_case_128_two_writers_with_one_event_at_once_write_it_once(database: str, connection: psycopg.Connection[Any]) -> None:
    event, together = thing(1), threading.Barrier(2)

    def write(_: int) -> bool:
        with psycopg.connect(database) as opened:
            together.wait()
            try:
                append(opened, event)
            except psycopg.errors.UniqueViolation:
                return False
            return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(write, range(2))) == [False, True]
    assert [row[0] for row in rows(connection)] == [event.id]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_pressure_is_looked_at_through_the_applications_own_connection(
    database: str, connection: psycopg.Connection[Any], way: str
) -> None:
    pressure = Pressure("no_such_slot", "public.outbox", max_age_s=0, max_pending_rows=0, every_s=0)

    async def look_async() -> TooBusy | None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True, row_factory=dict_row) as opened:
            return await pressure.look_async(opened)

    def look() -> TooBusy | None:
        if way == "async":
            return asyncio.run(look_async())
        with engine(database) as made, made.connect() as opened, django_connection(database) as other:
            pressure.look(opened)
            return pressure.look(other)

    assert look() is None
    append(connection, thing(1))
    connection.commit()

    def looked() -> TooBusy | None:
        told_at_once(connection)
        return look()

    busy = wait_for(looked, what="the statistics tell of a row")
    assert busy is not None
    assert busy.backlog.pending_rows == 1
    assert "wait to be published" in busy.reason
