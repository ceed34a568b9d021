"""Run one statement on whatever the application has in its hands: psycopg, SQLAlchemy or Django, sync or async.

Strategy: a connection is told by what it can do, so that no library is imported which the application does not use. Whoever
has `run_sync` is SQLAlchemy's async side and lends us its sync one; then the statement is run where the application's own
transaction is. Nothing is committed, rolled back or begun here.

A connection in autocommit is refused unless a transaction is open on it: an event that commits by itself is the dual write
that an outbox is to prevent.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from cdc.errors import NoTransaction

IDLE: Final = 0
"""libpq's PQTRANS_IDLE: no transaction is open."""

UNDEFINED_COLUMN: Final = "42703"
"""PostgreSQL's errcodes."""

PARAMSTYLES: Final = ("format", "pyformat")
"""Drivers that take %s."""


class Statement(NamedTuple):
    """SQL with %s for each of its parameters; `inside` tells that it has to stand in a transaction of the application.

    `more` are the parameters of each further time that it is to run, by the driver's own executemany.
    """

    sql: str
    parameters: tuple[object, ...] = ()
    inside: bool = True
    more: tuple[tuple[object, ...], ...] = ()

    def __repr__(self) -> str:
        times = f", {1 + len(self.more)} times" if self.more else ""
        return f"<Statement {self.sql!r} with {len(self.parameters)} parameters{times}>"


def together(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Make one statement of those in a row that differ in their parameters alone; none overtakes another."""
    for _, run in groupby(statements, lambda statement: statement.sql):
        first, *others = run
        yield first._replace(more=tuple(other.parameters for other in others))


def execute(target: Any, statement: Statement) -> Sequence[Any] | None:  # noqa: ANN401 - see the module
    """Run a statement; return its first row, if it has any. Raises TypeError for an async target."""
    if hasattr(target, "run_sync") or inspect.iscoroutinefunction(getattr(target, "execute", None)):
        msg = f"{type(target).__name__} is asynchronous: await append_async (or look_async) instead"
        raise TypeError(msg)
    if hasattr(target, "get_bind") and callable(getattr(target, "connection", None)):  # SQLAlchemy's Session
        target = target.connection()
    if hasattr(target, "exec_driver_sql"):
        _check_paramstyle(target)
        _check_transaction(target.connection.driver_connection, statement)
        result = target.exec_driver_sql(*_arguments(statement))
        return result.fetchone() if result.returns_rows and not statement.more else None
    if _runs(target, statement):
        _check_transaction(getattr(target, "connection", target), statement)
        result = _run(target, statement)
        return None if statement.more else _first(result, target)
    if hasattr(target, "cursor"):  # Django's connection, and psycopg's for executemany
        with target.cursor() as cursor:
            return execute(cursor, statement)
    raise TypeError(_unknown(target))


async def execute_async(target: Any, statement: Statement) -> Sequence[Any] | None:  # noqa: ANN401 - see the module
    """Do the same on an async target; raises TypeError for one that is not."""
    if hasattr(target, "run_sync"):
        row: Sequence[Any] | None = await target.run_sync(execute, statement)
        return row
    if not inspect.iscoroutinefunction(getattr(target, "execute", None)):
        msg = f"{type(target).__name__} is not asynchronous: call append (or look) instead"
        raise TypeError(msg)
    if not _runs(target, statement):
        async with target.cursor() as cursor:
            return await execute_async(cursor, statement)
    _check_transaction(getattr(target, "connection", target), statement)
    cursor = await _run(target, statement)
    has_rows = not statement.more and cursor.description is not None
    return await cursor.fetchone() if has_rows else None


def undefined_column(error: BaseException) -> str:
    """Return PostgreSQL's sentence on a column that a table does not have, whichever library wraps it; empty for other errors.

    SQLAlchemy keeps the driver's error in `orig`, Django in `__cause__`.
    """
    driver: Any = getattr(error, "orig", None) or error
    if getattr(driver, "sqlstate", None) is None:
        driver = error.__cause__
    return str(driver).split("\n", 1)[0] if getattr(driver, "sqlstate", None) == UNDEFINED_COLUMN else ""


def _runs(target: Any, statement: Statement) -> bool:  # noqa: ANN401 - see the module
    """Whether a target does by itself what the statement needs; if not, it has a cursor that does."""
    return hasattr(target, "executemany" if statement.more else "execute")


def _run(target: Any, statement: Statement) -> Any:  # noqa: ANN401 - see the module
    """Run a statement, or return the coroutine that does."""
    return (target.executemany if statement.more else target.execute)(*_arguments(statement))


def _arguments(statement: Statement) -> tuple[object, ...]:
    if statement.more:
        return statement.sql, [statement.parameters, *statement.more]
    return (statement.sql, statement.parameters) if statement.parameters else (statement.sql,)


def _first(result: Any, target: Any) -> Sequence[Any] | None:  # noqa: ANN401 - see the module
    """Return the first row; psycopg's execute returns the cursor, older interfaces leave the rows in the one that we have."""
    cursor = result if hasattr(result, "fetchone") else target
    return cursor.fetchone() if cursor.description is not None else None


def _check_transaction(connection: Any, statement: Statement) -> None:  # noqa: ANN401 - see the module
    if statement.inside and getattr(connection, "autocommit", False) is True and connection.info.transaction_status == IDLE:
        msg = "the connection is in autocommit and no transaction is open: the event would be committed alone"
        fix = "append inside of the transaction that makes the change: connection.transaction(), session.begin(), transaction.atomic()"
        raise NoTransaction(msg, fix)


def _check_paramstyle(connection: Any) -> None:  # noqa: ANN401 - see the module
    style = connection.dialect.paramstyle
    if connection.dialect.name != "postgresql" or style not in PARAMSTYLES:
        msg = f"the engine is {connection.dialect.name}+{connection.dialect.driver}: the outbox is written with psycopg"
        raise TypeError(msg)


def _unknown(target: object) -> str:
    return f"{type(target).__name__} is no connection, cursor or session of psycopg, SQLAlchemy or Django"
