"""The CloudEvents envelope of a JSON payload."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.outbox.envelope import data_of, enveloped
from tests.unit.outbox.samples import ROW, SEQUENCE, router, row

JSON = st.dictionaries(st.text(max_size=20), st.integers() | st.text(max_size=20), max_size=3)


def test_a_row_in_an_envelope() -> None:
    headers = b'{"correlationid": "c1", "tenant": "a"}'
    record = router(value="envelope").route(row(headers=headers, traceparent=b"00-ab-cd-01"))
    assert record.value is not None
    assert json.loads(record.value) == {
        "specversion": "1.0",
        "source": "/shop",
        "type": "OrderPlaced",
        "datacontenttype": "application/json",
        "dataschema": "OrderPlaced/2",
        "version": 2,
        "id": "e1",
        "subject": "k1",
        "time": "2027-01-15T08:00:00.123456Z",
        "metadata": {"sequence": (SEQUENCE + b"00000000").decode(), "correlation_id": "c1", "traceparent": "00-ab-cd-01"},
        "data": json.loads(ROW["payload"] or b""),
    }
    assert ("content-type", b"application/cloudevents+json") in record.headers
    assert ("ce_id", b"e1") in record.headers, "the headers stay as they are"


def test_a_tombstone_has_none_and_a_key_that_is_no_text_is_left_out() -> None:
    assert router(value="envelope").route(row(payload=None)).value is None
    assert b'"subject"' not in enveloped(b"/shop", b"T", "T/1", b"e", b"\xff", b"t", b"s", b"{}", ())


@given(JSON, st.text(), st.text(), st.text())
def test_the_payload_is_found_again_byte_for_byte(data: object, event_id: str, key: str, correlation: str) -> None:
    payload = json.dumps(data, ensure_ascii=False).encode(errors="replace")
    texts = [text.encode(errors="replace") for text in (event_id, key, correlation)]
    made = enveloped(b"/shop", b"T", "T/1", texts[0], texts[1], b"t", b"s", payload, [("correlationid", texts[2])])
    document = json.loads(made)
    assert document["data"] == json.loads(payload)
    assert document["id"].encode() == texts[0]
    assert data_of(made) == payload


def test_what_is_no_envelope_of_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="not found"):
        data_of(b'{"data": 1}')
