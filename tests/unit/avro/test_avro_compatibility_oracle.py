"""Where the checker says yes, no value fails to resolve in fastavro; where it says no, it shows a value that does."""

from __future__ import annotations

import copy
import io
import struct

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.avro.compatibility import MEANING, Incompatibility, unreadable
from cdc.avro.encoder import Encoder
from cdc.avro.examples import example
from cdc.avro.parse import parse
from cdc.avro.schema import Json, Schema
from tests.unit.avro.avro_generate import typed

FAILURES = (
    fastavro.read.SchemaResolutionError, ValueError, KeyError, IndexError, EOFError, TypeError, struct.error, OverflowError,
)  # fmt: skip

patient = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def nodes(document: Json) -> list[Json]:
    """Every object in a schema that describes a type or a field."""
    found = []
    if isinstance(document, list):
        for item in document:
            found += nodes(item)
    elif isinstance(document, dict):
        found.append(document)
        for key in ("type", "items", "values", "fields"):
            found += nodes(document.get(key)) if isinstance(document.get(key), (dict, list)) else []
    return found


PROMOTIONS = ["int", "long", "float", "double", "string", "bytes", "boolean"]


def evolve(draw: Json, document: Json) -> Json:  # noqa: C901, PLR0912 - one branch for each kind of change
    """Change one thing, as people do."""
    target = draw(st.sampled_from(nodes(document)))
    if "fields" in target:
        change = draw(st.sampled_from(["add", "add default", "remove", "rename", "rename with alias", "name"]))
        fields = target["fields"]
        if change == "add":
            fields.append({"name": "added", "type": draw(st.sampled_from(PROMOTIONS))})
        elif change == "add default":
            fields.append({"name": "added", "type": ["null", "int"], "default": None})
        elif change == "name":
            target["name"] += "x"
        elif fields:
            field = draw(st.sampled_from(fields))
            if change == "remove":
                fields.remove(field)
            else:
                if change == "rename with alias":
                    field["aliases"] = [field["name"]]
                field["name"] = "renamed"
    elif target.get("symbols"):
        change = draw(st.sampled_from(["add", "remove", "default"]))
        if change == "add":
            target["symbols"].append("EXTRA")
        elif change == "default":
            target["symbols"] = ["OTHER"]
            target["default"] = "OTHER"
        else:
            target["symbols"] = target["symbols"][1:] or ["OTHER"]
    elif "size" in target:
        target["size"] += 1
        target.pop("logicalType", None)
    elif "logicalType" in target:
        if "scale" in target and draw(st.booleans()):
            target["scale"] += 1
        else:
            for key in ("logicalType", "precision", "scale"):
                target.pop(key, None)
    elif "name" in target and isinstance(target["type"], str):
        target["type"] = draw(st.sampled_from(PROMOTIONS))
        target.pop("default", None)
    elif "name" in target and isinstance(target["type"], list):
        branches: list[Json] = target["type"]
        target.pop("default", None)
        if draw(st.booleans()) and len(branches) > 1:
            branches.pop()
        else:
            branches.append({"type": "enum", "name": "Extra", "symbols": ["A"]})
    elif "items" in target and isinstance(target["items"], str):
        target["items"] = draw(st.sampled_from(PROMOTIONS))
    elif "values" in target and isinstance(target["values"], str):
        target["values"] = draw(st.sampled_from(PROMOTIONS))
    return document


def ambiguous(document: Json) -> bool:
    """Whether bytes of a changed union would be read as the string before them.

    Java takes the branch of the same type; fastavro the first one that bytes can be promoted to, and fails at what is not UTF-8.
    """
    if isinstance(document, list):
        kinds = [each["type"] if isinstance(each, dict) else each for each in document]
        return any(map(ambiguous, document)) or {"string", "bytes"} <= {*filter(lambda kind: isinstance(kind, str), kinds)}
    return isinstance(document, dict) and any(ambiguous(document.get(key)) for key in ("type", "items", "values", "fields"))


def resolved(writer: Schema, reader: Schema, body: bytes) -> Json:
    def library(schema: Schema) -> Json:
        return fastavro.parse_schema(copy.deepcopy(schema.document), named_schemas={})

    return fastavro.schemaless_reader(io.BytesIO(body), library(writer), library(reader))


def assert_witnessed(writer: Schema, reader: Schema, problem: Incompatibility) -> None:
    """The checker's own example is a value of the writer, and the reader cannot read it."""
    body = Encoder("S", 1, 7, writer).encode_value(example(writer, problem.steps))[5:]
    if problem.reason.endswith(MEANING):
        return  # Avro's own resolution is blind here: it reads another value without an error
    with pytest.raises(FAILURES):
        pytest.fail(f"read all the same: {problem}: {resolved(writer, reader, body)}")


@settings(patient, max_examples=700)
@given(st.data())
def test_the_checker_agrees_with_fastavro(data: st.DataObject) -> None:
    generated = data.draw(typed(2).filter(lambda t: nodes(t.schema)))
    old = parse(generated.schema, "old")
    try:
        document = copy.deepcopy(generated.schema)
        for _ in range(data.draw(st.integers(1, 2))):
            document = evolve(data.draw, document)
        new = parse(document, "new")
    except Exception:  # noqa: BLE001 - the change made no schema
        return
    if ambiguous(generated.schema) or ambiguous(document):
        return
    problems = unreadable(new, old)
    if not problems:
        encoder = Encoder("S", 1, 7, old)
        for pair in data.draw(st.lists(generated.values, min_size=5, max_size=5)):
            resolved(old, new, encoder.encode_value(pair.json)[5:])
    for problem in problems:
        assert_witnessed(old, new, problem)
    for problem in unreadable(old, new):
        assert_witnessed(new, old, problem)
