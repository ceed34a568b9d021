"""Numbers as Avro writes them: zigzag varints by table, no I/O.

The hot path: lengths, counts and small numbers are one list index, larger ones two to five. LONG is indexed by the number
itself, from -SMALL to LARGE - 1: Python's negative indexes make one list serve both signs.
"""

from __future__ import annotations

from typing import Final

SMALL: Final = 8192
"""A negative number down to here is found in a table."""

LARGE: Final = 1 << 16
"""A positive number, a length or a count up to here is found in a table: amounts in cents and most identifiers, for 5 MB of
memory. Without it three of six numbers of an ordinary order cost a call each, a third of its time."""

_BITS: Final = 14
_STEP: Final = 1 << _BITS
_MASK: Final = _STEP - 1

LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1
INT_MIN: Final = -(1 << 31)
INT_MAX: Final = (1 << 31) - 1

_BYTES: Final = [bytes((byte,)) for byte in range(256)]
_END, _ON = _BYTES[:128], _BYTES[128:]
"""A varint's last byte, and one that another follows: seven bits in each, the lowest first."""

_LAST: Final = _END + [low + high for high in _END[1:] for low in _ON]
_MORE: Final = [low + high for high in _ON for low in _ON]

LONG: Final = _LAST[0::2] + [low + high for high in _END[1 : LARGE >> _BITS - 1] for low in _MORE[0::2]] + _LAST[1::2][::-1]
"""LONG[n] is n as a varint for -SMALL <= n < LARGE."""

COUNT: Final = LONG[:LARGE]
"""COUNT[n] is n as a varint for a length or a count below LARGE; an IndexError beyond, where COUNTS goes on."""


def long(n: int) -> bytes:
    """Write any 64-bit integer; OverflowError beyond."""
    z = (n << 1) ^ (n >> 63)
    if z < _STEP:
        return _LAST[z]
    if z < 1 << 28:
        return _MORE[z & _MASK] + _LAST[z >> _BITS]
    if z < 1 << 42:
        return _MORE[z & _MASK] + _MORE[z >> _BITS & _MASK] + _LAST[z >> 28]
    if z < 1 << 56:
        return _MORE[z & _MASK] + _MORE[z >> _BITS & _MASK] + _MORE[z >> 28 & _MASK] + _LAST[z >> 42]
    if n > LONG_MAX or n < LONG_MIN:
        raise OverflowError
    return _MORE[z & _MASK] + _MORE[z >> _BITS & _MASK] + _MORE[z >> 28 & _MASK] + _MORE[z >> 42 & _MASK] + _LAST[z >> 56]


def int32(n: int) -> bytes:
    """Write any 32-bit integer; OverflowError beyond."""
    if n > INT_MAX or n < INT_MIN:
        raise OverflowError
    return long(n)


class _Counts(list[bytes]):
    """COUNT without an end, for the rows that hold a text or a list longer than LARGE."""

    def __getitem__(self, n: int) -> bytes:  # type: ignore[override]
        return long(n)


COUNTS: Final = _Counts()
