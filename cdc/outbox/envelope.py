"""A value for consumers that have no Avro: the validated JSON payload inside a CloudEvents envelope; values in, values out.

The form is CloudEvents 1.0 in JSON ("JSON Event Format", section 3), beside which stand `version`, the number of the schema
version, and `metadata`: the event's place (`sequence`), and what the row's headers say of correlation and trace. `data` comes last and
is the payload's own text, byte for byte, so that it can be compared with the row it came from.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import orjson

CONTENT_TYPE = "application/cloudevents+json"

METADATA = {"correlationid": b"correlation_id", "causationid": b"causation_id", "traceparent": b"traceparent", "tracestate": b"tracestate"}
"""Headers that the envelope takes along, with their names in it."""

_DATA = b',"data":'
"""What the payload follows; it cannot stand in a text before, where quotes are escaped."""


def enveloped(  # noqa: PLR0913, PLR0917 - one for each part, on the hot path
    source: bytes,
    event_type: bytes,
    dataschema: str,
    event_id: bytes,
    subject: bytes | None,
    time: bytes,
    sequence: bytes,
    data: bytes | str,
    headers: Iterable[tuple[str, bytes | None]],
) -> bytes:
    """Return the envelope of a payload; a subject that is no text (a bytea key) is left out."""
    about = b"" if subject is None else _text(subject)
    told = b"".join(b',"%b":%b' % (METADATA[name], _text(value)) for name, value in headers if name in METADATA and value)
    return b'%b,"id":%b%b,"time":"%b","metadata":{"sequence":"%b"%b},"data":%b}' % (
        _head(source, event_type, dataschema),
        _text(event_id),
        b',"subject":' + about if about else b"",
        time,
        sequence,
        told,
        data.encode() if isinstance(data, str) else data,
    )


def data_of(envelope: bytes) -> bytes:
    """Return the payload in an envelope, as the row had it; raises ValueError for what `enveloped` did not make."""
    return envelope[envelope.index(_DATA) + len(_DATA) : -1]


@lru_cache(10_000)
def _head(source: bytes, event_type: bytes, dataschema: str) -> bytes:
    """Return what all events of a type and version share."""
    common = {
        "specversion": "1.0",
        "source": source.decode(),
        "type": event_type.decode(),
        "datacontenttype": "application/json",
        "dataschema": dataschema,
        "version": int(dataschema.rpartition("/")[2]),
    }
    return orjson.dumps(common)[:-1]


def _text(value: bytes) -> bytes:
    try:
        return orjson.dumps(value.decode())
    except UnicodeDecodeError:
        return b""
