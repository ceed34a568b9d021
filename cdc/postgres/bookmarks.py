"""Bookmarks as the catalog shows them: copies of a slot, told by their names, and what each of them keeps."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.position import Lsn
from cdc.postgres.catalog import LiveCatalog

LISTED = """
SELECT slot_name, confirmed_flush_lsn::text, wal_status, restart_lsn::text,
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 END, safe_wal_size,
       age(catalog_xmin)
FROM pg_catalog.pg_replication_slots
WHERE database = current_database() AND starts_with(slot_name, %s) ORDER BY confirmed_flush_lsn, slot_name"""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A kept place: `lsn` and what it costs; `lsn` is None when its log is gone."""

    name: str
    slot: str
    lsn: Lsn | None
    wal_status: str | None
    retained_bytes: int | None
    safe_wal_bytes: int | None
    transactions_old: int | None

    def document(self) -> dict[str, object]:
        """Return what `--json` prints."""
        return {
            "name": self.name,
            "slot": self.slot,
            "lsn": None if self.lsn is None else str(self.lsn),
            "wal_status": self.wal_status,
            "retained_bytes": self.retained_bytes,
            "safe_wal_bytes": self.safe_wal_bytes,
            "transactions_old": self.transactions_old,
        }


def prefix(slot: str) -> str:
    """Return how the names of a slot's bookmarks begin."""
    return f"{slot}_bookmark_"


def bookmarks(catalog: LiveCatalog, slot: str) -> list[Bookmark]:
    """Return the bookmarks of a slot, the oldest place first."""
    begin = prefix(slot)
    found = []
    for copy, confirmed, status, restart, retained, safe, age in catalog.query(LISTED, (begin,)):
        kept = restart is not None and status != "lost"
        found.append(Bookmark(copy[len(begin) :], copy, Lsn.parse(confirmed) if kept else None, status, retained, safe, age))
    return found
