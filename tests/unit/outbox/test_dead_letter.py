"""What is kept of a row that cannot become a record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import InvalidEvent
from cdc.event import Record, record_size
from cdc.outbox.dead_letter import KEY_LIMIT, MESSAGE_LIMIT, STAGES, dead_letter, original
from cdc.outbox.mapping import NAME_LIMIT, OutboxMapping
from cdc.outbox.router import Router, sequence
from cdc.postgres.transaction import Row
from tests.unit.outbox.samples import BEGIN, BYTEA, TIMESTAMPTZ, router, row

VALUES: dict[str, bytes | None] = {"id": b"e1", "aggregateid": b"k1", "type": b"T", "payload": b'{"n":"x"}'}
ERROR = InvalidEvent("schema", "$.n: an int expected, string came", "mend it")
SEQUENCE = "0003" + "00000016b374d848" + "00000002"


def made(values: dict[str, bytes | None] | None = None, error: InvalidEvent = ERROR, **changes: Any) -> Record:  # noqa: ANN401 - parameters
    given: dict[str, Any] = {
        "pipeline": "shop",
        "sequence": SEQUENCE,
        "commit_time_us": 5_001,
        "meant_for": "orders",
        "limit_bytes": 1_000_000,
    }
    return dead_letter("dead", VALUES if values is None else values, error, **(given | changes))


def test_the_original_bytes_and_why_and_where_to() -> None:
    assert made() == Record(
        "dead",
        b"k1",
        b'{"n":"x"}',
        [
            ("cdc.reason", b"schema"),
            ("cdc.id", b"e1"),
            ("cdc.sequence", SEQUENCE.encode()),
            ("cdc.type", b"T"),
            ("cdc.time", b"1970-01-01T00:00:00.005001Z"),
            ("__connect.errors.topic", b"orders"),
            ("__connect.errors.partition", b""),
            ("__connect.errors.offset", b""),
            ("__connect.errors.connector.name", b"shop"),
            ("__connect.errors.task.id", b"0"),
            ("__connect.errors.stage", b"VALUE_CONVERTER"),
            ("__connect.errors.class.name", b"cdc"),
            ("__connect.errors.exception.class.name", b"InvalidEvent"),
            ("__connect.errors.exception.message", b"$.n: an int expected, string came. Fix: mend it"),
            ("__connect.errors.exception.stacktrace", b""),
            ("cdc.row", b'{"id": "e1", "type": "T"}'),
        ],
        5,
    )


def test_there_are_connects_ten_headers() -> None:
    assert sum(name.startswith("__connect.errors.") for name, _ in made().headers) == 10


@pytest.mark.parametrize(
    ("reason", "stage"), [*STAGES.items(), ("mapping", "TRANSFORMATION"), ("tombstone", "TRANSFORMATION")], ids=lambda value: value
)
def test_the_stage_is_connects(reason: str, stage: str) -> None:
    assert ("__connect.errors.stage", stage.encode()) in made(error=InvalidEvent(reason, "what")).headers


def test_what_a_row_does_not_have_is_empty() -> None:
    record = made({})
    assert (record.key, record.value) == (None, None)
    assert {("cdc.id", b""), ("cdc.type", b"")} <= set(record.headers)


def test_a_payload_over_the_limit_is_left_out_and_its_size_told() -> None:
    record = made(VALUES | {"payload": b"x" * 2_000}, limit_bytes=1_500)
    assert (record.key, record.value) == (b"k1", None)
    assert record.headers[-2:] == [("cdc.payload.bytes", b"2000"), ("cdc.row", b'{"id": "e1", "type": "T"}')]
    exact = record_size(made(VALUES | {"payload": b"x" * 2_000}))
    assert made(VALUES | {"payload": b"x" * 2_000}, limit_bytes=exact).value is not None
    assert made(VALUES | {"payload": b"x" * 2_000}, limit_bytes=exact - 1).value is None


def test_a_long_key_is_left_out_as_well() -> None:
    assert made(VALUES | {"aggregateid": b"k" * KEY_LIMIT}, limit_bytes=500).key == b"k" * KEY_LIMIT
    record = made(VALUES | {"aggregateid": b"k" * (KEY_LIMIT + 1)}, limit_bytes=500)
    assert (record.key, record.value) == (None, None)


@given(
    st.fixed_dictionaries(
        {key: st.none() | st.integers(0, 50_000).map(lambda n: b"x" * n) for key in ("id", "aggregateid", "type", "payload")}
    ),
    st.text(max_size=50),
    st.integers(0, 50_000),
)
def test_whatever_the_row_holds_the_dead_letter_stays_below_a_topics_limit(values: dict[str, bytes | None], what: str, topic: int) -> None:
    record = made(values, InvalidEvent("schema", what * 1_000), meant_for="t" * topic, limit_bytes=24_000)
    assert record_size(record) <= 24_000


def test_long_texts_are_cut() -> None:
    record = made(VALUES | {"id": b"i" * 5_000, "type": b"t" * 5_000}, InvalidEvent("schema", "w" * 5_000), meant_for="m" * 5_000)
    headers = dict(record.headers)
    for name, limit in (
        ("cdc.id", NAME_LIMIT),
        ("cdc.type", NAME_LIMIT),
        ("__connect.errors.topic", NAME_LIMIT),
        ("__connect.errors.exception.message", MESSAGE_LIMIT),
    ):
        assert len(headers[name] or b"") == limit


def letter_of(event: Row, made_by: Router) -> Record:
    begin, _, ordinal, _ = event
    return dead_letter(
        "dead",
        made_by.values(event),
        ERROR,
        pipeline="shop",
        sequence=sequence(3, begin, ordinal),
        commit_time_us=begin.commit_time_us,
        meant_for="",
        limit_bytes=1_000_000,
    )


def restored(letter: Record, **mapping: Any) -> Row:  # noqa: ANN401 - fields of the mapping
    return original(OutboxMapping(**mapping), dict(letter.headers), letter.key, letter.value)


@pytest.mark.parametrize(
    ("event", "mapping"),
    [
        (row(7), {}),
        (row(payload=None), {}),
        (row(aggregateid=b"\\x00ff", payload=b"\\x" + b'{"n":5}'.hex().encode(), types={"aggregateid": BYTEA, "payload": BYTEA}), {}),
        (row(payload=b"\\x0a0278", types={"payload": BYTEA}), {"payload": "avro"}),
        (row(schema_version=b"1", headers=b'{"a":"\xc3\xa9"}', traceparent=b"00-1", topic=b"elsewhere", partition=b"3"), {}),
        (row(headers=b'{"schema_version":1}', occurred_at=b"2026-01-31 12:00:00.5+00", types={"occurred_at": TIMESTAMPTZ}), {}),
        (row(payload=b'{"n":5,"kind":"x"}'), {"columns": {"aggregateid": "payload.kind"}}),
        (row(payload=b"t", types={"payload": 16}, schema_version=b"3"), {}),
        (row(payload=b"\\x005c27ff", types={"payload": BYTEA}, schema_version=b"4"), {}),
        (row(occurred_at=None, topic=None), {"value": "json"}),
    ],
    ids=["json", "tombstone", "bytea", "avro", "columns", "headers", "path", "typed", "bytes", "value json"],
)
def test_the_row_is_restored_from_its_dead_letter(event: Row, mapping: dict[str, Any]) -> None:
    live = router(**mapping)
    again = router(**mapping).route(restored(letter_of(event, live), **mapping))
    assert again == live.route(event)


def test_bytes_that_are_not_text_are_restored() -> None:
    event = row(id=b"\xff\x00e", traceparent=b"\xc3")
    _, relation, _, values = restored(letter_of(event, router()))
    found = {column.name: value for column, value in zip(relation.columns, values, strict=True)}
    assert (found["id"], found["traceparent"]) == (b"\xff\x00e", b"\xc3")


def test_todays_mapping_decides_where_a_value_comes_from() -> None:
    letter = letter_of(row(type=b"Old", payload=b'{"kind":"New"}'), router())
    begin, relation, _, _ = restored(letter, columns={"type": "payload.kind"})
    assert (begin.final_lsn, begin.commit_time_us) == (BEGIN.final_lsn, BEGIN.commit_time_us)
    assert "type" not in [column.name for column in relation.columns]


def test_what_was_not_kept_cannot_be_restored() -> None:
    letter = made(VALUES | {"payload": b"x" * 2_000}, limit_bytes=1_500)
    with pytest.raises(InvalidEvent, match="did not keep the whole row"):
        restored(letter)
    with pytest.raises(InvalidEvent, match="did not keep the whole row"):
        restored(made()._replace(headers=[]))


def test_ids_by_a_path_are_in_the_dead_letter() -> None:
    mapping: dict[str, Any] = {"columns": {"id": "payload.meta.id", "type": "payload.kind", "aggregateid": "payload.missing"}}
    event = row(payload=b'{"n":"x","kind":"OrderPlaced","meta":{"id":"e-7"}}')
    letter = letter_of(event, router(**mapping))
    assert {("cdc.id", b"e-7"), ("cdc.type", b"OrderPlaced")} <= set(letter.headers)
    assert letter.key is None
    broken = letter_of(row(payload=b"not JSON"), router(**mapping))
    assert {("cdc.id", b""), ("cdc.type", b"")} <= set(broken.headers)
