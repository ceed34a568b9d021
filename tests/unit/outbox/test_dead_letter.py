"""What is kept of a row that cannot become a record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import InvalidEvent
from cdc.event import Record, record_size
from cdc.outbox.dead_letter import KEY_LIMIT, MESSAGE_LIMIT, STAGES, dead_letter
from cdc.outbox.mapping import NAME_LIMIT

VALUES: dict[str, bytes | None] = {"id": b"e1", "aggregateid": b"k1", "type": b"T", "payload": b'{"n":"x"}'}
ERROR = InvalidEvent("schema", "$.n: an int expected, string came", "mend it")
SEQUENCE = "0003" + "00000016b374d848" + "00000002"


def made(values: dict[str, bytes | None] | None = None, error: InvalidEvent = ERROR, **changes: Any) -> Record:  # noqa: ANN401 - parameters
    given: dict[str, Any] = {"pipeline": "shop", "sequence": SEQUENCE, "timestamp_ms": 5, "meant_for": "orders", "limit_bytes": 1_000_000}
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
    assert record.headers[-1] == ("cdc.payload.bytes", b"2000")
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
