"""Places in the write-ahead log, and the position record that is stored with the events.

A position is what a Kafka transaction leaves behind beside its events: up to where the log is published (`end_lsn`), and
what the next passage through the door needs to prove that the log still goes on there. It is written as JSON, one record
keyed by the pipeline's name, and compared field by field, never by guess.

Only the end of a commit record (`Commit.end_lsn`) and a keepalive's `wal_end` are places that may be stored or confirmed
(PostgreSQL manual, "Logical Streaming Replication Protocol"); the LSN of a row is not one.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Self

import orjson

from cdc.errors import ContinuityError

FORMAT = 1
"""Version of the position record's layout."""

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01T00:00:00Z in microseconds since 1970: the zero of PostgreSQL's timestamps."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - all that is added to it is UTC, and isoformat writes no offset then


class Lsn(int):
    """A byte position in the write-ahead log, printed as PostgreSQL prints it: `16/B374D848`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PostgreSQL's text form; raises ValueError for anything else."""
        match = _LSN.fullmatch(text)
        if match is None:
            msg = f"{text!r} is not an LSN such as 16/B374D848"
            raise ValueError(msg)
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"


def time_text(unix_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC, all six digits kept."""
    return (_EPOCH + timedelta(microseconds=unix_us)).isoformat(timespec="microseconds") + "Z"


def time_from_text(text: str) -> int:
    """Read what `time_text` wrote, as microseconds since 1970; raises ValueError for anything else."""
    since = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ") - _EPOCH  # noqa: DTZ007 - as above
    return since // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Witness:
    """The last PostgreSQL transaction that brought events: it must reappear bit for bit where the slot is before it."""

    end_lsn: Lsn
    xid: int
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class Member:
    """One table or schema of the publication: oid and xmin of its row in the catalog, and the oid of what it names.

    The row is in pg_publication_rel (with the row filter and the column list) or in pg_publication_namespace.
    """

    oid: int
    xmin: int
    relation: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the publication was: an object with the same oid and xmin has existed unchanged since (up to `proved_lsn`).

    Changed and changed back, it has another xmin. `publish`, publish_via_partition_root and FOR ALL TABLES are in the
    publication's own row, and stand for themselves in its xmin.
    """

    oid: int
    xmin: int
    members: tuple[Member, ...]
    proved_lsn: Lsn
    schemas: tuple[Member, ...] = ()

    def same(self, other: Fingerprint) -> bool:
        """Whether both describe one unchanged publication; the LSN of the proof does not count."""
        return (self.oid, self.xmin, self.members, self.schemas) == (other.oid, other.xmin, other.members, other.schemas)


@dataclass(frozen=True, slots=True)
class Existing:
    """What init did with the rows that the table had: `mode`, and the snapshot (pg_current_snapshot text) that saw them."""

    mode: Literal["none", "skip", "publish"]
    snapshot: str


@dataclass(frozen=True, slots=True)
class Gap:
    """The log that could not be read, as `cdc recover` bridged it last: `rows` of the table were published in its place."""

    begin: Lsn
    end: Lsn
    rows: int
    time_us: int

    def document(self) -> dict[str, object]:
        """Return it as plain JSON."""
        return {"begin": str(self.begin), "end": str(self.end), "rows": self.rows, "time": time_text(self.time_us)}


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where the log is published, and the proof of which log that was.

    `timeline_history` lists (timeline, LSN at which it ended) for every ancestor, then (current timeline, 0).
    `witness` is a transaction, "none" (no event since genesis) or "unknown" (not to be checked until the next event).
    """

    pipeline: str
    generation: int
    system_id: str
    timeline_history: tuple[tuple[int, Lsn], ...]
    slot: str
    publication_fingerprint: Fingerprint
    kafka_cluster_id: str
    end_lsn: Lsn
    commit_time_us: int
    witness: Witness | Literal["none", "unknown"]
    message_prefix: str | None
    existing: Existing
    hold: str | None = None
    pending: str | None = None
    replay_until: Lsn | None = None
    gap: Gap | None = None

    def advanced(self, end_lsn: Lsn, commit_time_us: int, witness: Witness | None) -> Position:
        """Return this position moved on to `end_lsn`; `witness` is None when no events came."""
        replay_until = self.replay_until
        if replay_until is not None and end_lsn >= replay_until:
            replay_until = None
        return dataclasses.replace(
            self,
            end_lsn=end_lsn,
            commit_time_us=commit_time_us,
            witness=self.witness if witness is None else witness,
            replay_until=replay_until,
        )

    def to_json(self) -> bytes:
        """Encode the record's value."""
        fingerprint = self.publication_fingerprint
        document: dict[str, Any] = {
            "format": FORMAT,
            "pipeline": self.pipeline,
            "generation": self.generation,
            "system_id": self.system_id,
            "timeline_history": [[timeline, str(end)] for timeline, end in self.timeline_history],
            "slot": self.slot,
            "publication_fingerprint": {
                "oid": fingerprint.oid,
                "xmin": fingerprint.xmin,
                "members": [dataclasses.astuple(member) for member in fingerprint.members],
                "proved_lsn": str(fingerprint.proved_lsn),
            },
            "kafka_cluster_id": self.kafka_cluster_id,
            "end_lsn": str(self.end_lsn),
            "commit_time": time_text(self.commit_time_us),
            "witness": self.witness
            if isinstance(self.witness, str)
            else {
                "end_lsn": str(self.witness.end_lsn),
                "xid": self.witness.xid,
                "commit_time": time_text(self.witness.commit_time_us),
            },
            "message_prefix": self.message_prefix,
            "existing": {"mode": self.existing.mode, "snapshot": self.existing.snapshot},
        }
        if fingerprint.schemas:
            document["publication_fingerprint"]["schemas"] = [dataclasses.astuple(member) for member in fingerprint.schemas]
        for name in ("hold", "pending"):
            if (value := getattr(self, name)) is not None:
                document[name] = value
        if self.replay_until is not None:
            document["replay_until"] = str(self.replay_until)
        if (gap := self.gap) is not None:
            document["gap"] = gap.document()
        return orjson.dumps(document)

    @classmethod
    def from_json(cls, data: bytes) -> Position:
        """Decode a record's value; anything that `to_json` does not write is a ContinuityError."""
        try:
            document = orjson.loads(data)
            if document["format"] != FORMAT:
                msg = f"the position record has format {document['format']!r}, this version reads {FORMAT}"
                raise ContinuityError(msg, "run the version of cdc that wrote it, or a newer one")
            return cls._from_document(document)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            msg = f"the position record cannot be read: {type(error).__name__}"
            raise ContinuityError(msg, "somebody else wrote to the position topic; see who may write there") from error

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Position:
        fingerprint = document["publication_fingerprint"]
        witness = document["witness"]
        if not isinstance(witness, str):
            witness = Witness(Lsn.parse(witness["end_lsn"]), int(witness["xid"]), time_from_text(witness["commit_time"]))
        replay_until, gap = document.get("replay_until"), document.get("gap")
        if gap is not None:
            gap = Gap(Lsn.parse(gap["begin"]), Lsn.parse(gap["end"]), int(gap["rows"]), time_from_text(gap["time"]))
        return cls(
            pipeline=document["pipeline"],
            generation=document["generation"],
            system_id=document["system_id"],
            timeline_history=tuple((int(t), Lsn.parse(end)) for t, end in document["timeline_history"]),
            slot=document["slot"],
            publication_fingerprint=Fingerprint(
                fingerprint["oid"],
                fingerprint["xmin"],
                tuple(Member(*member) for member in fingerprint["members"]),
                Lsn.parse(fingerprint["proved_lsn"]),
                tuple(Member(*member) for member in fingerprint.get("schemas", ())),
            ),
            kafka_cluster_id=document["kafka_cluster_id"],
            end_lsn=Lsn.parse(document["end_lsn"]),
            commit_time_us=time_from_text(document["commit_time"]),
            witness=witness,
            message_prefix=document["message_prefix"],
            existing=Existing(document["existing"]["mode"], document["existing"]["snapshot"]),
            hold=document.get("hold"),
            pending=document.get("pending"),
            replay_until=None if replay_until is None else Lsn.parse(replay_until),
            gap=gap,
        )
