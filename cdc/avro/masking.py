"""Hide personal fields from whoever reads events on a screen: values in, masked copies out, no I/O.

registry.toml names a subject's personal fields by their path, `customer.email`; lists and maps on the way are gone through.
What cannot be read cannot be masked, so it is hidden whole: a payload that is no JSON, a value that stands where the path
goes on. A payload that was refused may also hold personal data under a name that the schema does not have; see masked_text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from cdc.avro.schema import Array, Map, Record, Union, branch_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.avro.schema import Json, Node, Schema

MASK: Final = "***"


def masked(value: Json, personal: Sequence[str]) -> Json:
    """Return `value` with every personal field replaced by MASK; the value itself is left as it is."""
    for path in personal:
        value = _at(value, tuple(path.removeprefix("$.").split(".")))
    return value


def masked_text(payload: bytes | str, personal: Sequence[str], schema: Schema | None = None) -> str:
    """Return a JSON payload with its personal fields masked; MASK alone if it is not JSON and has personal fields.

    With a schema, and if there are personal fields, what the schema does not know is masked as well.
    """
    if not personal:
        return payload if isinstance(payload, str) else payload.decode(errors="replace")
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return MASK
    known = value if schema is None else _known(schema, schema.root, value)
    return orjson.dumps(masked(known, personal)).decode()


def _known(schema: Schema, node: Node, value: Json) -> Json:
    """Return a value with MASK for every member that its schema does not have, and for lists and objects in the wrong place."""
    if not isinstance(value, dict | list):
        return value
    match schema.resolve(node):
        case Record(fields=fields) if isinstance(value, dict):
            types = {field.name: field.type for field in fields}
            return {name: _known(schema, types[name], item) if name in types else MASK for name, item in value.items()}
        case Array(items=items) if isinstance(value, list):
            return [_known(schema, items, item) for item in value]
        case Map(values=values) if isinstance(value, dict):
            return {name: _known(schema, values, item) for name, item in value.items()}
        case Union(branches=branches):
            return _in_branch(schema, branches, value)
    return MASK


def _in_branch(schema: Schema, branches: Sequence[Node], value: Json) -> Json:
    """Take the branch that is named, else the one that may hold such a value; of several, none is guessed."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        for branch in branches:
            if branch_name(branch) == name:
                return {name: _known(schema, branch, inner)}
    kinds = (Record, Map) if isinstance(value, dict) else (Array,)
    fitting = [branch for branch in branches if isinstance(schema.resolve(branch), kinds)]
    return _known(schema, fitting[0], value) if len(fitting) == 1 else MASK


def _at(value: Json, path: tuple[str, ...]) -> Json:
    if not path:
        return MASK
    if isinstance(value, list):
        return [_at(item, path) for item in value]
    if not isinstance(value, dict):
        return None if value is None else MASK
    if path[0] in value:
        return {**value, path[0]: _at(value[path[0]], path[1:])}
    if path[0] == "*":
        return {key: _at(item, path[1:]) for key, item in value.items()}
    # a named branch of a union stands between: {"shop.Card": {"number": ..}}
    return {key: _at(item, path) if isinstance(item, dict) and len(value) == 1 else item for key, item in value.items()}
