"""The hold: what a command that changes the position does to have slot and position for itself, and to be run again.

Strategy: fence with the pipeline's own id, and write the position as it is with a `hold` that names the command. Whoever goes
through the door from here on reads the hold, before or behind the fence, and waits. Then whoever reads the slot is told to go,
because an instance in an idle log would not notice that it is fenced. The record that ends the hold carries a raised
generation, so that every place from here on sorts after every place before.

Rules.
- A hold changes nothing but the hold: until it ends the record says what was published, so a command that was killed is
  run again from the beginning and finds all that it has to know.
- An instance that had passed the first look before the hold was written may still take the slot and fence the command. It
  then reads the hold and leaves; the command's next call is fenced, and it takes the hold again.
- A hold that another command has written is not ours to end, except by `cdc recover`, which mends whatever that one left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cdc.errors import ContinuityError, Retriable
from cdc.pipeline.ports import Sink
from cdc.position import Position, time_text
from cdc.postgres.catalog import LiveCatalog
from cdc.resilience.call import nobody_waits

FREE_PATIENCE_S = 10.0
"""How long whoever reads the slot may take to leave: its walsender ends at once unless the server is busy."""

POLL_S = 0.05

END_READER = """
SELECT active_pid, pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots
WHERE slot_name = %s AND active_pid IS NOT NULL"""


class Hold:
    """One run of one command; `take` may be called again after a fault.

    `ends_any`: it may end another command's hold. `lost` makes what stands in for a position that Kafka does not have any more.
    """

    def __init__(self, command: str, *, host: str, now_us: int, ends_any: bool = False, lost: Callable[[], Position] | None = None) -> None:
        self._command = command
        self._ends_any = ends_any
        self._lost = lost
        self._taken = False
        self.text = f"{command}, {time_text(now_us)}, {host}"

    def __repr__(self) -> str:
        return f"<Hold {self.text}{'' if self._taken else ', not taken'}>"

    def allows(self, position: Position | None) -> Position:
        """Return the position if this command may change it; raises ContinuityError."""
        if position is None:
            if self._lost is not None:
                return self._lost()
            msg = "the position topic holds no position of this pipeline"
            fix = "point to the right Kafka and position topic; if Kafka has lost it: `cdc recover --adopt`; if it never was: `cdc init`"
            raise ContinuityError(msg, fix)
        if position.pending is not None:
            msg = f"`cdc init` began at {position.pending} and did not finish"
            raise ContinuityError(msg, "run `cdc init` again")
        held = position.hold
        if held is None or held == self.text:
            return position
        if self._taken:
            msg = f"another command took over meanwhile: {held}"
            raise ContinuityError(msg, "let it finish")
        if not self._ends_any and not held.startswith(f"{self._command}, "):
            command = held.partition(",")[0]
            msg = f"another command is under way, or was interrupted: {held}"
            raise ContinuityError(msg, f"let it finish, or run `{command}` again; `cdc recover` ends any hold")
        return position

    def take(self, publisher: Sink, catalog: LiveCatalog, slot: str) -> Position:
        """Fence, write the hold, and see that nobody reads the slot; return the position with the hold.

        `catalog` is connected as the pipeline's own role, which may end its own backends.
        """
        position = replace(self.allows(publisher.recover(nobody_waits)), hold=self.text)
        publisher.commit(position, nobody_waits)
        self._taken = True
        free(catalog, slot)
        return position

    def end(self, publisher: Sink, position: Position) -> Position:
        """Commit what was produced with the position that ends the hold; return it."""
        ended = replace(position, hold=None)
        publisher.commit(ended, nobody_waits)
        return ended


def free(catalog: LiveCatalog, slot: str) -> None:
    """Tell whoever reads the slot to go, until nobody does."""
    deadline = time.monotonic() + FREE_PATIENCE_S
    while readers := catalog.query(END_READER, (slot,)):
        if time.monotonic() >= deadline:
            msg = f"PostgreSQL does not end backend {readers[0][0]}, which reads slot {slot!r}"
            raise Retriable(msg, "stop the pipeline")
        time.sleep(POLL_S)
