"""`cdc init --from-debezium` by what a connector leaves behind: its slot, its offsets and the events that it had published.

The connector is played by a producer, so that it can stop at any place; the real one is in test_from_debezium.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple

import pytest
from confluent_kafka import Producer

from cdc.audit.takeover import Offset, offset_of
from cdc.errors import ContinuityError
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.table import create_sql
from cdc.position import Lsn
from cdc.postgres.slot import Table
from cdc.settings.debezium import POSTGRES
from tests.integration.test_recover import verified
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


class Played:
    """A connector that has stopped, as far as anybody can see it."""

    def __init__(self, pipeline: Pipeline, publication: str) -> None:
        self.pipeline = pipeline
        pipeline.slot_name = f"{pipeline.name}_dbz"
        pipeline.set(postgres__slot=pipeline.slot_name, topics__headers="debezium", topics__value="json")
        pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
        pipeline.execute(f"CREATE PUBLICATION dbz {publication}")
        pipeline.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline.slot_name,))
        self.offsets = f"{pipeline.name}-offsets"
        self.producer = Producer({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
        self.file = pipeline.folder / "connector.json"
        config = {"connector.class": POSTGRES, "slot.name": pipeline.slot_name, "publication.name": "dbz", "topic.prefix": "p"}
        self.file.write_text(json.dumps({"name": "outbox", "config": config}))
        pipeline.make_topic(pipeline.topic)
        pipeline.make_topic(self.offsets)

    def publish(self, numbers: Sequence[int]) -> None:
        """Publish these events as the connector would."""
        found = "SELECT id::text, payload::text FROM outbox WHERE (payload ->> 'n')::int = %s"
        for number in numbers:
            [(identity, payload)] = self.pipeline.execute(found, (number,))
            self.producer.produce(self.pipeline.topic, payload, "k", headers=[("id", identity.encode())])
        self.producer.flush()

    def store(self, commit: Lsn, xid: int) -> None:
        """Write its offset, as Connect does."""
        document = {"lsn_proc": commit + 8, "lsn_commit": commit, "lsn": commit + 8, "txId": xid, "messageType": "INSERT"}
        self.producer.produce(self.offsets, json.dumps(document), json.dumps(["outbox", {"server": "p"}]))
        self.producer.flush()

    def insert(self, first: int, last: int) -> int:
        """Insert events in one transaction; return its number."""
        with self.pipeline.connection.transaction():
            self.pipeline.insert(first, last)
            [(xid,)] = self.pipeline.execute("SELECT pg_current_xact_id()::text::bigint")
        return int(xid)

    def refused(self, words: str, *arguments: str) -> None:
        """See that the place is not proved, and the slot left where it is."""
        _, *before = astuple(self.pipeline.slot())
        answer = self.pipeline.here("init", "--from-debezium", str(self.file), *(arguments or ("--offsets-topic", self.offsets)))
        assert answer.code == 4, answer.err
        assert words in answer.err
        assert astuple(self.pipeline.slot())[1:] == tuple(before)


def numbers(pipeline: Pipeline) -> list[int]:
    """The numbers of the events, in topic order."""
    return [json.loads(event.value or b"")["n"] for event in pipeline.events()]


def test_what_a_connector_had_not_published_of_its_last_transaction_is_and_the_pipeline_goes_on(pipeline: Pipeline) -> None:
    played = Played(pipeline, "FOR ALL TABLES")
    played.insert(1, 4)
    between = pipeline.lsn()
    xid = played.insert(5, 9)
    played.insert(10, 12)
    played.publish(range(1, 7))
    played.store(between, xid)
    made = pipeline.here("init", "--from-debezium", str(played.file), "--offsets-topic", played.offsets)
    assert "had published 6 of the events since" in made.err, made
    assert "6 were left, and are published" in made.err
    wait_for(lambda: len(numbers(pipeline)) >= 12)
    assert numbers(pipeline) == list(range(1, 13)), "the rest of its transaction, and what was written since it stopped"
    assert pipeline.slot().confirmed == pipeline.position()
    pipeline.started()
    pipeline.insert(13)
    wait_for(lambda: len(numbers(pipeline)) >= 13)
    assert numbers(pipeline) == list(range(1, 14))
    assert verified(pipeline) == {"rows": 13, "events": 13}
    pipeline.stop()
    again = pipeline.here("init", "--from-debezium", str(played.file), "--offsets-topic", played.offsets)
    assert "exists already" in again.err


def test_what_proves_nothing_is_refused_and_leaves_the_slot_as_it_was(pipeline: Pipeline) -> None:
    played = Played(pipeline, "FOR TABLE outbox")
    xid = played.insert(1, 2)
    after = pipeline.lsn()
    played.refused("has no topic 'connect-offsets'", "--timeout", "20")
    played.refused("has no offset of connector")
    played.store(Lsn(pipeline.slot().confirmed - 1), xid)
    played.refused("offsets only prove")
    played.store(Lsn(after + (1 << 40)), xid)
    played.refused("beyond the end of this server's log")
    played.store(pipeline.slot().confirmed, xid)
    played.refused("Kafka lacks what the connector has published: any event of the transaction")
    played.store(after, xid)
    played.publish([2])
    played.refused("Kafka lacks what the connector has published: event")
    assert numbers(pipeline) == [2], "nothing of what was refused is seen"
    played.publish([1])
    pipeline.init("--from-debezium", str(played.file), "--offsets-topic", played.offsets, create_table=False)
    assert len(pipeline.events()) == 2
    assert pipeline.here("init", "--from-debezium", str(played.file), "--existing", "skip").code == 2
    pipeline.set(postgres__slot="another")
    assert f"reads slot '{pipeline.slot_name}'" in pipeline.here("init", "--from-debezium", str(played.file)).err


def test_offsets() -> None:
    assert offset_of({"lsn_commit": 7, "lsn_proc": 9, "txId": (1 << 32) + 5}) == Offset(Lsn(7), 5)
    assert offset_of({"lsn_proc": 9}) == Offset(Lsn(9), 0)
    assert offset_of({"snapshot": "INITIAL", "last_snapshot_record": True}) == Offset(None, 0)
    for document in (None, {"snapshot": "INITIAL"}, {"snapshot": True}, {"lsn_commit": "7"}, {"lsn_commit": 0}):
        with pytest.raises(ContinuityError):
            offset_of(document)
