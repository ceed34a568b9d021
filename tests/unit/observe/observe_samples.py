"""A server, a slot, a position and a clock as they are seen by the tests of this room."""

from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.postgres.server import Server, SlotState

SLOT = SlotState("cdc_shop", "pgoutput", "shop", 7, "reserved", None, Lsn(100), Lsn(200), 5000)
SERVER = Server("1", 180_000, False, ((1, Lsn(0)),), Lsn(1000), SLOT, None, True)
POSITION = Position(
    pipeline="shop",
    generation=1,
    system_id="1",
    timeline_history=((1, Lsn(0)),),
    slot="cdc_shop",
    publication_fingerprint=Fingerprint(1, 1, (), Lsn(0)),
    kafka_cluster_id="k",
    end_lsn=Lsn(900),
    commit_time_us=50_000_000,
    witness="none",
    message_prefix=None,
    existing=Existing("none", ""),
)


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def us(self) -> int:
        return int(self.now * 1_000_000)
