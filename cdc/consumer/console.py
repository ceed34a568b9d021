"""What people see of a consumer's program that has set up no logging, and the one line with which it ends for their mistake."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cdc.consumer.ports import LOG
from cdc.errors import CdcError, PostgresRefused

UNDEFINED_TABLE: Final = "42P01"

_RELATION = re.compile(r'"([A-Za-z_][\w.]*)"')


@contextmanager
def shown() -> Iterator[None]:
    """Show the consumer's lines on stderr for a while, from INFO on, unless somebody takes them already."""
    if LOG.hasHandlers() or LOG.level != logging.NOTSET:
        yield
        return
    handler = logging.StreamHandler()
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    form.converter = time.gmtime
    handler.setFormatter(form)
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(logging.NOTSET)


def ended(consumer: str, error: Exception) -> int | None:
    """Say in one line why a program ends, and return its exit code; None for what is no person's mistake."""
    if not isinstance(error, CdcError):
        if (why := refusal(error)) is None:
            return None
        error = PostgresRefused(f"consumer {consumer}: PostgreSQL: {why}", "correct postgres= of the consumer, or start the server")
    sys.stderr.write(" ".join(str(error).split()) + "\n")
    return error.exit_code


def refusal(error: BaseException) -> str | None:
    """Return why PostgreSQL cannot be worked with: libpq's words about a connection, which quote nothing; None for another error."""
    from psycopg import Error, OperationalError, ProgrammingError  # noqa: PLC0415 - a consumer without a database needs none

    if isinstance(error, OperationalError) and error.sqlstate is None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith(("\t", "DETAIL:", "HINT:"))]
        return lines[-1] if lines else type(error).__name__
    if isinstance(error, ProgrammingError) and error.sqlstate is None:
        return "postgres is not a connection string that libpq can read"
    if isinstance(error, Error) and error.sqlstate is not None:
        return f"{type(error).__name__}{places(error)}"
    return None


def described(error: BaseException) -> str:
    """Return an error's class, and of PostgreSQL's what may be said."""
    name, why = type(error).__name__, refusal(error)
    return name if why is None else why if why.startswith(name) else f"{name}: {why}"


def places(error: BaseException) -> str:
    """Name the SQLSTATE of an error, and the table, column and constraint that PostgreSQL names beside its words; never a value.

    Of a table that is not there PostgreSQL has no field; its message holds nothing but the name.
    """
    psycopg = sys.modules.get("psycopg")  # where nobody has loaded it, the error is not one of its own
    if psycopg is None or not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return ""
    sqlstate, diag = error.sqlstate, error.diag
    names = {"table": diag.table_name, "column": diag.column_name, "constraint": diag.constraint_name}
    if sqlstate == UNDEFINED_TABLE and (found := _RELATION.search(diag.message_primary or "")):
        names["table"] = found[1]
    return f" sqlstate={sqlstate}" + "".join(f" {kind}={name}" for kind, name in names.items() if name)
