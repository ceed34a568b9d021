"""Turn JSON values into what Avro stores where that needs thought: decimals, times, identifiers, floats. No I/O, no clock.

Strategy: one function for each conversion, shared by the compiled encoders and by the walk that explains a refusal. Each
returns the exact value or raises Misfit, whose text says what kind of value came and never the value. Nothing is rounded,
cut or shifted: 1.234 is no decimal of scale 2, a time without an offset is no instant, and no rule depends on the host.
"""

from __future__ import annotations

import re
import struct
from datetime import date
from decimal import Context, Decimal
from functools import lru_cache
from math import isfinite
from typing import Final

from cdc.avro.schema import Json
from cdc.avro.wire import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN

EXACT_LIMIT: Final = 2.0**63
"""Up to here a float came from a text that is a float; from here on orjson may have read a whole number as one."""


class Misfit(ValueError):
    """A value that does not fit; the text says what came, never the value."""


class TooFine(Misfit):
    """A time with more digits than its unit holds: of all misfits the one that right values have, because their clock is finer."""


DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?")
_WORDS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_WIDE: Final = Context(prec=100_000, Emax=999_999, Emin=-999_999)
_FLOAT_DIGITS: Final = (6, 7, 8, 9)

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UUID_LOOSE = re.compile(r"(\{)?([0-9a-fA-F]{8})(-?)([0-9a-fA-F]{4})\3([0-9a-fA-F]{4})\3([0-9a-fA-F]{4})\3([0-9a-fA-F]{12})(?(1)\})")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?", re.ASCII)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d):(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)?", re.ASCII)
_DURATION = re.compile(
    r"P(?:(\d{1,10})Y)?(?:(\d{1,10})M)?(?:(\d{1,10})W)?(?:(\d{1,10})D)?"
    r"(?:T(?:(\d{1,10})H)?(?:(\d{1,10})M)?(?:(\d{1,10})(?:[.,](\d{1,9}))?S)?)?",
    re.ASCII,
)

DIGITS: Final = {"millis": 3, "micros": 6, "nanos": 9}
UNITS: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
HOURS: Final = 24
MINUTES: Final = 60
"""Of an hour, and seconds of a minute: Avro's times know no leap second."""

MAX_OFFSET_H: Final = 18
"""No zone is further from UTC than that."""

_RANGES: Final = {32: (INT_MIN, INT_MAX), 64: (LONG_MIN, LONG_MAX)}
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400


def double(value: Json) -> bytes:
    """Write a JSON number, or one of the words NaN, Infinity and -Infinity, as PostgreSQL's to_jsonb prints them."""
    kind = type(value)
    if kind is float:
        if isfinite(value) and not -EXACT_LIMIT < value < EXACT_LIMIT:
            msg = "a number that may have lost digits"
            raise Misfit(msg)
        return DOUBLE.pack(value)
    return DOUBLE.pack(_number(value, "double"))


def float32(value: Json) -> bytes:
    """Write a number that a 32-bit float gives back with the same digits."""
    number = _number(value, "float")
    if not isfinite(number):
        return _FLOAT.pack(number)
    try:
        data = _FLOAT.pack(number)
    except OverflowError:
        msg = "a number out of the range of float"
        raise Misfit(msg) from None
    (back,) = _FLOAT.unpack(data)
    if back != number and not any(float(f"{back:.{digits}g}") == number for digits in _FLOAT_DIGITS):
        msg = "a number with more digits than a float keeps"
        raise Misfit(msg)
    return data


def _number(value: Json, target: str) -> float:
    """Any JSON number as a float; whole numbers exactly, and no number as infinity."""
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int or kind is Decimal:
        if kind is Decimal and value.is_nan():
            return float("nan")
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if not isfinite(number):
            msg = f"a number out of the range of {target}"
            raise Misfit(msg)
        if kind is int and int(number) != value:
            msg = f"a whole number with more digits than a {target} keeps"
            raise Misfit(msg)
        return number
    if kind is str and value in _WORDS:
        return _WORDS[value]
    raise Misfit(kind_of(value))


def unscaled(value: Json, precision: int, scale: int) -> int:
    """Return the whole number that a decimal stores; JSON numbers and texts of numbers keep every digit."""
    if type(value) is str:
        if not _NUMBER.fullmatch(value):
            msg = "a text that is not a number"
            raise Misfit(msg)
        value = Decimal(value)
    elif type(value) is int:
        value = Decimal(value)
    elif type(value) is not Decimal:
        raise Misfit(kind_of(value))
    if not value.is_finite():
        msg = "not a number" if value.is_nan() else "a number out of range"
        raise Misfit(msg)
    if not value:
        return 0
    if value.adjusted() + scale >= precision:
        msg = f"a number with more than {precision - scale} digits before the point"
        raise Misfit(msg)
    sign, digits, exponent = value.as_tuple()
    shift = int(exponent) + scale
    whole = int(value.scaleb(scale, _WIDE)) if shift >= 0 or len(digits) + shift > 0 else 0
    if shift < 0 and any(digits[shift:]):
        msg = f"a number with more than {scale} digits after the point"
        raise Misfit(msg)
    assert sign == (whole < 0), "scaling keeps the sign"
    return whole


def decimal_bytes(value: Json, precision: int, scale: int) -> bytes:
    """Write a decimal as two's complement, as short as Avro libraries write it."""
    whole = unscaled(value, precision, scale)
    return whole.to_bytes((abs(whole).bit_length() + 8) >> 3, "big", signed=True)


def decimal_fixed(value: Json, precision: int, scale: int, size: int) -> bytes:
    """Write a decimal as two's complement of `size` bytes."""
    return unscaled(value, precision, scale).to_bytes(size, "big", signed=True)


