"""Connect to PostgreSQL with every setting that shapes text pinned, and tell its errors apart by remedy.

DateStyle, TimeZone, client_encoding and the like may be set for the role or the database; the text form of every column
depends on them, so each connection sets its own. wal_sender_timeout is a user setting (PostgreSQL manual, "Replication"):
ours depends on our status interval and not on the server's configuration, and with it the time of a takeover.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.errors import CdcError, ConfigurationError, PostgresRefused, Retriable

CONNECT_TIMEOUT_S = 10
"""A server that does not answer within this time is down for us; the next passage tries again."""

TEXT_SETTINGS = {
    "datestyle": "ISO",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""What the text form of a column depends on, and the time-outs that a role may have been given for its queries."""


Connection = psycopg.Connection[tuple[Any, ...]]


def connect(dsn: str, application_name: str, kind: type[Connection] = psycopg.Connection) -> Connection:
    """Open an ordinary connection in autocommit; raises PostgresRefused or Retriable."""
    return _connect(dsn, application_name, TEXT_SETTINGS, kind)


def connect_replication(dsn: str, application_name: str, wal_sender_timeout_s: float) -> Connection:
    """Open a logical replication connection; raises PostgresRefused or Retriable."""
    settings = TEXT_SETTINGS | {"wal_sender_timeout": f"{round(wal_sender_timeout_s * 1000)}ms"}
    return _connect(dsn, application_name, settings, psycopg.Connection, replication="database")


def _connect(dsn: str, application_name: str, settings: dict[str, str], kind: type[Connection], **extra: str) -> Connection:
    try:
        own = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        msg = "postgres.dsn is not a connection string that libpq can read"
        raise ConfigurationError(msg, "write it as postgresql://user@host:port/database") from error
    options = " ".join([str(own.pop("options", "") or ""), *(f"-c {name}={value}" for name, value in settings.items())])
    own.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    own.setdefault("tcp_user_timeout", CONNECT_TIMEOUT_S * 1000)
    for pinned in ("client_encoding", "application_name", "replication"):
        own.pop(pinned, None)
    conninfo = make_conninfo(
        "",
        **{key: str(value) for key, value in own.items()},
        **extra,
        options=options.strip(),
        client_encoding="UTF8",
        application_name=application_name,
    )
    with remedies("connecting"):
        return kind.connect(conninfo, autocommit=True)


@contextmanager
def remedies(doing: str) -> Iterator[None]:
    """Turn psycopg's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise remedy(error.sqlstate, _text(error), doing) from error


def result_error(result: pq.abc.PGresult, doing: str) -> CdcError:
    """Turn an error result of the pq layer into ours."""
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
    primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    return remedy(sqlstate.decode() if sqlstate else None, (primary or b"no reason given").decode(errors="replace"), doing)


REFUSALS = {
    "28P01": "correct the user or the password in postgres.dsn",
    "28000": "correct the user or sslmode in postgres.dsn, or allow the connection in pg_hba.conf",
    "3D000": "correct the database in postgres.dsn",
    "42501": "grant it: `cdc init --sql` prints what the role needs",
    "42704": "run `cdc init`",
    "42P01": "correct outbox.table, or create it with `cdc init --create-table`",
    "0A000": "use PostgreSQL 14 or newer",
}
"""SQLSTATE of what no waiting heals -> what to do (PostgreSQL manual, appendix A)."""

_CONNECTING = (
    ('role "', "does not exist", "28000"),
    ('database "', "does not exist", "3D000"),
    ("password authentication failed", "", "28P01"),
    ("no password supplied", "", "28P01"),
    ("no pg_hba.conf entry", "", "28000"),
    ("must be superuser or replication role", "", "42501"),
    ("permission denied to start WAL sender", "", "42501"),
    ("permission denied for database", "", "42501"),
)
"""Refusals while connecting: libpq gives their text only."""

_OUR_CERTIFICATE = "see sslcert and sslkey in postgres.dsn: the server wants a certificate that its ssl_ca_file knows, not an expired one"
_FILES = "see sslcert, sslkey, sslpassword and sslrootcert in postgres.dsn: files that exist, the key readable by us alone"

_TLS: tuple[tuple[str, type[CdcError], str], ...] = (
    (
        "certificate verify failed",
        PostgresRefused,
        "see sslrootcert in postgres.dsn; if it names the right authority, the server's certificate has expired",
    ),
    ("does not match host name", PostgresRefused, "set host in postgres.dsn to a name that the server's certificate has"),
    ("requires a valid client certificate", PostgresRefused, _OUR_CERTIFICATE),
    ("alert certificate", PostgresRefused, _OUR_CERTIFICATE),
    ("alert bad certificate", PostgresRefused, _OUR_CERTIFICATE),
    ("alert unknown ca", PostgresRefused, _OUR_CERTIFICATE),
    ("certificate authentication failed", PostgresRefused, "the certificate's common name has to be the role, or pg_ident.conf maps it"),
    ("does not support SSL", PostgresRefused, "set ssl = on in postgresql.conf, or correct sslmode in postgres.dsn"),
    ("private key file", ConfigurationError, _FILES),
    ("certificate file", ConfigurationError, _FILES),
)
"""Words of libpq and OpenSSL, which have no SQLSTATE: a judgement about a certificate is as final as one about a password."""


def remedy(sqlstate: str | None, text: str, doing: str) -> CdcError:
    """Decide what an error of PostgreSQL calls for: what no waiting heals is refused, all else is tried again."""
    if sqlstate is None:
        sqlstate = next((state for first, then, state in _CONNECTING if first in text and then in text), None)
    what = f"PostgreSQL, {doing}: {text}"
    for words, kind, fix in _TLS if sqlstate is None else ():
        if words in text:
            return kind(what, fix)
    if "wal_level" in text:
        return PostgresRefused(what, "set wal_level = logical in postgresql.conf and restart PostgreSQL")
    if sqlstate in REFUSALS:
        fix = REFUSALS[sqlstate]
        if "WAL sender" in text or "replication role" in text:
            fix = "give the role the REPLICATION attribute: ALTER ROLE .. REPLICATION"
        return PostgresRefused(what, fix)
    return Retriable(what)


_ADVICE = ("\t", "DETAIL:", "HINT:", "Either provide")
"""How libpq begins the lines that say what one might do."""


def _text(error: psycopg.Error) -> str:
    """Return the line that says what is wrong; libpq has details and hints below it, and they do not say where."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith(_ADVICE)]
    return lines[-1] if lines else type(error).__name__
