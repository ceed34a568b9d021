"""Runs the steps of a database transaction over a connection, synchronous or not: the two thin halves of what is otherwise one.

Rules.
- A handler that ends the transaction, or swallows a database error, would have its effect without its marker, or neither: after
  each call the transaction must be open and whole. PostgreSQL answers the COMMIT of a failed transaction with a rollback that is
  no error, and psycopg leaves a `psycopg.Rollback` at the block's end without a word. In a pipeline the statements' fate is known at
  its end only, and a failed one fails it there.
- Only the generator's own end is its end: a StopIteration of a handler is that handler's failure.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from cdc.consumer.event import Event
from cdc.consumer.retry import Unprocessable
from cdc.consumer.steps import Ask, Call, Steps, TransactionEnded

if TYPE_CHECKING:
    import psycopg

IDLE, IN_TRANSACTION = 0, 2
"""libpq's PQTRANS_IDLE and PQTRANS_INTRANS: no transaction, and one that is open and whole."""

SWALLOWED: Final = "the handler went on after one of its statements had failed, which rolls its database transaction back"
ENDED: Final = "the handler ended its database transaction"
ROLLED_BACK: Final = "the handler rolled its database transaction back"

Answer = list[tuple[Any, ...]] | Unprocessable | None
"""What a step gets: rows, the handler's offence, or nothing before the first one."""


def _next(steps: Steps, answer: Answer) -> tuple[Ask | Call | None, list[bool]]:
    """Return the next step, or None and what the steps return."""
    try:
        if isinstance(answer, Unprocessable):
            return steps.throw(answer), []
        return (next(steps) if answer is None else steps.send(answer)), []
    except StopIteration as end:
        return None, end.value


def run(steps: Steps, connection: psycopg.Connection[Any] | None, *, pipeline: bool = False) -> list[bool]:
    """Run steps in one transaction of a connection in autocommit; without a connection there are only calls."""
    applied: list[bool] | None = None
    with (
        nullcontext() if connection is None else connection.transaction(),
        connection.pipeline() if connection is not None and pipeline else nullcontext() as queue,
    ):
        answer: Answer = None
        while applied is None:
            step, outcome = _next(steps, answer)
            if step is None:
                if queue is not None:
                    queue.sync()
                applied = outcome
            elif isinstance(step, Call):
                with _context(step):
                    step.unit.handler.call(_argument(step), connection)
                answer = _offence(connection) or [] if queue is None else []
            else:
                assert connection is not None, "questions need a database"
                cursor = connection.execute(step.query.encode(), step.parameters)
                answer = cursor.fetchall() if step.rows else []
    return _committed(applied)


async def run_async(steps: Steps, connection: psycopg.AsyncConnection[Any] | None) -> list[bool]:
    """Do the same with an asynchronous connection."""
    applied: list[bool] | None = None
    async with nullcontext() if connection is None else connection.transaction():
        answer: Answer = None
        while applied is None:
            step, outcome = _next(steps, answer)
            if step is None:
                applied = outcome
            elif isinstance(step, Call):
                await _called(step, connection)
                answer = _offence(connection) or []
            else:
                assert connection is not None, "questions need a database"
                cursor = await connection.execute(step.query.encode(), step.parameters)
                answer = await cursor.fetchall() if step.rows else []
    return _committed(applied)


def _argument(step: Call) -> Event | list[Event]:
    """Return what the handler is called with."""
    return [unit.event for unit in step.units] if step.unit.handler.many else step.unit.event


def _context(step: Call) -> AbstractContextManager[None]:
    """Give what the handler appends to an outbox the event's correlation id and trace; of several events it has to say which one."""
    return nullcontext() if step.unit.handler.many else step.unit.event.context()


async def _called(step: Call, connection: object) -> None:
    try:
        with _context(step):
            await step.unit.handler.call(_argument(step), connection)
    except (SystemExit, KeyboardInterrupt) as error:
        # They would end the event loop, and every other handler with it.
        msg = f"the handler raised {type(error).__name__}"
        raise RuntimeError(msg) from None


def _offence(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None) -> Unprocessable | None:
    """Return what a handler did to its transaction, if it is not as it was."""
    if connection is None or connection.closed or connection.pgconn.transaction_status == IN_TRANSACTION:
        return None
    return TransactionEnded(ENDED) if connection.pgconn.transaction_status == IDLE else Unprocessable(SWALLOWED)


def _committed(applied: list[bool] | None) -> list[bool]:
    """What comes out of the block without an outcome was rolled back by psycopg.Rollback."""
    if applied is None:
        raise Unprocessable(ROLLED_BACK)
    return applied
