"""Hide personal fields from whoever reads events on a screen: values in, masked copies out, no I/O.

registry.toml names a subject's personal fields by their path, `customer.email`; lists and maps on the way are gone through.
What cannot be read cannot be masked, so it is hidden whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.avro.schema import Json

MASK: Final = "***"


def masked(value: Json, personal: Sequence[str]) -> Json:
    """Return `value` with every personal field replaced by MASK; the value itself is left as it is."""
    for path in personal:
        value = _at(value, tuple(path.removeprefix("$.").split(".")))
    return value


def masked_text(payload: bytes | str, personal: Sequence[str]) -> str:
    """Return a JSON payload with its personal fields masked; MASK alone if it is not JSON and has personal fields."""
    if not personal:
        return payload if isinstance(payload, str) else payload.decode(errors="replace")
    try:
        return orjson.dumps(masked(orjson.loads(payload), personal)).decode()
    except orjson.JSONDecodeError:
        return MASK


def _at(value: Json, path: tuple[str, ...]) -> Json:
    if not path:
        return MASK
    if isinstance(value, list):
        return [_at(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if path[0] in value:
        return {**value, path[0]: _at(value[path[0]], path[1:])}
    if path[0] == "*":
        return {key: _at(item, path[1:]) for key, item in value.items()}
    # a named branch of a union stands between: {"shop.Card": {"number": ..}}
    return {key: _at(item, path) if isinstance(item, dict) and len(value) == 1 else item for key, item in value.items()}
