"""`cdc replay`: rows of the table that were published before are published again, beside the running pipeline.

Strategy: an identity of its own (`cdc-<name>-replay`), so that nobody is fenced. A snapshot of the table first; then the pipeline
has to pass the end of the log that the snapshot saw, because a row that is not published yet must not come as a replay before
it has come at all. Then the chosen rows, in the order of the log as far as the table tells it, in Kafka transactions.

Rules.
- Key, id and `ce_time` are those of the row; the marker (`ce_replay`) is `replay:ID`, one ID for each run.
- A replay stands just below the position that was committed when it began: after all that was published before, and before
  all that is published later. A consumer that goes by places takes it for neither lost nor newer than what is under way.
- A row that cannot become a record was a dead letter the first time, and is left out and counted.
- A run that was killed may have published a part. Its records are marked, so doing it again is safe, with another ID.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from psycopg import sql

from cdc.audit.outgoing import Outgoing, before
from cdc.audit.table_rows import TableRows, condition, looking, table_rows
from cdc.avro.registry import Registry
from cdc.errors import ConfigurationError, ContinuityError, InvalidEvent
from cdc.event import Record
from cdc.kafka.publisher import KafkaPublisher
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.replay import marked
from cdc.outbox.router import Router
from cdc.position import Lsn, Position
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.slot import Table
from cdc.resilience.call import nobody_waits

POLL_S = 0.1
"""Between two looks at the position, which moves once a second when the log is quiet."""

RESTART_S = 3.0
"""How long a pipeline that does not run is given to come back; without one the position stands still."""

ABORT_S = 5.0
"""How long leaving may take, so that readers need not wait for the timeout of an open Kafka transaction."""

Progress = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows are meant: all that fulfil everything that is given. Times are microseconds since 1970, `until_us` exclusive."""

    ids: Sequence[str] = ()
    keys: Sequence[str] = ()
    since_us: int | None = None
    until_us: int | None = None
    where: str | None = None

    def condition(self, rows: TableRows) -> sql.Composable:
        """Return it as SQL; raises ConfigurationError when nothing is chosen, or when the table cannot tell."""
        parts: list[sql.Composable] = []
        for key, texts in (("id", self.ids), ("aggregateid", self.keys)):
            if texts:
                listed = sql.SQL(", ").join(map(sql.Literal, texts))
                parts.append(sql.SQL("{} IN ({})").format(rows.column(key), listed))
        for option, relation, moment in (("--since", ">=", self.since_us), ("--until", "<", self.until_us)):
            if moment is not None:
                rows.need_time(option)
                parts.append(sql.SQL("{} {} {}").format(rows.timed, sql.SQL(relation), sql.Literal(moment)))
        if self.where is not None:
            parts.append(condition(self.where))
        if not parts:
            raise ConfigurationError("it is not said which rows", "choose by --id, --key, --since, --until or --where")
        return sql.SQL(" AND ").join(parts)


@dataclass(slots=True)
class Replayed:
    """What was, or would be, published: records by topic, and rows that were left out, by reason."""

    replay_id: str
    topics: dict[str, int] = field(default_factory=dict)
    invalid: dict[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """Return what `--json` prints."""
        published = sum(self.topics.values())
        return {"replay": self.replay_id, "published": published, "topics": self.topics, "invalid": sum(self.invalid.values())}


@dataclass(frozen=True, slots=True)
class Replay:
    """Both ends and the choice. `position` reads the pipeline's position, `running` tells whether somebody moves it."""

    dsn: str
    application_name: str
    table: Table
    mapping: OutboxMapping
    registry: Registry
    publisher: KafkaPublisher
    catalog: LiveCatalog
    position: Callable[[], Position | None]
    running: Callable[[], bool]
    choice: Choice
    to_topic: str | None = None

    def planned(self, replay_id: str, progress: Progress) -> Replayed:
        """Count what would be published; changes nothing."""
        found = Replayed(replay_id)
        rows = table_rows(self.catalog, self.table, self.mapping)
        router = Router(self.mapping, self.registry.encoder, 0)
        with looking(self.dsn, self.application_name) as view:
            for row in rows.read(view, Lsn(0), self.choice.condition(rows)):
                try:
                    topic = self.to_topic or router.route(row.row).topic
                except InvalidEvent as error:
                    found.invalid[error.reason] = found.invalid.get(error.reason, 0) + 1
                else:
                    found.topics[topic] = found.topics.get(topic, 0) + 1
                progress(1)
        return found

    def carried_out(self, replay_id: str, timeout_s: float, progress: Progress) -> Replayed:
        """Publish; what was committed before an error stays published."""

        def change(record: Record) -> Record:
            if self.to_topic is not None:
                record = record._replace(topic=self.to_topic, partition=-1)
            return marked(record, self.mapping, f"replay:{replay_id}")

        def commit() -> None:
            self.publisher.commit(None, nobody_waits)

        rows = table_rows(self.catalog, self.table, self.mapping)
        with looking(self.dsn, self.application_name) as view, ExitStack() as leaving:
            position = self._passed(view.lsn, timeout_s)
            router = Router(self.mapping, self.registry.encoder, position.generation)
            self.publisher.fence(nobody_waits)
            leaving.callback(self.publisher.abort, ABORT_S)
            outgoing = Outgoing(self.publisher, router, position.generation, None, commit, change)
            chosen = rows.read(view, before(position.end_lsn), self.choice.condition(rows))
            outgoing.publish((row.row for row in chosen), progress)
            if self.publisher.opened_at is not None:
                commit()
        return Replayed(replay_id, outgoing.topics, outgoing.invalid)

    def _passed(self, lsn: Lsn, timeout_s: float) -> Position:
        """Wait until the pipeline has published everything that the snapshot shows; raises ContinuityError when it does not."""
        began = time.monotonic()
        while (position := self.position()) is None or position.end_lsn < lsn:
            waited = time.monotonic() - began
            if waited >= timeout_s or (waited >= RESTART_S and not self.running()):
                at = "there is no position" if position is None else f"the position is {position.end_lsn}"
                msg = f"not everything in the table is published yet: {at}, the table was read at {lsn}"
                raise ContinuityError(msg, "let `cdc run` catch up: what it has not published yet must not come as a replay first")
            time.sleep(POLL_S)
        if position.hold is not None:
            msg = f"a command holds the pipeline: {position.hold}"
            raise ContinuityError(msg, "let it end, or run it again if it was interrupted")
        return position
