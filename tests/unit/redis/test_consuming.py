"""What a consumer says of Redis, and how entries come: values alone."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.consumer import Consumer
from cdc.errors import ConfigurationError, SinkRefused
from cdc.event import Record
from cdc.redis.consuming import Options, fitting
from cdc.redis.entry import entry_of, id_of, offset_of, seen
from cdc.redis.link import Wire
from cdc.redis.membership import unpacked

URL = "redis://somebody:secret@127.0.0.1/0"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "no url"),
        ({"url": 7}, "no url"),
        ({"url": URL, "maxlen": 1}, "no option 'maxlen'"),
        ({"url": URL, "streams": 0}, "0 streams"),
        ({"url": URL, "streams": "4"}, "'4' streams"),
        ({"url": URL, "session_s": 0.5}, "session_s of 0.5"),
        ({"url": URL, "session_s": "15"}, "session_s of '15'"),
        ({"url": URL, "session_s": float("nan")}, "session_s of nan"),
        ({"url": URL, "sentinel": "shop"}, "sentinel"),
        ({"url": URL, "sentinel": "shop@host:port"}, "sentinel"),
        ({"url": URL, "start": ["begin"]}, "start at"),
        ({"url": URL, "start": "now"}, "'now'"),
    ],
)
def test_a_wrong_option_is_told_where_the_consumer_is_declared(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        Consumer("c", topics=["t"], redis=table)
    assert "secret" not in str(caught.value)


def test_a_parameter_of_a_url_that_nobody_knows_is_named() -> None:
    with pytest.raises(ConfigurationError, match="parameter") as caught:
        Wire(f"{URL}?nonsense=1", "test").ask("PING")
    assert "nonsense" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("entry_id", [b"5-4194304", b"2199023255552-0"])
def test_an_id_that_is_no_number_of_ours_is_refused_not_mistaken_for_another(entry_id: bytes) -> None:
    with pytest.raises(SinkRefused, match="larger"):
        offset_of(entry_id)


def test_a_record_that_is_moved_keeps_its_last_headers() -> None:
    wide = Record("t", None, None, [(f"h{n}", b"") for n in range(9_000)], 0)
    assert len(entry_of(fitting(wide))) < 7_500
    assert fitting(wide).headers[-1] == ("h8999", b"")


@pytest.mark.parametrize("sinks", [{}, {"kafka": {"bootstrap.servers": "h:1"}, "redis": {"url": URL}}])
def test_a_consumer_has_one_broker(sinks: dict[str, dict[str, object]]) -> None:
    with pytest.raises(ConfigurationError, match="consumer c names"):
        Consumer("c", topics=["t"], **sinks)  # type: ignore[arg-type]  # tables by their names


def test_no_repr_shows_the_address() -> None:
    assert "secret" not in repr(Options.of({"url": URL}))


@given(st.lists(st.tuples(st.binary(max_size=30), st.lists(st.binary(max_size=300), max_size=8)), max_size=5))
def test_entries_come_as_they_were_packed(entries: list[tuple[bytes, list[bytes]]]) -> None:
    text = b""
    for entry_id, words in entries:
        every = [entry_id, *words]
        text += pack(f">{len(every) + 1}I", len(every), *map(len, every)) + b"".join(every)
    assert list(unpacked(text)) == entries


@given(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
    st.lists(st.tuples(st.sampled_from(["ce_id", "key", "data", "timestamp", "header:key"]), st.binary(max_size=5)), max_size=4),
    st.sampled_from([0, 1_700_000_000_000]),
)
def test_a_record_that_was_moved_is_read_as_it_was(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp_ms: int
) -> None:
    found = seen("t", 0, b"1800000000000-3", entry_of(Record("t", key, value, headers, timestamp_ms)))
    assert (found.key, found.value, found.headers) == (key, value, headers)
    assert found.timestamp_ms == (timestamp_ms or 1_800_000_000_000)
    assert id_of(found.offset) == "1800000000000-3"
    assert offset_of(id_of(found.offset).encode()) == found.offset
