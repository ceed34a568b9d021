"""The frames that publish a record, as bytes: what `message.properties_of` and pika would make of it, in a fifth of the time.

Called for each record there is. pika makes three objects, some forty pieces and three writes of a message; here it is one piece, and a
link writes many at once. Tests hold both against each other. AMQP 0-9-1: section 4.2.3 (frames), 4.2.6 (content), 4.2.5.5 (tables).
"""

from __future__ import annotations

from struct import Struct

from cdc.errors import Poisoned
from cdc.event import Record
from cdc.rabbitmq.message import HEADERS_BYTES, KEY, SHORT_BYTES, TIMESTAMP

FRAME, END = Struct(">BHI").pack, b"\xce"
METHOD, HEADER, BODY = 1, 2, 3

PUBLISH = b"\x00\x3c\x00\x28\x00\x00"
"""basic.publish (60, 40), and two bytes without a meaning."""

MANDATORY = b"\x01"

CONTENT = Struct(">HHQH").pack
"""Class, weight, length of the body, property flags."""

CONTENT_TYPE, HEADERS, DELIVERY_MODE, CORRELATION_ID, MESSAGE_ID, SENT, KIND = (1 << bit for bit in (15, 13, 12, 10, 7, 6, 5))

LONG, INT, UINT64, UINT32 = Struct(">cq").pack, Struct(">ci").pack, Struct(">Q").pack, Struct(">I").pack

INT_MAX = 2**31

PERSISTENT = b"\x02"


class Frames:
    """Makes the frames of records on one channel; `queues` are published to by name, everything else goes to the exchange."""

    def __init__(self, channel: int, body_max: int, exchange: str, queues: frozenset[str]) -> None:
        self._channel = channel
        self._body_max = body_max
        self._exchange = exchange
        self._queues = queues
        self._methods: dict[str, bytes] = {}
        self._names: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"<Frames for {self._exchange or 'queues'}>"

    def __call__(self, record: Record) -> bytes:
        """Return method, header and body."""
        topic, _, value, _, _, _ = record
        method = self._methods.get(topic) or self._method(topic)
        body = value or b""
        header = self._header(record, len(body))
        channel, size = self._channel, len(body)
        if not size:
            return b"%b%b%b%b" % (method, FRAME(HEADER, channel, len(header)), header, END)
        if size <= self._body_max:
            head, middle = FRAME(HEADER, channel, len(header)), FRAME(BODY, channel, size)
            return b"%b%b%b%b%b%b%b" % (method, head, header, END, middle, body, END)
        parts = [body[start : start + self._body_max] for start in range(0, size, self._body_max)]
        frames = [FRAME(BODY, channel, len(part)) + part + END for part in parts]
        return b"".join([method, FRAME(HEADER, channel, len(header)), header, END, *frames])

    def _header(self, record: Record, size: int) -> bytes:
        _, key, _, listed, timestamp_ms, _ = record
        headers = dict(listed)
        content_type = headers.pop("content-type", None)
        if "cdc.row" in headers and sum(len(value or b"") for _, value in listed) > HEADERS_BYTES:
            del headers["cdc.row"]
        if key is not None:
            headers[KEY] = key
        packed, flags = self._table(headers, timestamp_ms), HEADERS | DELIVERY_MODE
        before = correlation = identity = sent = kind = b""
        if short := _short(content_type):
            before, flags = short, flags | CONTENT_TYPE
        if short := _short(headers.get("correlationid")):
            correlation, flags = short, flags | CORRELATION_ID
        if short := _short(headers.get("ce_id") or headers.get("id") or headers.get("cdc.id")):
            identity, flags = short, flags | MESSAGE_ID
        if timestamp_ms:
            sent, flags = UINT64(timestamp_ms // 1000), flags | SENT
        if short := _short(headers.get("ce_type") or headers.get("cdc.type")):
            kind, flags = short, flags | KIND
        head = CONTENT(60, 0, size, flags)
        return b"".join((head, before, UINT32(len(packed)), packed, PERSISTENT, correlation, identity, sent, kind))

    def _table(self, headers: dict[str, bytes | None], timestamp_ms: int) -> bytes:
        """Return headers as a field table, without its length."""
        names, texts = self._names, self._texts
        table: list[bytes] = []
        for name, value in headers.items():
            if value is not None and value.isascii():  # nearly all
                table += (texts.get(name) or self._text(name), UINT32(len(value)), value)
            else:
                table.append(names.get(name) or self._name(name))
                table.append(b"V" if value is None else b"%c%b%b" % (_text(value), UINT32(len(value)), value))
        if timestamp_ms:
            table.append(names.get(TIMESTAMP) or self._name(TIMESTAMP))
            table.append(LONG(b"l", timestamp_ms) if timestamp_ms >= INT_MAX else INT(b"I", timestamp_ms))
        return b"".join(table)

    def _method(self, topic: str) -> bytes:
        exchange, key = b"" if topic in self._queues else self._exchange.encode(), topic.encode()
        payload = b"%b%c%b%c%b%b" % (PUBLISH, len(exchange), exchange, len(key), key, MANDATORY)
        self._methods[topic] = made = FRAME(METHOD, self._channel, len(payload)) + payload + END
        return made

    def _name(self, name: str) -> bytes:
        encoded = name.encode()
        if len(encoded) > SHORT_BYTES:
            why = f"a header's name has {len(encoded)} bytes, AMQP takes {SHORT_BYTES}"
            raise Poisoned(why, "name it shorter", why=why)
        self._names[name] = made = b"%c%b" % (len(encoded), encoded)
        return made

    def _text(self, name: str) -> bytes:
        """Return a name with the type of a text behind it."""
        self._texts[name] = made = self._name(name) + b"S"
        return made


def _text(value: bytes) -> bytes:
    """Return the type of a header's value: a long string, or bytes that are no text."""
    if value.isascii():
        return b"S"
    try:
        value.decode()
    except UnicodeDecodeError:
        return b"x"
    return b"S"


def _short(value: bytes | None) -> bytes:
    """Return a property's short string, or nothing for what is none."""
    if not value or len(value) > SHORT_BYTES or _text(value) == b"x":
        return b""
    return b"%c%b" % (len(value), value)
