"""Our bytes are fastavro's bytes and mean the same to two other libraries; what is broken is refused with its path."""

from __future__ import annotations

import copy
import io
import json
import os
import random
from collections.abc import Callable

import avro.io
import avro.schema
import fastavro
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from cdc.avro.encoder import Encoder
from cdc.avro.parse import parse
from cdc.avro.schema import NO_DEFAULT, Array, Json, Map, Node, Record, Schema, Union
from cdc.avro.unions import branches, kinds
from cdc.errors import InvalidEvent
from tests.conftest import FIGURE
from tests.unit.avro.avro_generate import WRONG, text_of, typed

HEADER = b"\0\0\0\0\7"
PAIRS = 20_000
PARTS = 4
"""Tests that share the pairs: workers take them side by side."""

VALUES = 60
"""For each schema: making one costs more than checking many values of it."""

SEED = int(os.environ.get("TEST_AVRO_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
UNKNOWN_TO_AVRO = ("timestamp-nanos", "local-timestamp-nanos", "local-timestamp-millis", "local-timestamp-micros", "duration", "uuid")

patient = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def written(parsed: Json, value: Json) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    return out.getvalue()


def plain(value: Json) -> Json:
    """The value without the tuples that name a branch for fastavro's writer."""
    if isinstance(value, tuple):
        return plain(value[1])
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def known_to_avro(document: Json) -> Json:
    """The schema without the logical types that the avro package does not know; their bytes are compared as they are."""
    if isinstance(document, list):
        return [known_to_avro(item) for item in document]
    if not isinstance(document, dict):
        return document
    document = {key: known_to_avro(item) for key, item in document.items()}
    name = document.get("logicalType")
    if name in UNKNOWN_TO_AVRO:
        del document["logicalType"]
    return document


@pytest.mark.parametrize("part", range(PARTS))
def test_bytes_and_meaning_are_those_of_two_other_libraries(part: int, record_property: Callable[[str, object], None]) -> None:
    count = 0

    @settings(patient, max_examples=PAIRS // PARTS // VALUES + 1)
    @seed(SEED + part)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        nonlocal count
        generated = data.draw(typed())
        schema = parse(generated.schema, "test")
        encoder = Encoder("S", 1, 7, schema)
        reference = fastavro.parse_schema(copy.deepcopy(schema.document), named_schemas={})
        reduced = known_to_avro(schema.document)
        base = fastavro.parse_schema(copy.deepcopy(reduced), named_schemas={})
        reader = avro.io.DatumReader(avro.schema.parse(json.dumps(reduced)))
        for pair in data.draw(st.lists(generated.values, min_size=VALUES, max_size=VALUES)):
            got = encoder.encode(text_of(pair.json).encode())
            assert got == HEADER + written(reference, pair.python)
            body = got[len(HEADER) :]
            assert fastavro.schemaless_reader(io.BytesIO(body), reference, None) == plain(pair.python)
            decoded = reader.read(avro.io.BinaryDecoder(io.BytesIO(body)))
            assert decoded == fastavro.schemaless_reader(io.BytesIO(body), base, None)
            count += 1

    try:
        compare()
    finally:
        record_property(FIGURE, f"{count} pairs of schema and value, part {part}, TEST_AVRO_SEED={SEED}")
    assert count >= PAIRS // PARTS


Place = tuple[str, Node, tuple[Json, ...]]


def places(  # noqa: C901 - one branch for each kind of type
    schema: Schema, node: Node, value: Json, path: str, way: tuple[Json, ...]
) -> list[Place]:
    """Every place of a value: its path in messages, its type, and the keys that lead there."""
    node = schema.resolve(node)
    found: list[Place] = [(path, node, way)]
    if isinstance(node, Record):
        for field in node.fields:
            if field.name in value:
                found += places(schema, field.type, value[field.name], f"{path}.{field.name}", (*way, field.name))
    elif isinstance(node, Array):
        for index, item in enumerate(value):
            found += places(schema, node.items, item, f"{path}[{index}]", (*way, index))
    elif isinstance(node, Map):
        for index, (key, item) in enumerate(value.items()):
            found += places(schema, node.values, item, f"{path}.*{index}", (*way, key))
    elif isinstance(node, Union):
        rule = branches(schema, node)
        if rule.tagged and isinstance(value, dict):
            ((name, inner),) = value.items()
            found += places(schema, node.branches[rule.named[name]], inner, f"{path}.{name}", (*way, name))
        elif isinstance(value, (dict, list)):
            kind = "object" if isinstance(value, dict) else "array"
            found += places(schema, node.branches[rule.plain[kind]], value, path, way)[1:]
    return found


def taken(schema: Schema, node: Node) -> frozenset[str]:
    if isinstance(node, Union):
        plain_kinds = frozenset().union(*[kinds(schema, branch) for branch in node.branches])
        return plain_kinds | ({"string"} if "string" in branches(schema, node).plain else set())
    return kinds(schema, node)


def broken(draw: Json, schema: Schema, value: Json) -> tuple[str, Json]:
    """A copy of a value that does not fit any more, and the path that must be named."""
    path, node, way = draw(st.sampled_from(places(schema, schema.root, value, "$", ())))
    choices = [WRONG[kind] for kind in WRONG if kind not in taken(schema, node)]
    whole = {"": copy.deepcopy(value)}
    holder: Json = whole
    key: Json = ""
    for step in way:
        holder, key = holder[key], step
    here = holder[key]
    if isinstance(node, Record) and isinstance(here, dict) and draw(st.booleans()):
        required = [f.name for f in node.fields if f.default is NO_DEFAULT]
        if required and draw(st.booleans()):
            del here[draw(st.sampled_from(required))]
        else:
            here["surprise"] = 1
    else:
        holder[key] = draw(st.sampled_from(choices))
    return path, whole[""]


@settings(patient, max_examples=400)
@seed(SEED)
@given(st.data())
def test_a_broken_value_is_refused_with_its_path(data: st.DataObject) -> None:
    generated = data.draw(typed())
    schema = parse(generated.schema, "test")
    encoder = Encoder("S", 1, 7, schema)
    for pair in data.draw(st.lists(generated.values, min_size=5, max_size=5)):
        path, wrong = broken(data.draw, schema, pair.json)
        with pytest.raises(InvalidEvent) as refused:
            encoder.encode(text_of(wrong))
        assert refused.value.reason == "schema"
        assert f" {path}: " in str(refused.value)
        assert "does not fit" not in str(refused.value)
