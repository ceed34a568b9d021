"""The compiled encoder beside fastavro's writer, in one run: `python benchmarks/encoder.py [--json]`.

Ours checks and encodes; fastavro's `schemaless_writer(strict=True)` alone encodes and looks at a part of it. Both start from
a parsed value. The order of 300 bytes must take at most a third of fastavro's time, every other shape at most 1.5 times of
it; EXCEPTIONS names those that may take longer, and why. Rounds of both alternate, and the best round of each counts, so
that a busy machine does not decide. Exit code 8 when a limit is broken.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import timeit
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import orjson

from cdc.avro import folder
from cdc.avro.encoder import Encoder, exact_json
from cdc.avro.parse import parse

Json = Any

ORDER_LIMIT = 1 / 3
SHAPE_LIMIT = 1.5

EXCEPTIONS = {
    "times as ISO text": (
        2.0,
        "fastavro is given datetime objects, ours the text of the row, which it parses and checks to the last digit",
    ),
}
"""Shapes that may take longer than SHAPE_LIMIT: up to how many times, and why."""

ORDER = {
    "orderId": "5f0c2b52-7f6f-4a3d-9a37-0c8f6a3d1e11",
    "customer": {"id": 48213, "name": "Ada Lovelace", "email": "ada.lovelace@example.com"},
    "currency": "EUR",
    "lines": [
        {"sku": "SKU-1001-BLACK", "quantity": 2, "unitCents": 1299},
        {"sku": "SKU-2044", "quantity": 1, "unitCents": 24900},
    ],
    "totalCents": 27498,
    "note": "please ring twice",
}


def record(**fields: Json) -> Json:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def shapes() -> dict[str, tuple[Json, Json, Json]]:
    """Name to schema, our value and fastavro's value, where it is another one."""
    person = record(name="string", age="int", email=["null", "string"])
    tree = record(value="long", children={"type": "array", "items": "R"})
    node: Json = {"value": 1, "children": []}
    for _ in range(10):
        node = {"value": 2, "children": [node, {"value": 3, "children": []}]}
    stamp = {"type": "long", "logicalType": "timestamp-micros"}
    money = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    amounts = {f"d{i}": Decimal(i).scaleb(-2) for i in range(100, 105)}
    text = "2024-03-10T14:30:15.123456Z"
    moment = fastavro.schemaless_reader(io.BytesIO(Encoder("S", 1, 1, parse(stamp, "-")).encode_value(text)[5:]), stamp, None)
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    optional = {f"f{i}": "x" if i % 2 else None for i in range(10)}
    numbers = {f"n{i}": 1_700_000_000_000 + i for i in range(10)}
    return {
        "ten short texts": (record(**{f"s{i}": "string" for i in range(10)}), {f"s{i}": "short text" for i in range(10)}, None),
        "ten large longs": (record(**dict.fromkeys(numbers, "long")), numbers, None),
        "one text of 10 kB": (record(text="string"), {"text": "x" * 10_000}, None),
        "array of 500 longs": ({"type": "array", "items": "long"}, list(range(0, 50_000, 100)), None),
        "array of 500 doubles": ({"type": "array", "items": "double"}, [i / 7 for i in range(500)], None),
        "array of 50 records": ({"type": "array", "items": person}, [{"name": "Ada", "age": i, "email": None} for i in range(50)], None),
        "map of 50 texts": ({"type": "map", "values": "string"}, {f"key{i}": "value" for i in range(50)}, None),
        "ten optional fields": (record(**{name: ["null", "string"] for name in optional}), optional, None),
        "enums, booleans and doubles": (
            record(e=enum, b="boolean", d="double", c="boolean", f="double"),
            {"e": "B", "b": True, "d": 1.5, "c": False, "f": 2.25},
            None,
        ),
        "tree of 21 nodes": (tree, node, None),
        "times as ISO text": (record(a=stamp, b=stamp), {"a": text, "b": text}, {"a": moment, "b": moment}),
        "decimals": (record(**dict.fromkeys(amounts, money)), amounts, None),
    }


def compare(encoder: Encoder, document: Json, ours: Json, theirs: Json) -> dict[str, float]:
    """Microseconds for one value, ours and fastavro's."""
    parsed = fastavro.parse_schema(document, named_schemas={})

    def fast() -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, theirs, strict=True)
        return out.getvalue()

    def own() -> bytes:
        return encoder.encode_value(ours)

    if own()[5:] != fast():
        msg = "the two encoders differ"
        raise SystemExit(msg)
    number = max(1, int(0.02 / min(timeit.repeat(fast, number=3, repeat=3)) * 3))
    best = {"ours_us": float("inf"), "fastavro_us": float("inf")}
    for _ in range(15):
        for name, function in (("ours_us", own), ("fastavro_us", fast)):
            best[name] = min(best[name], timeit.timeit(function, number=number) / number * 1e6)
    return {**best, "ratio": best["ours_us"] / best["fastavro_us"]}


def run() -> list[dict[str, Json]]:
    """Measure everything."""
    registry = folder.load(Path(__file__).parent.parent / "schemas")
    version = registry.latest("OrderPlaced")
    order = compare(registry.encoder("OrderPlaced"), version.schema.document, ORDER, ORDER)
    text = orjson.dumps(ORDER)
    results: list[dict[str, Json]] = [{"shape": f"nested order of {len(text)} bytes", "limit": ORDER_LIMIT, "why": "", **order}]
    for name, (document, ours, theirs) in shapes().items():
        encoder = Encoder("S", 1, 1, parse(document, "-"))
        limit, why = EXCEPTIONS.get(name, (SHAPE_LIMIT, ""))
        results.append({"shape": name, "limit": limit, "why": why, **compare(encoder, document, ours, theirs or ours)})
    return results


def parsers() -> dict[str, float]:
    """Microseconds to parse the order: with orjson, and without losing a digit."""
    text = orjson.dumps(ORDER)
    number = 2_000
    return {
        name: min(timeit.repeat(lambda parse_=parse_: parse_(text), number=number, repeat=9)) / number * 1e6  # type: ignore[misc]
        for name, parse_ in (("orjson_us", orjson.loads), ("exact_us", exact_json))
    }


def main() -> int:
    """Print a table, or with --json one object."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    as_json = arguments.parse_args().json
    results, parsing = run(), parsers()
    broken = [result["shape"] for result in results if result["ratio"] > result["limit"]]
    if as_json:
        print(json.dumps({"shapes": results, "parsing": parsing, "over_limit": broken}))
        return 8 if broken else 0
    print(f"{'shape':32} {'ours us':>9} {'fastavro':>9} {'ratio':>6} {'limit':>6}")
    for r in results:
        print(f"{r['shape']:32} {r['ours_us']:9.2f} {r['fastavro_us']:9.2f} {r['ratio']:6.2f} {r['limit']:6.2f}")
    print("\n".join(f"{r['shape']}: {r['why']}" for r in results if r["why"]))
    print(", ".join(f"{name} {value:.2f}" for name, value in parsing.items()), "(parsing the order)")
    return 8 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
