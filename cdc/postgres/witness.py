"""Whether the log below the position is the one that was published from; transactions in, ContinuityError out, no I/O.

A copy of the data directory that was put back (a disk or VM snapshot) has the same system identifier, timeline, slot and
publication as the original. What differs is the log behind the copy's moment, and all of it that lies between the slot and
the position is sent at every start, to be skipped. So each position remembers a *witness*, the last transaction that brought
events, and what is skipped has to agree with it:

- the slot before the witness: of the skipped transactions with events, the last one is the witness, bit for bit;
- the slot at or behind the witness, or no event since the genesis: no skipped transaction has events.

Why that is enough: let D be the place from which the two logs differ. A transaction that is wrongly skipped ends behind D. If
the witness ends at or before D, the transaction comes after it, and is seen. If the witness ends behind D, this log does not
hold it: it cannot reappear when the slot is before it, and otherwise every event in the part is one too many. A restored
slot is never ahead of the true one, because it is part of the copy.

The slot must not move before the judgement: a slot that was moved to the position is sent nothing to judge at the next start.
"""

from __future__ import annotations

from typing import Literal, NoReturn

from cdc.errors import ContinuityError
from cdc.position import Lsn, Witness, time_text

ANOTHER_LOG = (
    "this server was put back to an earlier state (a restored copy or snapshot): connect to the one that was published from;"
    " if this one replaces it, `cdc recover --rebuild`"
)
"""What to do about a log that is not the one that was published from."""


class SkippedPart:
    """The part of the log between the slot and the position, as it is sent again.

    `slot_lsn` is the slot's confirmed_flush_lsn when the stream began. A witness "unknown" is not compared.
    """

    def __init__(self, witness: Witness | Literal["none", "unknown"], slot_lsn: Lsn, position: Lsn) -> None:
        self._position = position
        self._expected = witness if isinstance(witness, Witness) and slot_lsn < witness.end_lsn else None
        self._last: Witness | None = None
        self.judged = witness == "unknown" or slot_lsn >= position

    def __repr__(self) -> str:
        return f"<SkippedPart to={self._position} expected={self._expected} last={self._last} judged={self.judged}>"

    def skipped(self, transaction: Witness) -> None:
        """Take a transaction with events that was skipped."""
        self._last = transaction

    def reached(self, lsn: Lsn) -> None:
        """All that ends at or before `lsn` has been sent: judge when that is the whole part; raises ContinuityError."""
        if self.judged or lsn < self._position:
            return
        if self._last != self._expected:
            self._refuse()
        self.judged = True

    def _refuse(self) -> NoReturn:
        expected, last = self._expected, self._last
        if last is None:
            msg = f"the last transaction that was published ({_told(expected)}) is not in this server's log"
        elif expected is None or last.end_lsn > expected.end_lsn:
            msg = f"a transaction with events ({_told(last)}) lies below the position {self._position} and was never published"
        else:
            msg = f"the last published transaction below {self._position} was another one ({_told(expected)}) than here ({_told(last)})"
        raise ContinuityError(msg, ANOTHER_LOG)


def straddles(begin: Lsn, end: Lsn, position: Lsn) -> ContinuityError:
    """Return the error for a commit record that begins below the position and ends above it: positions are ends of records."""
    msg = (
        f"a commit record from {begin} to {end} lies across the position {position}, which is the end of one in the log that was published"
    )
    return ContinuityError(msg, ANOTHER_LOG)


def _told(witness: Witness | None) -> str:
    return "none" if witness is None else f"xid {witness.xid}, end {witness.end_lsn}, committed {time_text(witness.commit_time_us)}"
