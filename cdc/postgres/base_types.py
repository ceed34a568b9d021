"""Which built-in type a domain stands on; values in, values out, no I/O.

The log names a column's type by its oid, and that of a domain tells nothing. Before a relation that uses a type of a user's
comes a Type message with that oid, and for a domain with the name of its base type (PostgreSQL's logicalrep_write_typ, which
looks through domains). So the stream itself tells what a domain is, as of the moment when the row was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cdc.postgres.pgoutput import Relation, Type

BUILT_IN: Final = {
    "bool": 16, "bytea": 17, "int8": 20, "int2": 21, "int4": 23, "text": 25, "json": 114, "float4": 700, "float8": 701,
    "bpchar": 1042, "varchar": 1043, "date": 1082, "time": 1083, "timestamp": 1114, "timestamptz": 1184, "interval": 1186,
    "timetz": 1266, "numeric": 1700, "uuid": 2950, "jsonb": 3802,
    "_bool": 1000, "_bytea": 1001, "_int8": 1016, "_int2": 1005, "_int4": 1007, "_text": 1009, "_varchar": 1015, "_json": 199,
    "_float4": 1021, "_float8": 1022, "_date": 1182, "_time": 1183, "_timestamp": 1115, "_timestamptz": 1185, "_numeric": 1231,
    "_uuid": 2951, "_jsonb": 3807,
}  # fmt: skip
"""Oids of pg_type.dat; a list's type has a name with an underscore."""


def base_of(message: Type) -> int:
    """Return the built-in type that a user's type stands on, else the type itself."""
    return BUILT_IN.get(message.name, message.oid) if message.namespace == "pg_catalog" else message.oid


def resolved(relation: Relation, bases: Mapping[int, int]) -> Relation:
    """Return a relation whose columns have the types that their domains stand on."""
    if not any(column.type_oid in bases for column in relation.columns):
        return relation
    columns = tuple(replace(column, type_oid=bases.get(column.type_oid, column.type_oid)) for column in relation.columns)
    return replace(relation, columns=columns)
