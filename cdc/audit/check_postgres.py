"""The doctor's questions to PostgreSQL: what keeps rows out of the log, out of the stream, or the slot from living."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cdc.audit.finding import Case, Patience, Told, failed, ok, warning
from cdc.audit.init import OLDEST_SERVER
from cdc.outbox.emit import FUNCTIONS
from cdc.outbox.publication import problems
from cdc.outbox.retention import retained
from cdc.outbox.table import check_columns
from cdc.postgres import partitions
from cdc.postgres.bookmarks import bookmarks
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.server import SlotState

GOOD_MINORS = {14: 18, 15: 13, 16: 9, 17: 5}
"""Major version -> the minor from which ALTER PUBLICATION beside an open transaction loses no rows of it."""

INIT_OR_RECOVER = "run `cdc init`; if it existed before, `cdc recover`"
"""What makes a slot or a publication; PostgreSQL alone cannot tell whether there was one."""

BOOKMARK_BYTES = 1_000_000_000
"""Log that a bookmark may keep before it is worth a warning: it was made for an hour, and forgotten."""

BOOKMARK_TRANSACTIONS = 100_000_000
"""Age of a bookmark in transactions that is worth a warning: half of PostgreSQL's default autovacuum_freeze_max_age."""

OLD_TRANSACTION_S = 600
"""Seconds after which an open transaction that writes is worth a warning: the slot keeps the log from its beginning on."""