def uuid_text(value: Json) -> bytes:
    """Normalise the spellings that PostgreSQL takes (upper case, braces, no dashes) to 36 lower-case characters."""
    if type(value) is not str:
        raise Misfit(kind_of(value))
    if _UUID.fullmatch(value):
        return value.encode()
    match = _UUID_LOOSE.fullmatch(value)
    if match is None:
        msg = "a text that is not a uuid"
        raise Misfit(msg)
    return "-".join(match.group(2, 4, 5, 6, 7)).lower().encode()


def uuid_fixed(value: Json) -> bytes:
    """Write a uuid as its 16 bytes."""
    return bytes.fromhex(uuid_text(value).decode().replace("-", ""))


def days(value: Json) -> int:
    """Read an ISO date as days since 1970-01-01."""
    if type(value) is not str:
        raise Misfit(kind_of(value))
    return _days(value)


@lru_cache(maxsize=4096)
def _days(value: str) -> int:
    match = _DATE.fullmatch(value)
    try:
        if match is not None:
            return date(*map(int, match.groups())).toordinal() - _EPOCH_DAY
    except ValueError:
        pass
    msg = "a text that is not a date such as 2024-03-10"
    raise Misfit(msg)


def time_of_day(value: Json, unit: str) -> int:
    """Read an ISO time without a zone as units since midnight."""
    if type(value) is not str:
        raise Misfit(kind_of(value))
    match = _TIME.fullmatch(value)
    if match is None:
        msg = "a text that is not a time such as 14:30:00"
        raise Misfit(msg)
    hour, minute, second, fraction = match.groups()
    return _seconds(hour, minute, second) * UNITS[unit] + _fraction(fraction, unit)


def instant(value: Json, unit: str) -> int:
    """Read an ISO time with its offset as units since 1970-01-01T00:00Z."""
    return _stamp(value, unit, local=False)


def local_time(value: Json, unit: str) -> int:
    """Read an ISO time without an offset as units since 1970-01-01T00:00 of the same clock."""
    return _stamp(value, unit, local=True)


def _stamp(value: Json, unit: str, *, local: bool) -> int:
    if type(value) is not str:
        raise Misfit(kind_of(value))
    match = _STAMP.fullmatch(value)
    if match is None:
        msg = "a text that is not a time such as 2024-03-10T14:30:00" + ("" if local else "Z")
        raise Misfit(msg)
    minute, second, fraction, zulu, sign, offset_h, offset_m = match.groups()
    if local == bool(zulu or sign):
        raise Misfit("a time with an offset" if local else "a time without an offset")
    seconds = _minute(minute) + _seconds("0", "0", second)
    if sign:
        seconds -= _offset(sign, offset_h, offset_m or "0")
    units = seconds * UNITS[unit] + _fraction(fraction, unit)
    if not LONG_MIN <= units <= LONG_MAX:
        msg = f"a time out of the range of {unit} since 1970"
        raise Misfit(msg)
    return units


@lru_cache(maxsize=4096)
def _minute(text: str) -> int:
    """Read a date and a minute as seconds since 1970; the events of a minute share it."""
    return _days(text[:10]) * _DAY_S + _seconds(text[11:13], text[14:], "0")


def _seconds(hour: str, minute: str, second: str) -> int:
    h, m, s = int(hour), int(minute), int(second)
    if h >= HOURS or m >= MINUTES or s >= MINUTES:
        msg = "a time of day that does not exist"
        raise Misfit(msg)
    return h * 3600 + m * 60 + s


def _offset(sign: str, hours: str, minutes: str) -> int:
    if int(hours) > MAX_OFFSET_H or int(minutes) >= MINUTES:
        msg = "a time with an offset that does not exist"
        raise Misfit(msg)
    seconds = int(hours) * 3600 + int(minutes) * 60
    return -seconds if sign == "-" else seconds


def _fraction(text: str | None, unit: str) -> int:
    """Read the digits after the second; those that the unit cannot hold must be zeros."""
    if text is None:
        return 0
    digits = DIGITS[unit]
    if text[digits:].strip("0"):
        msg = f"a time with more than {digits} digits after the second"
        raise TooFine(msg)
    return int(text[:digits].ljust(digits, "0"))


def duration(value: Json) -> bytes:
    """Read an ISO 8601 duration as months, days and milliseconds, the twelve bytes that Avro stores."""
    if type(value) is not str:
        raise Misfit(kind_of(value))
    match = _DURATION.fullmatch(value)
    if match is None or not any(match.groups()):
        msg = "a text that is not a duration such as P1M2DT3.5S"
        raise Misfit(msg)
    years, months, weeks, days_, hours, minutes, seconds = (int(match[i] or 0) for i in range(1, 8))
    millis = (hours * 3600 + minutes * 60 + seconds) * 1000 + _fraction(match[8], "millis")
    try:
        return struct.pack("<III", years * 12 + months, weeks * 7 + days_, millis)
    except struct.error:
        msg = "a duration out of range"
        raise Misfit(msg) from None


def whole(value: Json, *, bits: int) -> int:
    """Check that a JSON number is a whole one of `bits` bits."""
    if type(value) is not int:
        raise Misfit(kind_of(value))
    low, high = _RANGES[bits]
    if not low <= value <= high:
        msg = f"a whole number of more than {bits} bits"
        raise Misfit(msg)
    return value


def kind_of(value: Json) -> str:
    """Say what kind of JSON value came; never the value."""
    return _KINDS.get(type(value), "something that JSON does not know")


_KINDS: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "a whole number",
    float: "a number with a fraction",
    Decimal: "a number with a fraction",
    str: "a text",
    bytes: "bytes",
    list: "a list",
    dict: "an object",
}
