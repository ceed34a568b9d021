"""From a row to the record that it becomes, or to the reason why it cannot."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import InvalidEvent
from cdc.event import Record
from cdc.outbox import router as module
from cdc.outbox.mapping import NAME_LIMIT
from cdc.outbox.router import Router, fill, sequence
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin
from tests.unit.outbox.samples import BEGIN, BODY, BYTEA, ROW, SEQUENCE, TIMESTAMPTZ, Asked, relation, router, row


def header(record: Record, name: str) -> bytes | None:
    [value] = [value for key, value in record.headers if key == name]
    return value


def names(record: Record) -> list[str]:
    return [name for name, _ in record.headers]


def refused(made: Router, *args: object, **changes: object) -> InvalidEvent:
    with pytest.raises(InvalidEvent) as caught:
        made.route(row(*args, **changes))  # type: ignore[arg-type]  # passed on
    assert "secret" not in str(caught.value)
    return caught.value


# the record


def test_a_row_with_debeziums_columns() -> None:
    assert router().route(row(ordinal=2)) == Record(
        topic="outbox.event.order",
        key=b"k1",
        value=b"\0\0\0\0\x08" + BODY,
        headers=[
            ("ce_specversion", b"1.0"),
            ("ce_id", b"e1"),
            ("ce_source", b"/shop"),
            ("ce_type", b"OrderPlaced"),
            ("ce_time", b"2027-01-15T08:00:00.123456Z"),
            ("ce_sequence", SEQUENCE + b"00000002"),
            ("content-type", b"application/avro"),
            ("ce_dataschema", b"OrderPlaced/2"),
        ],
        timestamp_ms=1_800_000_000_123,
        partition=-1,
    )


def test_the_columns_may_stand_in_any_order_among_others() -> None:
    values = {"noise": b"?", **dict(reversed(ROW.items())), "more": None}
    assert router().route((BEGIN, relation(*values), 0, tuple(values.values()))) == router().route(row())


def test_a_null_key_stays_null_and_an_empty_one_empty() -> None:
    assert router().route(row(aggregateid=None)).key is None
    assert router().route(row(aggregateid=b"")).key == b""


def test_a_json_value_is_the_validated_text_and_an_avro_payload_passes_through() -> None:
    record = router(value="json").route(row())
    assert (record.value, header(record, "content-type")) == (ROW["payload"], b"application/json")
    passed = router(payload="avro").route(row(payload=b"\\x" + BODY.hex().encode(), types={"payload": BYTEA}))
    assert passed.value == b"\0\0\0\0\x08" + BODY


def test_a_bytea_key_is_its_bytes() -> None:
    assert router().route(row(aggregateid=b"\\x00ff", types={"aggregateid": BYTEA})).key == b"\0\xff"
    assert router().route(row(aggregateid=None, types={"aggregateid": BYTEA})).key is None
    assert refused(router(), aggregateid=b"\\xzz", types={"aggregateid": BYTEA}).reason == "mapping"


# its place


@given(st.integers(0, 0xFFFF), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_sequence_sorts_as_text_as_its_parts_sort(generation: int, lsn: int, ordinal: int) -> None:
    text = sequence(generation, Begin(Lsn(lsn), 0, 1), ordinal)
    assert len(text) == 28
    assert (int(text[:4], 16), int(text[4:20], 16), int(text[20:], 16)) == (generation, lsn, ordinal)
    for later in ((generation + 1, 0, 0), (generation, lsn + 1, 0), (generation, lsn, ordinal + 1)):
        if later[0] <= 0xFFFF and later[1] < 2**64 and later[2] < 2**32:
            assert text < sequence(later[0], Begin(Lsn(later[1]), 0, 1), later[2])


def test_the_record_carries_the_same_sequence_and_each_transaction_its_own() -> None:
    made, other = router(), Begin(Lsn(0xABC), 1_000_000, 9)
    first, second = made.route(row(1)), made.route(row(0, begin=other))
    assert header(first, "ce_sequence") == sequence(3, BEGIN, 1).encode()
    assert header(second, "ce_sequence") == sequence(3, other, 0).encode()
    assert (header(second, "ce_time"), second.timestamp_ms) == (b"1970-01-01T00:00:01.000000Z", 1_000)


# type, subject, version


def test_the_schema_version_of_a_row() -> None:
    record = router().route(row(schema_version=b"1"))
    assert header(record, "ce_dataschema") == b"OrderPlaced/1"
    assert header(router().route(row(schema_version=None)), "ce_dataschema") == b"OrderPlaced/2"
    assert refused(router(), schema_version=b"-1").what == "outbox.columns.schema_version is not a whole number of zero or more"
    assert refused(router(), schema_version=b"9").reason == "schema"


def test_the_schema_version_in_a_rows_headers() -> None:
    record = router().route(row(headers=b'{"schema_version":1}'))
    assert header(record, "ce_dataschema") == b"OrderPlaced/1"
    assert header(router().route(row(schema_version=b"1", headers=b'{"schema_version":9}')), "ce_dataschema") == b"OrderPlaced/1"
    assert header(router().route(row(schema_version=None, headers=b'{"schema_version":1}')), "ce_dataschema") == b"OrderPlaced/1"


def test_the_subject_is_a_template() -> None:
    record = router(subject="{aggregatetype}-{type}").route(row())
    assert header(record, "ce_dataschema") == b"order-OrderPlaced/1"
    assert refused(router(subject="{aggregatetype}-{type}"), aggregatetype=None).what.startswith("the row has no aggregatetype")


def test_a_row_without_type_or_id_is_refused() -> None:
    assert refused(router(), type=None).what == "the row has no type: outbox.columns.type is NULL or missing in the payload"
    assert refused(router(), id=None).what == "the row has no id: outbox.columns.id is NULL or missing in the payload"


@pytest.mark.parametrize("key", ["id", "type"])
def test_an_id_or_a_type_that_is_no_header_is_refused(key: str) -> None:
    made = router(subject="OrderPlaced")
    assert made.route(row(**{key: b"x" * NAME_LIMIT}))  # type: ignore[arg-type]  # a column
    assert refused(made, **{key: b"x" * (NAME_LIMIT + 1)}).what == f"outbox.columns.{key} has more than {NAME_LIMIT} bytes"


# topics


def test_the_topic_column_comes_before_the_template() -> None:
    made = router()
    assert made.route(row(topic=b"special")).topic == "special"
    assert made.route(row(topic=None)).topic == "outbox.event.order"
    assert router(route="fixed").route(row(topic=None)).topic == "fixed"


def test_a_template_may_name_any_keys() -> None:
    assert router(route="{type}.{aggregatetype}.{id}").route(row()).topic == "OrderPlaced.order.e1"
    assert refused(router(), aggregatetype=None).reason == "mapping"


def test_the_topic_that_a_refused_row_was_meant_for() -> None:
    made = router()
    assert made.topic_of({"aggregatetype": b"order"}) == "outbox.event.order"
    assert made.topic_of({"topic": b"special"}) == "special"
    assert made.topic_of({"aggregatetype": None}) == ""


# partition


def test_the_partition_column() -> None:
    made = router()
    assert made.route(row(partition=b"7")).partition == 7
    assert made.route(row(partition=None)).partition == -1
    error = refused(made, partition=b"-1")
    assert (error.reason, error.what) == ("route", "outbox.columns.partition is not a whole number of zero or more")


# tombstones


def test_a_null_payload_is_a_tombstone() -> None:
    record = router().route(row(payload=None))
    assert record.value is None
    assert "content-type" not in names(record)
    assert "ce_dataschema" not in names(record)


def test_a_tombstone_is_refused_where_they_are_off() -> None:
    assert refused(router(tombstones=False), payload=None).reason == "tombstone"


# time


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"2026-01-31 12:00:00.123456+00", b"2026-01-31T12:00:00.123456Z"),
        (b"2026-01-31 12:00:00+05:30", b"2026-01-31T12:00:00+05:30"),
    ],
)
def test_occurred_at_is_the_time_of_the_event(value: bytes, text: bytes) -> None:
    record = router().route(row(occurred_at=value, types={"occurred_at": TIMESTAMPTZ}))
    assert header(record, "ce_time") == text
    assert record.timestamp_ms == BEGIN.commit_time_us // 1000, "the record's own time is that of the commit"


def test_occurred_at_in_text_or_null() -> None:
    assert header(router().route(row(occurred_at=b"2026-01-31T12:00:00Z")), "ce_time") == b"2026-01-31T12:00:00Z"
    assert header(router().route(row(occurred_at=None)), "ce_time") == b"2027-01-15T08:00:00.123456Z"


@pytest.mark.parametrize("value", [b"infinity", b"-infinity", b"0044-03-15 12:00:00+00 BC", b"secret"])
@pytest.mark.parametrize("type_oid", [TIMESTAMPTZ, 25])
def test_a_time_that_is_none_is_refused(value: bytes, type_oid: int) -> None:
    assert refused(router(), occurred_at=value, types={"occurred_at": type_oid}).reason == "mapping"


# the row's own headers


def test_own_headers_come_after_ours() -> None:
    record = router().route(row(headers=b'{"correlationid":"c","n":1,"none":null,"list":[1]}'))
    assert record.headers[-4:] == [("correlationid", b"c"), ("n", b"1"), ("none", None), ("list", b"[1]")]
    assert names(router().route(row(headers=None))) == names(router().route(row()))


@pytest.mark.parametrize("name", ["ce_id", "CE_anything", "content-type", "Content-Type", "cdc.reason", "__connect.errors.topic"])
def test_a_reserved_header_is_refused(name: str) -> None:
    error = refused(router(), headers=b'{"' + name.encode() + b'":"secret"}')
    assert (error.reason, error.what) == ("mapping", f"outbox.columns.headers has a reserved name at $.{name}")


@pytest.mark.parametrize("value", [b"[]", b"secret", b"1", b""])
def test_headers_that_are_no_object_are_refused(value: bytes) -> None:
    assert refused(router(), headers=value).what == "outbox.columns.headers is not a JSON object"


def test_a_traceparent_column_comes_before_a_header_of_that_name() -> None:
    record = router().route(row(headers=b'{"traceparent":"old","a":"b"}', traceparent=b"new"))
    assert header(record, "traceparent") == b"new"
    assert header(record, "a") == b"b"
    assert header(router().route(row(headers=b'{"traceparent":"old"}', traceparent=None)), "traceparent") == b"old"


# paths into the payload


def test_keys_are_found_in_the_payload() -> None:
    columns = {key: f"payload.meta.{key}" for key in ("id", "aggregateid", "type", "aggregatetype", "partition", "topic", "headers")}
    made = router(columns=columns, value="json", subject="OrderPlaced")
    payload = (
        b'{"n":5,"meta":{"id":"e9","aggregateid":"k9","type":"T","aggregatetype":"till","partition":4,"topic":null,"headers":{"h":"1"}}}'
    )
    with pytest.raises(InvalidEvent) as unknown:  # the encoder knows no such field, which shows that all was found before
        made.route((BEGIN, relation("payload"), 0, (payload,)))
    assert unknown.value.reason == "schema"


def test_a_path_of_the_payload() -> None:
    made = router(columns={"type": "payload.kind", "occurred_at": "payload.at"}, subject="OrderPlaced")
    record = made.route(
        (BEGIN, relation("id", "aggregatetype", "aggregateid", "payload"), 0, (b"e", b"order", b"k", b'{"n":5,"kind":"Placed"}'))
    )
    assert header(record, "ce_type") == b"Placed"
    assert header(record, "ce_time") == b"2027-01-15T08:00:00.123456Z"


def test_a_path_may_begin_with_the_payloads_column() -> None:
    made = router(columns={"type": "body.kind", "payload": "body"}, subject="OrderPlaced")
    values = (b"e", b"order", b"k", b'{"n":5,"kind":"Placed"}')
    assert header(made.route((BEGIN, relation("id", "aggregatetype", "aggregateid", "body"), 0, values)), "ce_type") == b"Placed"


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b'{"n":5}', "the row has no type"),
        (b'{"n":5,"kind":null}', "the row has no type"),
        (b"[]", "the row has no type"),
        (b'{"kind":["secret"]}', "$.kind: a string expected for outbox.columns.type, list came"),
        (b'{"kind":true}', "$.kind: a string expected for outbox.columns.type, bool came"),
        (b"secret", "the payload is not JSON"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(payload: bytes, said: str) -> None:
    made = router(columns={"type": "payload.kind"}, subject="OrderPlaced")
    with pytest.raises(InvalidEvent) as caught:
        made.route((BEGIN, relation("id", "aggregatetype", "aggregateid", "payload"), 0, (b"e", b"order", b"k", payload)))
    assert said in caught.value.what
    assert "secret" not in str(caught.value)


def test_a_tombstone_has_no_paths() -> None:
    made = router(columns={"occurred_at": "payload.at"})
    assert made.route(row(payload=None)).value is None


# names


def test_field_case_50_names_with_capitals_and_dots() -> None:
    made = router(columns={"type": "Event.Type", "aggregateid": "Größe"})
    values = {"id": b"e", "aggregatetype": b"order", "Größe": b"k", "Event.Type": b"OrderPlaced", "payload": ROW["payload"]}
    record = made.route((BEGIN, relation(*values), 0, tuple(values.values())))
    assert (record.key, header(record, "ce_type")) == (b"k", b"OrderPlaced")


def test_a_renamed_column_makes_rows_invalid_until_it_is_back() -> None:
    made = router()
    renamed = (BEGIN, relation("id", "aggregatetype", "aggregate_id", "type", "payload"), 0, tuple(ROW.values()))
    assert made.route(row())
    with pytest.raises(InvalidEvent) as caught:
        made.route(renamed)
    assert (caught.value.reason, caught.value.what) == ("mapping", "the table has no column 'aggregateid' for outbox.columns.aggregateid")
    assert made.values(renamed) == {key: value for key, value in ROW.items() if key != "aggregateid"}
    assert made.route(row(1)).key == b"k1"


def test_the_mapped_values_of_a_row() -> None:
    assert router().values(row()) == ROW


# what is remembered


def test_encoders_and_topics_are_looked_up_once() -> None:
    asked = Asked()
    made, same = router(asked), row()
    for _ in range(3):
        made.route(same)
    assert asked.calls == [("OrderPlaced", None)]
    made.forget_schemas()
    made.route(same)
    assert len(asked.calls) == 2


def test_a_refusal_is_not_remembered() -> None:
    asked = Asked()
    made, same = router(asked), row(type=b"Unknown")
    for _ in range(2):
        with pytest.raises(InvalidEvent):
            made.route(same)
    assert len(asked.calls) == 2


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_LIMIT", 3)
    made = router()
    table = relation(*ROW)
    for i in range(10):
        values = tuple((ROW | {"aggregatetype": b"t%d" % i}).values())
        assert made.route((BEGIN, table, i, values)).topic == f"outbox.event.t{i}"
    assert len(made._topics) <= 3


def test_headers_are_not_shared_between_records() -> None:
    made = router()
    first = made.route(row(headers=b'{"a":"b"}'))
    first.headers.append(("x", b"y"))
    assert ("x", b"y") not in made.route(row(1, headers=b'{"a":"b"}')).headers


def test_the_repr_names_the_table() -> None:
    made = router()
    assert repr(made) == "<Router>"
    made.route(row())
    assert repr(made) == "<Router public.outbox>"


def test_a_router_that_has_seen_no_table_converts_nothing() -> None:
    with pytest.raises(AssertionError, match="no relation yet"):
        router()._convert((), b"", b"", 0)


def test_a_template_is_filled_with_text() -> None:
    assert fill("a.{type}.{type}", {"type": "é".encode()}) == "a.é.é"
    assert fill("fixed", {}) == "fixed"
    with pytest.raises(InvalidEvent, match="the row has no type"):
        fill("{type}", {"type": None})


@given(st.lists(st.sampled_from(["headers", "topic", "partition", "traceparent", "occurred_at", "schema_version"]), unique=True))
def test_every_set_of_optional_columns_makes_the_same_record_when_they_are_null(optional: list[str]) -> None:
    changes: dict[str, bytes | None] = dict.fromkeys(optional)
    assert router().route(row(**changes)) == router().route(row())  # type: ignore[arg-type]  # columns


def test_a_relation_that_comes_again_unchanged_is_taken_as_new() -> None:
    made, same = router(), row()
    again = dataclasses.replace(same[1])
    assert made.route(same) == made.route((same[0], again, same[2], same[3]))