def reached(catalog: LiveCatalog, patience: Patience) -> Told:
    """Ask for the server and its version."""
    [(number, version, user, database)] = patience(
        lambda: catalog.query(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_user, current_database()"
        )
    )
    if number < OLDEST_SERVER:
        yield failed(f"the server is PostgreSQL {version}", "use PostgreSQL 14 or newer")
        return
    if number % 10_000 < GOOD_MINORS.get(number // 10_000, 0):
        major = number // 10_000
        yield warning(
            f"PostgreSQL {version} can lose rows when a publication is altered beside open transactions",
            f"update to {major}.{GOOD_MINORS[major]} or newer",
        )
        return
    yield ok(f"PostgreSQL {version}, database {database!r} as role {user!r}")


def _wal_level(_: Case, catalog: LiveCatalog) -> Told:
    level = catalog.setting("wal_level")
    if level == "logical":
        yield ok("wal_level is logical")
    else:
        yield failed(f"wal_level is {level!r}: the log holds no rows", "set wal_level = logical in postgresql.conf and restart PostgreSQL")


def _primary(_: Case, catalog: LiveCatalog) -> Told:
    if catalog.query("SELECT pg_is_in_recovery()")[0][0]:
        yield failed("the server is in recovery (a standby)", "connect to the primary: target_session_attrs=read-write in postgres.dsn")
    else:
        yield ok("the server is a primary")


def _role(case: Case, catalog: LiveCatalog) -> Told:
    [(role, may)] = catalog.query("SELECT rolname, rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
    if may:
        yield ok(f"role {role!r} may replicate")
    else:
        yield failed(f"role {role!r} may not replicate", "ALTER ROLE .. REPLICATION; `cdc init --sql` prints all that the role needs")
    readable = catalog.query(
        "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        (case.table.schema, case.table.name),
    )
    if readable and not readable[0][0]:
        fix = f"GRANT USAGE ON SCHEMA .. and GRANT SELECT ON {case.table}; `cdc init --sql` prints them"
        yield warning(f"role {role!r} may not read {case.table}: `cdc verify` cannot compare", fix)


def _room(case: Case, catalog: LiveCatalog) -> Told:
    [(slots, max_slots, ours, senders, max_senders)] = catalog.query(
        "SELECT (SELECT count(*) FROM pg_catalog.pg_replication_slots), current_setting('max_replication_slots')::int,"
        " (SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE slot_name = %s),"
        " (SELECT count(*) FROM pg_catalog.pg_stat_replication), current_setting('max_wal_senders')::int",
        (case.slot,),
    )
    if slots >= max_slots and not ours:
        yield failed(f"all {max_slots} replication slots are taken", "raise max_replication_slots and restart, or drop a slot")
    else:
        yield ok(f"{slots} of {max_slots} replication slots are taken")
    if senders >= max_senders:
        yield warning(f"all {max_senders} WAL senders are busy", "raise max_wal_senders and restart PostgreSQL")
    else:
        yield ok(f"{senders} of {max_senders} WAL senders are busy")


def _table(case: Case, catalog: LiveCatalog) -> Told:
    check_columns(case.table, catalog.columns(case.table.schema, case.table.name), case.mapping)
    [(persistence,)] = catalog.query(
        "SELECT c.relpersistence::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (case.table.schema, case.table.name),
    )
    if persistence != "p":
        yield failed(f"table {case.table} is not logged: its rows never reach the log", f"ALTER TABLE {case.table} SET LOGGED")
    else:
        yield ok(f"table {case.table} has every mapped column")


def _publication(case: Case, catalog: LiveCatalog) -> Told:
    seen = catalog.published(case.publication, case.table.schema, case.table.name)
    if seen is None:
        yield failed(f"publication {case.publication!r} does not exist", INIT_OR_RECOVER)
        return
    columns = catalog.columns(case.table.schema, case.table.name) or ()
    found = list(problems(case.publication, seen, case.table, columns, case.mapping))
    yield from ((failed if each.hides else warning)(each.what, each.fix) for each in found)
    if not found:
        yield ok(f"publication {case.publication!r} publishes inserts into {case.table} and nothing else")


def _partitions(case: Case, catalog: LiveCatalog) -> Told:
    [(partitioned, stay)] = catalog.query(partitions.STATE, (partitions.NAME, case.table.schema, case.table.name)) or [(False, False)]
    if not partitioned:
        yield ok(f"table {case.table} is not partitioned")
        return
    if stay:
        yield ok(f"rows of {case.table} stay in their partition")
    else:
        what = f"nothing keeps an UPDATE from moving a row of {case.table} to another partition, which publishes its event again"
        yield warning(what, "run `cdc init`: it makes a trigger that refuses it")
    away = [name for (name,) in catalog.query(_NOT_IN_THE_LOG, (str(case.table),))]
    if away:
        yield failed(f"rows of the partition {', '.join(away)} never reach the log: it is unlogged or foreign", "ALTER TABLE .. SET LOGGED")


_NOT_IN_THE_LOG = """
SELECT c.oid::regclass::text FROM pg_catalog.pg_partition_tree(%s::regclass) t JOIN pg_catalog.pg_class c ON c.oid = t.relid
WHERE t.isleaf AND (c.relpersistence <> 'p' OR c.relkind <> 'r') ORDER BY 1"""


def _emit(case: Case, catalog: LiveCatalog) -> Told:
    if case.emit is None:
        yield ok("outbox.emit is off: no function for writers in other languages")
        return
    match case.emit.judge(catalog.query(FUNCTIONS, (case.emit.schema, case.emit.name)))[0]:
        case "same":
            yield ok(f"function {case.emit} writes into {case.table}")
        case "missing":
            fix = 'run `cdc init` as a role that may make it, or `cdc init --sql` for a DBA; outbox.emit = "off" does without'
            yield warning(f"function {case.emit} does not exist: writers in other languages cannot call it", fix)
        case "differs":
            yield warning(f"function {case.emit} is not what the settings ask for", "run `cdc init`, which replaces it")
        case _:
            fix = "name another function in outbox.emit"
            yield warning(f"function {case.emit} was made by somebody else, or for another pipeline", fix)


def _slot(case: Case, catalog: LiveCatalog) -> Told:
    slot = catalog.slot(case.slot)
    if slot is None:
        yield failed(f"slot {case.slot!r} does not exist", INIT_OR_RECOVER)
        return
    recover = "`cdc recover` makes a new slot and publishes the rows that Kafka lacks"
    [(database,)] = catalog.query("SELECT current_database()")
    if slot.plugin != "pgoutput":
        yield failed(f"slot {slot.name!r} has output plugin {slot.plugin!r}", "it belongs to somebody else: choose another postgres.slot")
    elif slot.database != database:
        yield failed(f"slot {slot.name!r} belongs to database {slot.database!r}", "correct postgres.dsn or postgres.slot")
    elif slot.wal_status == "lost" or slot.invalidation_reason is not None:
        why = slot.invalidation_reason or "the log that it needs was removed"
        yield failed(f"slot {slot.name!r} is lost: {why}", recover)
    elif slot.wal_status == "unreserved":
        yield warning(f"slot {slot.name!r} is about to be lost: it keeps more than max_slot_wal_keep_size", "start the pipeline now")
    else:
        yield from _failover(slot, catalog)
        user = "nobody reads it" if slot.active_pid is None else f"backend {slot.active_pid} reads it"
        yield ok(f"slot {slot.name!r} is {slot.wal_status}, confirmed up to {slot.confirmed_flush_lsn}; {user}")


def _failover(slot: SlotState, catalog: LiveCatalog) -> Told:
    """See whether the slot survives a promotion, and whether the promoted server has what was published."""
    standbys = [name for (name,) in catalog.query(_PHYSICAL)]
    if slot.failover is False:
        fix = f"stop the pipeline; ALTER_REPLICATION_SLOT {slot.name} (FAILOVER true) on a connection with replication=database"
        yield warning(f"slot {slot.name!r} is no failover slot: a promoted standby will not have it", fix)
    if slot.failover and standbys:
        named = catalog.setting("synchronized_standby_slots")
        if not named:
            what = f"the pipeline may publish what standbys ({', '.join(standbys)}) do not have yet: a promotion then forks the log below"
            yield warning(f"{what} the position", f"set synchronized_standby_slots = '{', '.join(standbys)}' and reload")
        elif waiting := catalog.query(_WAITS_FOR_STANDBY, (slot.active_pid,)):
            yield warning(f"the pipeline waits for a standby of synchronized_standby_slots = {named!r}, {waiting[0][0]}", "see to it")


_PHYSICAL = "SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical' ORDER BY 1"
_WAITS_FOR_STANDBY = "SELECT wait_event FROM pg_catalog.pg_stat_activity WHERE pid = %s AND wait_event = 'WaitForStandbyConfirmation'"


def _retention(_: Case, catalog: LiveCatalog) -> Told:
    keep = catalog.setting("max_slot_wal_keep_size")
    if keep == "-1":
        yield warning(
            "max_slot_wal_keep_size is unlimited: a pipeline that stands still fills the disk of the primary",
            "set max_slot_wal_keep_size below the free space, and alert on the lag well before",
        )
    else:
        yield ok(f"a slot may keep {keep} of log (max_slot_wal_keep_size)")
    [(idle,)] = catalog.query("SELECT current_setting('idle_replication_slot_timeout', true)")
    if idle not in (None, "", "0"):
        yield warning(f"a slot that nobody reads for {idle} is lost (idle_replication_slot_timeout)", "set it to 0, or to days")


def _old_rows(case: Case, catalog: LiveCatalog) -> Told:
    if not case.retention:
        yield ok("outbox.retention is not set: old rows stay in the table")
        return
    kept = retained(catalog, case.table, case.mapping)
    [(may,)] = catalog.query(
        "SELECT has_table_privilege(c.oid, 'DELETE') AND has_any_column_privilege(c.oid, 'UPDATE') FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        (case.table.schema, case.table.name),
    )
    if may:
        yield ok(f"old rows are told by {kept.column or 'their commit time'}, and may be deleted")
    else:
        what = f"outbox.retention needs the right to DELETE in {case.table}, and to UPDATE a column: that is what locks a row"
        yield failed(what, "run `cdc init`; `cdc init --sql` prints the statement")


def _synchronous(case: Case, catalog: LiveCatalog) -> Told:
    names = catalog.setting("synchronous_standby_names")
    if "*" in names or case.application_name in names:
        yield warning(
            f"synchronous_standby_names = {names!r} counts the pipeline as a synchronous standby: commits would wait for Kafka",
            "name the real standbys",
        )
    else:
        yield ok("no commit waits for the pipeline")


def _old_transactions(_: Case, catalog: LiveCatalog) -> Told:
    [(visible, oldest, prepared)] = catalog.query(
        "SELECT pg_has_role('pg_read_all_stats', 'USAGE'),"
        " (SELECT extract(epoch FROM now() - min(xact_start))::bigint FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL),"
        " (SELECT extract(epoch FROM now() - min(prepared))::bigint FROM pg_catalog.pg_prepared_xacts)"
    )
    age = max(oldest or 0, prepared or 0)
    if age >= OLD_TRANSACTION_S:
        where = (
            "prepared transaction (pg_prepared_xacts)" if (prepared or 0) >= (oldest or 0) else "transaction (pg_stat_activity.xact_start)"
        )
        yield warning(f"a {where} has been open for {age} s: the slot keeps the log from its beginning on", "end it")
    else:
        more = "" if visible else " (of our own role: membership in pg_read_all_stats shows all)"
        yield ok(f"no transaction that writes is older than {OLD_TRANSACTION_S} s{more}")


def no_partitions(sink: str, case: Case) -> Told:
    """Ask whether rows may choose a partition, which a sink does not have."""
    catalog = LiveCatalog(case.dsn, case.application_name)
    try:
        columns = catalog.columns(case.table.schema, case.table.name) or ()
    finally:
        catalog.close()
    name = case.mapping.column("partition")
    if any(column.name == name for column in columns):
        what = f"column {name!r} of {case.table} has no meaning with {sink}: a row's key and topic say where it goes"
        yield warning(what, "write NULL, or drop the column")
    else:
        yield ok("no row asks for a partition")


def _bookmarks(case: Case, catalog: LiveCatalog) -> Told:
    listed = bookmarks(catalog, case.slot)
    for each in listed:
        drop = f"`cdc slot drop {each.name}` when it has served"
        if each.lsn is None:
            yield warning(f"the log of bookmark {each.name!r} is gone: nobody can go back to it", f"`cdc slot drop {each.name}`")
        elif (each.retained_bytes or 0) >= BOOKMARK_BYTES:
            yield warning(f"bookmark {each.name!r} keeps {each.retained_bytes:,} bytes of log", drop)
        elif (each.transactions_old or 0) >= BOOKMARK_TRANSACTIONS:
            yield warning(f"bookmark {each.name!r} keeps the catalog's dead rows of {each.transactions_old:,} transactions", drop)
        else:
            yield ok(f"bookmark {each.name!r} is at {each.lsn}")
    if not listed:
        yield ok("there are no bookmarks")


QUESTIONS: Mapping[str, Callable[[Case, LiveCatalog], Told]] = {
    "wal_level": _wal_level,
    "primary": _primary,
    "role": _role,
    "slots and WAL senders": _room,
    "bookmarks": _bookmarks,
    "outbox table": _table,
    "publication": _publication,
    "partitions": _partitions,
    "function for writers": _emit,
    "slot": _slot,
    "retention": _retention,
    "old rows": _old_rows,
    "synchronous_standby_names": _synchronous,
    "open transactions": _old_transactions,
}
"""What is asked once the server answers, in this order."""
