"""Whether a publication lets every row of the outbox through, and nothing else: facts in, findings out.

One judgement for everybody: `cdc init` and `cdc run` refuse what would keep rows or columns from the stream, and `cdc check`
tells it beside what is merely wasteful. A publication that hides rows would never be missed at its end: what it hides is
decoded as nothing, and the position moves on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from cdc.errors import PostgresRefused
from cdc.outbox.mapping import OutboxMapping, found
from cdc.outbox.table import check_columns
from cdc.postgres.catalog import LiveCatalog, Published, TableColumn
from cdc.postgres.slot import Table

RECREATE = (
    "drop it and run `cdc init`, which makes it, or name another one in postgres.publication;"
    " once positions exist, `cdc recover` replaces it without a gap"
)
"""What to do about a publication that does not fit; changing it in place changes its fingerprint, and that is a gap."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a publication, and what to do; `hides` tells that rows or mapped columns would be missing."""

    what: str
    hides: bool
    fix: str = RECREATE


def problems(name: str, seen: Published, table: Table, columns: Sequence[TableColumn], mapping: OutboxMapping) -> Iterator[Problem]:
    """Yield what is wrong with the publication `name`, worst first."""
    named = f"publication {name!r}"
    if not seen.row["pubinsert"]:
        yield Problem(f"{named} does not publish inserts", hides=True)
    yield from _members(name, seen, table)
    shown = seen.shown or {}
    row_filter = shown.get("rowfilter")
    if table.part is not None and not (row_filter and table.part.same(row_filter)):
        what = f"{named} does not choose the rows of shard {table.part.number}/{table.part.count}: they would be published twice, or never"
        yield Problem(what, hides=True)
    elif row_filter and table.part is None:
        yield Problem(f"{named} has a row filter: rows that it hides are never published", hides=True)
    if (attributes := shown.get("attnames")) is not None:
        hidden = sorted(_mapped(columns, mapping) - set(attributes))
        if hidden:
            yield Problem(f"{named} has a column list that hides {', '.join(hidden)}", hides=True)
    if seen.row["pubupdate"] or seen.row["pubdelete"] or seen.row["pubtruncate"]:
        what = f"{named} publishes more than inserts: without a replica identity UPDATE and DELETE of the outbox are refused"
        yield Problem(what, hides=False)


def check_publication(name: str, seen: Published, table: Table, columns: Sequence[TableColumn], mapping: OutboxMapping) -> None:
    """Refuse a publication that hides rows or mapped columns; raises PostgresRefused."""
    for problem in problems(name, seen, table, columns, mapping):
        if problem.hides:
            raise PostgresRefused(problem.what, problem.fix)


def check_outbox(catalog: LiveCatalog, publication: str, table: Table, mapping: OutboxMapping) -> None:
    """Refuse a live table that lacks a mapped column, or a publication that hides some of it; raises PostgresRefused.

    A publication that does not exist is nobody's fault here: init makes it, and continuity misses it.
    """
    columns = catalog.columns(table.schema, table.name)
    check_columns(table, columns, mapping)
    seen = catalog.published(publication, table.schema, table.name)
    if seen is not None:
        check_publication(publication, seen, table, columns or (), mapping)


def _members(name: str, seen: Published, table: Table) -> Iterator[Problem]:
    named = f"publication {name!r}"
    if seen.row["puballtables"]:
        yield Problem(f"{named} is FOR ALL TABLES: every table of the database would be decoded", hides=True)
        return
    kinds = [kind for schema, relation, kind in seen.tables if (schema, relation) == (table.schema, table.name)]
    if not kinds:
        schemas = f", only the schema {', '.join(seen.schemas)}" if seen.schemas else ""
        yield Problem(f"{named} does not name {table}{schemas}", hides=True)
        return
    if kinds == ["p"] and not seen.row["pubviaroot"]:
        what = f"{table} is partitioned and {named} names its partitions instead of it (publish_via_partition_root is off)"
        alter = (
            f"ALTER PUBLICATION {sql.Identifier(name).as_string()} SET (publish_via_partition_root = true), if there are no positions yet"
        )
        yield Problem(what, hides=True, fix=f"{alter}; else {RECREATE}")
    if others := len(seen.tables) - 1:
        yield Problem(f"{named} names {others} other table(s), whose rows are decoded in vain", hides=False)
    if seen.schemas:
        yield Problem(f"{named} names the schema {', '.join(seen.schemas)} too, whose rows are decoded in vain", hides=False)


def _mapped(columns: Sequence[TableColumn], mapping: OutboxMapping) -> set[str]:
    names = [column.name for column in columns if not column.generated]
    return {names[i] for i in found(mapping, names).columns.values()}
