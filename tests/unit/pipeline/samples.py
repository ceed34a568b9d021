"""Values that the tests of the pipeline share."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdc.position import Existing, Fingerprint, Lsn, Member, Position
from cdc.postgres.server import Server, SlotState

FINGERPRINT = Fingerprint(16_390, 740, (Member(16_391, 741, 16_400),), Lsn(0x50))

POSITION = Position(
    pipeline="shop",
    generation=0,
    system_id="7300000000000000001",
    timeline_history=((1, Lsn(0)),),
    slot="cdc_shop",
    publication_fingerprint=FINGERPRINT,
    kafka_cluster_id="cluster",
    end_lsn=Lsn(0x100),
    commit_time_us=0,
    witness="none",
    message_prefix=None,
    existing=Existing("none", "740:740:"),
)

SLOT = SlotState(
    name="cdc_shop",
    plugin="pgoutput",
    database="shop",
    active_pid=42,
    wal_status="reserved",
    invalidation_reason=None,
    restart_lsn=Lsn(0x80),
    confirmed_flush_lsn=Lsn(0x100),
    safe_wal_size=None,
)

SERVER = Server(
    system_id="7300000000000000001",
    version=180_000,
    in_recovery=False,
    timeline_history=((1, Lsn(0)),),
    flush_lsn=Lsn(0x200),
    slot=SLOT,
    publication=FINGERPRINT,
    ours=True,
)


def position(**changes: Any) -> Position:  # noqa: ANN401 - any field
    return dataclasses.replace(POSITION, **changes)


def slot(**changes: Any) -> SlotState:  # noqa: ANN401 - any field
    return dataclasses.replace(SLOT, **changes)


def server(**changes: Any) -> Server:  # noqa: ANN401 - any field
    return dataclasses.replace(SERVER, **changes)
