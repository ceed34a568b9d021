"""What the database server says about itself, the slot and the publication, seen at one moment: values, no I/O."""

from dataclasses import dataclass

from cdc.position import Fingerprint, Lsn


@dataclass(frozen=True, slots=True)
class SlotState:
    """The slot's row in pg_replication_slots; a field is None where the server has no value (or no such column).

    `failover` tells whether standbys may keep a copy of it (PostgreSQL 17), `synced` whether this is such a copy.
    """

    name: str
    plugin: str
    database: str
    active_pid: int | None
    wal_status: str | None
    invalidation_reason: str | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    safe_wal_size: int | None
    failover: bool | None = None
    synced: bool | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """The server, our slot (None when there is none) and our publication (likewise).

    `timeline_history` is as in Position. `ours` tells that the slot is active for the backend of our own replication
    connection, which proves in one row that both connections reach one server and that the slot is held by us.
    """

    system_id: str
    version: int
    in_recovery: bool
    timeline_history: tuple[tuple[int, Lsn], ...]
    flush_lsn: Lsn
    slot: SlotState | None
    publication: Fingerprint | None
    ours: bool
