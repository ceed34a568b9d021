"""The invariants, judged over what both ends hold and over what was seen in time; values in, verdict out, no I/O.

Strategy: four passes, each over a stream that is sorted for it, so that memory does not grow with what is judged. Whoever
calls sorts: `judge` in memory, for the histories of tests; `cdc verify` in temporary files, for a table of any size.

    by_id            rows beside records of one id     I1 missing  I2 duplicated  I3 unexpected, deleted, ..
    by_place         records by their place            I3 a place that two ids hold  I5 a transaction with a gap
    by_key           records of a key, in topic order  I4 reordered
    by_transaction   rows by transaction, seen or not  I5 torn

Two of them are for what is rarely there, and whoever has much to sort may ask first: no transaction is visible in part
unless a row is missing, and no key of a partition is out of order while the partition's places only grow (`Order`).

`Watch` judges what only time shows: I5 together, I6 confirmed, I7 the position, I8 older epochs, I9 lag.

Rules.
- A record that carries a replay marker makes its row visible and is otherwise left out.
- A place is the text of ce_sequence, which sorts: 4 hex digits of the generation, 16 of the commit LSN, 8 of the ordinal.
- Headers in Debezium's style tell no place (UNTOLD). Such records are judged by their ids alone: I1 to I3, and I5 by the rows.
- Findings name ids and places, never a key or a payload, and no more than EXAMPLES of a kind are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

Kind = Literal[
    "missing", "duplicated", "unexpected", "reordered", "torn", "forgotten", "position", "fenced", "lag",
    "deleted", "expired", "pending", "skipped",
]  # fmt: skip

Absent = Literal["missing", "pending", "skipped", "expired", "early"]
"""What a row is when no record of it is visible: lost, or why it need not be there; one that is early is left out altogether."""

DEFECTS: tuple[Kind, ...] = ("missing", "duplicated", "unexpected", "reordered", "torn")
"""What must be 0, in the order in which it is shown."""

REMARKS: tuple[Kind, ...] = ("deleted", "expired", "pending", "skipped")
"""What is counted and is no defect."""

EXAMPLES = 10
"""Findings of one kind that are kept: enough to look for the cause."""

TRANSACTION = 20
"""Characters of a place that tell its generation and transaction; the ordinal follows."""

UNTOLD = b""
"""The place of a record whose style of headers has none."""

PLACE, _HEX = 28, b"0123456789abcdef"
"""Characters of a whole place, and which."""


class Row(NamedTuple):
    """A committed outbox row. What is None is not known and not compared.

    `transaction` is any number that the rows of one transaction share (0: unknown). `payloads` holds the digests of every
    value that the row may become (one for each schema version), `original` that of the payload as a dead letter keeps it.
    `meant_for` is for whoever tells what an absent row is; the judge does not look at it.
    """

    id: bytes
    key: bytes | None = None
    type: bytes | None = None
    transaction: int = 0
    payloads: Collection[bytes] | None = None
    original: bytes | None = None
    absent: Absent = "missing"
    meant_for: object = None


class Visible(NamedTuple):
    """A record as a read_committed consumer sees it; `place` is None when its ce_sequence is malformed, UNTOLD when it needs none."""

    id: bytes
    place: bytes | None
    key: bytes | None = None
    topic: str = ""
    partition: int = 0
    offset: int = 0
    type: bytes | None = None
    payload: bytes | None = None
    replay: bool = False
    dead: bool = False


class Finding(NamedTuple):
    """One thing that is wrong, with the id or the place that shows it."""

    kind: Kind
    what: str


@dataclass(slots=True)
class Verdict:
    """Counts by name, and a few findings of each kind."""

    rows: int = 0
    events: int = 0
    dead_letters: int = 0
    replayed: int = 0
    counts: dict[Kind, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: Kind, what: str, count: int = 1) -> None:
        """Count `kind`, and keep what shows it."""
        total = self.counts.get(kind, 0)
        self.counts[kind] = total + count
        if kind not in REMARKS and total < EXAMPLES:
            self.findings.append(Finding(kind, what))

    def include(self, other: Verdict) -> None:
        """Add what was found elsewhere: in another shard."""
        self.rows += other.rows
        self.events += other.events
        self.dead_letters += other.dead_letters
        self.replayed += other.replayed
        for kind, count in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
        self.findings += other.findings

    @property
    def clean(self) -> bool:
        """Whether every invariant holds."""
        return not any(count for kind, count in self.counts.items() if kind not in REMARKS)

    def document(self) -> dict[str, int]:
        """Return the counts by the names that `cdc verify --json` prints."""
        counted = {"rows": self.rows, "events": self.events, "dead_letters": self.dead_letters}
        return counted | {kind: self.counts.get(kind, 0) for kind in (*DEFECTS, *REMARKS)} | {"replayed": self.replayed}


def digest(value: bytes | None) -> bytes:
    """Return what stands for a payload: two values are the same if and only if their digests are."""
    return bytes(16) if value is None else hashlib.blake2b(value, digest_size=16).digest()


def place_of(sequence: bytes | None) -> bytes | None:
    """Return a ce_sequence as a place, or None when it is malformed."""
    return sequence if sequence is not None and len(sequence) == PLACE and not sequence.strip(_HEX) else None


def limit_of(generation: int, end_lsn: int) -> bytes:
    """Return what the place of every record must stay below when this is the position."""
    return b"%04x%016x" % (generation, end_lsn)


def judge(
    rows: Iterable[Row], visible: Iterable[Visible], *, limit: bytes | None = None, complete: bool = True, whole: bool = True
) -> Verdict:
    """Judge a history that fits into memory. `limit` is limit_of the position, when that was read after the records.

    `complete`: no row was ever deleted, so a record without a row is unexpected. `whole`: no record was ever deleted, so a
    transaction must have all of its ordinals.
    """
    verdict, listed, records = Verdict(), sorted(rows, key=itemgetter(0)), sorted(visible, key=itemgetter(0))
    by_id(verdict, listed, records, limit=limit, complete=complete)
    placed = [record for record in records if not record.replay and record.place]
    by_place(verdict, sorted((record.place or b"", record.id) for record in placed), whole=whole)
    keyed = sorted(((r.topic, r.partition, r.key or b"", r.key is None), r.offset, r.place or b"", r.id) for r in placed)
    by_key(verdict, ((group, place, event) for group, _, place, event in keyed))
    by_transaction(verdict, sorted(outcomes(listed, records)))
    return verdict


def absent_of(row: Row) -> Absent:
    """Return what the row itself says that it is when no record of it is visible."""
    return row.absent


def by_id(  # noqa: PLR0913 - both streams and what is known of them
    verdict: Verdict,
    rows: Iterable[Row],
    visible: Iterable[Visible],
    *,
    limit: bytes | None = None,
    complete: bool = False,
    absent: Callable[[Row], Absent] = absent_of,
) -> None:
    """Compare rows with records, both sorted by id; `absent` is asked about rows that no record was found for."""
    plain = 0
    for event, mine, theirs in _beside(rows, visible):
        if len(mine) == 1 == len(theirs):
            # What nearly all are: an event beside its row. `_compare` would find the same, with more questions.
            _, key, kind, _, payloads, _, _, _ = mine[0]
            _, place, its_key, _, _, _, its_kind, payload, replay, dead = theirs[0]
            if (
                place is not None
                and key == its_key
                and kind == its_kind
                and (payloads is None or payload in payloads)
                and (limit is None or place < limit)
                and not (replay or dead)
            ):
                plain += 1
                continue
        _compare(verdict, event, [(row, absent(row)) for row in mine], theirs, limit, complete=complete)
    verdict.rows += plain
    verdict.events += plain


def _compare(  # noqa: PLR0913 - as by_id
    verdict: Verdict,
    event: bytes,
    found: Sequence[tuple[Row, Absent]],
    theirs: Sequence[Visible],
    limit: bytes | None,
    *,
    complete: bool,
) -> None:
    mine = [row for row, fate in found if theirs or fate != "early"]
    firsts = [record for record in theirs if not record.replay]
    dead = sum(record.dead for record in firsts)
    verdict.rows += len(mine)
    verdict.dead_letters += dead
    verdict.events += len(firsts) - dead
    verdict.replayed += len(theirs) - len(firsts)
    for _, fate in found[len(theirs) :]:
        if fate != "early":
            verdict.add(fate, _shown(event))
    if (more := len(firsts) - max(1, len(mine))) > 0:
        verdict.add("duplicated", _shown(event), more)
    for record in firsts:
        if (wrong := _wrong(record, mine, limit, complete=complete)) is not None:
            verdict.add("unexpected", f"{_shown(event)}: {wrong}")
        elif not mine:
            verdict.add("deleted", _shown(event))


def outcomes(rows: Iterable[Row], visible: Iterable[Visible], absent: Callable[[Row], Absent] = absent_of) -> Iterator[tuple[int, bool]]:
    """Yield (transaction, seen) of every row that had to be seen, from rows and records that are sorted by id."""
    for _, mine, theirs in _beside(rows, visible):
        for row in mine:
            if row.transaction and (theirs or absent(row) == "missing"):
                yield row.transaction, bool(theirs)


def _wrong(record: Visible, rows: Sequence[Row], limit: bytes | None, *, complete: bool) -> str | None:
    """Say why nobody could expect this record, if so."""
    if record.place is None:
        return "its place is malformed"
    if limit is not None and record.place[:TRANSACTION] >= limit:
        return "its place is beyond the position"
    if not rows:
        return "no such row was committed" if complete else None
    different = [_different(record, row) for row in rows]
    return None if None in different else f"the row with this id has another {different[0]}"


def _different(record: Visible, row: Row) -> str | None:
    """Say in what record and row differ. A dead letter that was over the limit keeps neither payload nor a long key."""
    left_out = record.dead and record.payload is None
    if record.key != row.key and not (left_out and record.key is None):
        return "key"
    if record.type is not None and row.type is not None and record.type != row.type:
        return "type"
    if record.payload is None:
        return None
    if record.dead:
        return None if row.original is None or row.original == record.payload else "payload"
    return None if row.payloads is None or record.payload in row.payloads else "payload"


def by_place(verdict: Verdict, places: Iterable[tuple[bytes, bytes]], *, whole: bool) -> None:
    """Judge (place, id) of all records but replays, sorted: one id for each place, ordinals from 0 on without a gap.

    A gap shows a row that is not visible while others of its transaction are; without one more witness, the last ordinals
    of a transaction cannot be missed here.
    """
    for transaction, members in groupby(places, key=lambda each: each[0][:TRANSACTION]):
        expected, last, torn = 0, (b"", b""), False
        for place, event in members:
            if place != last[0]:
                torn |= int(place[TRANSACTION:], 16) != expected
                expected += 1
            elif event != last[1]:
                verdict.add("unexpected", f"{_shown(event)}: its place {_shown(place)} is held by {_shown(last[1])}")
            last = (place, event)
        if torn and whole:
            verdict.add("torn", f"a transaction at {_shown(transaction)} lacks an ordinal")


def by_key(verdict: Verdict, records: Iterable[tuple[object, bytes, bytes]]) -> None:
    """Judge (group, place, id) of all records but replays; a group is a key in a partition, its records in topic order."""
    for _, members in groupby(records, key=itemgetter(0)):
        highest = b""
        for _, place, event in members:
            if place < highest:
                verdict.add("reordered", f"{_shown(event)}: {_shown(place)} after {_shown(highest)}")
            else:
                highest = place


class Order:
    """Sees records as they come, each partition in topic order, and keeps the partitions whose places do not only grow.

    In all others every key is in order, so only the records of `suspects` have to be sorted for by_key.
    """

    def __init__(self) -> None:
        self._highest: dict[tuple[str, int], bytes] = {}
        self.suspects: set[tuple[str, int]] = set()

    def see(self, partition: tuple[str, int], place: bytes) -> None:
        """Take the place of a record that is no replay."""
        if place < self._highest.get(partition, b""):
            self.suspects.add(partition)
        else:
            self._highest[partition] = place


def by_transaction(verdict: Verdict, outcomes: Iterable[tuple[int, bool]]) -> None:
    """Judge (transaction, seen) of all rows that had to be seen, sorted by transaction: all of a transaction or none."""
    for transaction, members in groupby(outcomes, key=itemgetter(0)):
        if len({seen for _, seen in members}) > 1:
            verdict.add("torn", f"transaction {transaction} is visible in part")


def _beside(rows: Iterable[Row], visible: Iterable[Visible]) -> Iterator[tuple[bytes, list[Row], list[Visible]]]:
    """Merge both streams by id."""
    left, right = iter(rows), iter(visible)
    row, record = next(left, None), next(right, None)
    while row is not None or record is not None:
        mine, theirs = list[Row](), list[Visible]()
        if row is not None and (record is None or row[0] <= record[0]):
            event = row[0]
            while row is not None and row[0] == event:
                mine.append(row)
                row = next(left, None)
        else:
            assert record is not None, "one of both is left"
            event = record[0]
        while record is not None and record[0] == event:
            theirs.append(record)
            record = next(right, None)
        yield event, mine, theirs


def _shown(text: bytes) -> str:
    return text.decode(errors="backslashreplace")[:80]


class Watch:
    """Judges what is seen over time; every look is one moment, and what `visible` holds has become visible since the last."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self._newest = b""
        self._limit = b""
        self._epoch: int | None = None

    def __repr__(self) -> str:
        return f"<Watch limit={_shown(self._limit)} {self.verdict.counts}>"

    def look(self, visible: Iterable[bytes], limit: bytes | None, confirmed_flush_lsn: int | None) -> None:
        """Take a moment: places of records but replays, limit_of the committed position, and what the slot has confirmed.

        The slot must be looked at before the position, and the position after the records: each may only have moved on.
        """
        newest = self._newest
        for place in visible:
            transaction = place[:TRANSACTION]
            if transaction <= self._newest:
                self.verdict.add("torn", f"{_shown(place)} became visible after {_shown(self._newest)}")
            newest = max(newest, transaction)
        self._newest = newest
        if limit is not None:
            if limit < self._limit:
                self.verdict.add("position", f"the position went back from {_shown(self._limit)} to {_shown(limit)}")
            self._limit = limit
        if self._newest and self._newest >= self._limit:
            self.verdict.add("position", f"an event at {_shown(self._newest)} is visible, the position is {_shown(self._limit)}")
        if confirmed_flush_lsn is not None and self._limit and b"%016x" % confirmed_flush_lsn > self._limit[4:]:
            self.verdict.add("forgotten", f"{confirmed_flush_lsn:X} is confirmed, the position is {_shown(self._limit)}")

    def recovered(self, epoch: int) -> None:
        """A newer instance has fenced all older ones: nothing of theirs may be committed from here on."""
        self._epoch = epoch

    def committed(self, epoch: int) -> None:
        """A Kafka transaction of this epoch was committed."""
        if self._epoch is not None and epoch < self._epoch:
            self.verdict.add("fenced", f"epoch {epoch} committed after {self._epoch} had recovered")

    def ended(self, lag_bytes: int) -> None:
        """Faults are over, and the pipeline had time: no lag is left."""
        if lag_bytes > 0:
            self.verdict.add("lag", f"{lag_bytes} bytes of log are not published")
