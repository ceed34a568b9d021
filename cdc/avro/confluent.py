"""The schema folder as a read-only Confluent Schema Registry: requests in, answers out, no I/O and no state.

Strategy: ROUTES maps a method and a path to a function of the registry; a failure is a `_RefusalError` with the field's own error
code, so that clients treat it as they treat the original. Nothing can be written: whoever registers a schema that the
folder already has gets its id, and everything else is told where schemas come from.

Names. A subject is a folder's name. Clients make up others from the topic and the record (TopicNameStrategy, the default of
every serializer; RecordNameStrategy; TopicRecordNameStrategy), so these names work too: `TOPIC-value` for every subject that
registry.toml assigns to the topic, the full name of the record, and both joined by a dash. Such a subject numbers its
versions anew, in the order of their ids. A schema that is looked up by its text is found under `TOPIC-value` for any topic.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import orjson

from cdc.avro.compatibility import Versioned, breaches
from cdc.avro.fingerprint import fingerprint
from cdc.avro.parse import parse
from cdc.avro.registry import DEFAULT_MODE, Version
from cdc.avro.schema import Enum, Fixed, Json, Record
from cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc.avro.registry import Registry
    from cdc.avro.schema import Schema

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"

HTTP_NOT_FOUND: Final = 404
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
INCOMPATIBLE: Final = 40901
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
READ_ONLY: Final = 42205


class Answer(NamedTuple):
    """A status, and a body of MEDIA_TYPE."""

    status: int
    body: bytes


class Call(NamedTuple):
    """A request as the routes see it: the registry, what the path named, the query, the body."""

    registry: Registry
    named: tuple[str, ...]
    query: Mapping[str, str]
    body: bytes


class Named(NamedTuple):
    """A subject as a client knows it: its name, its versions in order, their numbers under that name, and its mode."""

    name: str
    versions: tuple[Version, ...]
    mode: str

    def number(self, version: Version) -> int:
        """Return a version's number under this name."""
        return self.versions.index(version) + 1


class _RefusalError(Exception):
    """An answer that is an error: the field's code, whose first three digits are the status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def answer(registry: Registry, method: str, path: str, query: Mapping[str, str], body: bytes = b"") -> Answer:
    """Answer one request; `path` is still percent-encoded and begins after the endpoint's own prefix."""
    known = False
    for pattern, methods in ROUTES:
        match = pattern.fullmatch(path.rstrip("/") or "/")
        if match is None:
            continue
        known = True
        if method in methods:
            named = tuple(unquote(part) for part in match.groups())
            try:
                return Answer(200, orjson.dumps(methods[method](Call(registry, named, query, body))))
            except _RefusalError as refusal:
                return _error(refusal.code, refusal.message)
    if known and method in ("POST", "PUT", "DELETE"):
        return _error(READ_ONLY, "this registry is read-only: schemas are added to the schema folder, in a pull request")
    return _error(HTTP_NOT_FOUND, "HTTP 404 Not Found")


def _error(code: int, message: str) -> Answer:
    status = int(str(code)[:3])
    return Answer(status, orjson.dumps({"error_code": code, "message": message}))


def _root(_: Call) -> Json:
    return {}


def _types(_: Call) -> Json:
    return ["AVRO"]


def _contexts(_: Call) -> Json:
    return ["."]


def _mode(_: Call) -> Json:
    return {"mode": "READONLY"}


def _config(_: Call) -> Json:
    return {"compatibilityLevel": DEFAULT_MODE}


def _subject_config(call: Call) -> Json:
    return {"compatibilityLevel": _subject(call).mode}


def _schemas(call: Call) -> Json:
    prefix, latest = call.query.get("subjectPrefix", ""), call.query.get("latestOnly") == "true"
    subjects = [_own(call.registry, name) for name in sorted(call.registry.subjects) if name.startswith(prefix)]
    return [_described(s, version) for s in subjects for version in (s.versions[-1:] if latest else s.versions)]


def _subjects(call: Call) -> Json:
    prefix = call.query.get("subjectPrefix", "")
    return [name for name in sorted(call.registry.subjects) if name.startswith(prefix)]


def _by_id(call: Call) -> Json:
    version = _version_of_id(call)
    return {"schema": version.text, "guid": str(version.guid), "id": version.id}


def _text_by_id(call: Call) -> Json:
    return _version_of_id(call).schema.document


def _versions_of_id(call: Call) -> Json:
    version = _version_of_id(call)
    return [{"subject": version.subject, "version": version.number}]


def _subjects_of_id(call: Call) -> Json:
    return [_version_of_id(call).subject]


def _by_guid(call: Call) -> Json:
    for version in call.registry.versions:
        if str(version.guid) == call.named[0].lower():
            return {"schema": version.text, "guid": str(version.guid), "id": version.id}
    raise _RefusalError(SCHEMA_NOT_FOUND, f"Schema {call.named[0]} not found")


def _numbers(call: Call) -> Json:
    return list(range(1, len(_subject(call).versions) + 1))


def _one(call: Call) -> Json:
    subject = _subject(call)
    return _described(subject, _numbered(subject, call.named[1]))


def _text_of_one(call: Call) -> Json:
    return _numbered(_subject(call), call.named[1]).schema.document


def _referenced_by(call: Call) -> Json:
    _numbered(_subject(call), call.named[1])
    return []  # shared types are written out, so no schema refers to another


def _look_up(call: Call) -> Json:
    subject = _find(call.registry, call.named[0])
    schema = _posted(call)
    if subject is None and not call.named[0].endswith("-value"):
        raise _unknown(call.named[0])
    found = _identical(call.registry, subject, schema)
    if found is None:
        raise _RefusalError(SCHEMA_NOT_FOUND, "Schema not found")
    return _described(subject or Named(call.named[0], (found,), DEFAULT_MODE), found)


def _register(call: Call) -> Json:
    subject = _find(call.registry, call.named[0])
    schema = _posted(call)
    found = _identical(call.registry, subject, schema)
    if found is not None:
        return _described(subject or Named(call.named[0], (found,), DEFAULT_MODE), found)
    if subject is not None and (problems := _problems(subject, schema, subject.versions, subject.mode)):
        message = f"Schema being registered is incompatible with an earlier schema for subject {subject.name!r}: {problems[0]}"
        raise _RefusalError(INCOMPATIBLE, message)
    message = f"subject {call.named[0]!r} is read-only: add the schema to the schema folder, in a pull request"
    raise _RefusalError(READ_ONLY, message)


def _compatible_with_one(call: Call) -> Json:
    subject = _subject(call)
    against = (_numbered(subject, call.named[1]),)
    return _verdict(call, _problems(subject, _posted(call), against, subject.mode))


def _compatible_with_all(call: Call) -> Json:
    subject = _subject(call)
    return _verdict(call, _problems(subject, _posted(call), subject.versions, subject.mode))


def _verdict(call: Call, problems: list[str]) -> Json:
    verdict: dict[str, Json] = {"is_compatible": not problems}
    if call.query.get("verbose", "").lower() == "true":
        verdict["messages"] = problems
    return verdict


def _problems(subject: Named, schema: Schema, against: tuple[Version, ...], mode: str) -> list[str]:
    earlier = [Versioned(f"version {subject.number(version)}", version.schema) for version in against]
    return [str(breach) for breach in breaches(Versioned("the new schema", schema), earlier, mode)]


def _described(subject: Named, version: Version) -> dict[str, Json]:
    return {
        "subject": subject.name,
        "version": subject.number(version),
        "id": version.id,
        "guid": str(version.guid),
        "schema": version.text,
    }


def _posted(call: Call) -> Schema:
    try:
        request = orjson.loads(call.body)
        text = request["schema"]
        if request.get("schemaType", "AVRO") != "AVRO" or not isinstance(text, str):
            raise _RefusalError(INVALID_SCHEMA, "only Avro schemas are served here")
        document = json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
        return parse(document, "schema")
    except ConfigurationError as error:
        raise _RefusalError(INVALID_SCHEMA, f"Invalid schema: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = "Invalid schema: the body is no JSON object with a member `schema` that holds a schema as text"
        raise _RefusalError(INVALID_SCHEMA, message) from None


def _identical(registry: Registry, subject: Named | None, schema: Schema) -> Version | None:
    """Return the version with this very schema, of this subject, or of any when the subject is not one of the folder."""
    wanted = fingerprint(schema)
    versions = registry.versions if subject is None else subject.versions
    return next((version for version in versions if version.fingerprint == wanted), None)


def _version_of_id(call: Call) -> Version:
    version = call.registry.by_id(int(call.named[0]))
    if version is None:
        raise _RefusalError(SCHEMA_NOT_FOUND, f"Schema {call.named[0]} not found")
    return version


def _numbered(subject: Named, number: str) -> Version:
    if number in ("latest", "-1"):
        return subject.versions[-1]
    if not re.fullmatch(r"[1-9]\d{0,9}", number):
        message = f"The specified version {number!r} is not a valid version id: a number from 1 on, or `latest`"
        raise _RefusalError(INVALID_VERSION, message)
    if int(number) > len(subject.versions):
        raise _RefusalError(VERSION_NOT_FOUND, f"Version {number} not found.")
    return subject.versions[int(number) - 1]


def _subject(call: Call) -> Named:
    subject = _find(call.registry, call.named[0])
    if subject is None:
        raise _unknown(call.named[0])
    return subject


def _unknown(name: str) -> _RefusalError:
    return _RefusalError(SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")


def _find(registry: Registry, name: str) -> Named | None:
    """Find a subject by its own name, or by one that a client made from a topic or a record."""
    name = name.removeprefix(":.:")
    if name in registry.subjects:
        return _own(registry, name)
    fits = [subject for subject in registry.subjects if name in _other_names(registry, subject)]
    if not fits:
        return None
    versions = sorted((v for subject in fits for v in registry.subjects[subject]), key=lambda version: version.id)
    return Named(name, tuple(versions), registry.settings_of(fits[0]).compatibility)


def _own(registry: Registry, name: str) -> Named:
    return Named(name, registry.subjects[name], registry.settings_of(name).compatibility)


def _other_names(registry: Registry, subject: str) -> set[str]:
    topic = registry.settings_of(subject).topic
    root = registry.subjects[subject][-1].schema.root
    record = root.name if isinstance(root, (Record, Enum, Fixed)) else ""
    names = {record} if record else set()
    if topic:
        names |= {f"{topic}-value", f"{topic}-{record}"}
    return names


def _routes(table: dict[str, dict[str, Callable[[Call], Json]]]) -> tuple[tuple[re.Pattern[str], dict[str, Json]], ...]:
    patterns = {"{id}": r"(\d{1,10})", "{s}": r"([^/]+)", "{v}": r"([^/]+)", "{guid}": r"([^/]+)"}
    compiled = []
    for path, methods in table.items():
        pattern = path
        for key, part in patterns.items():
            pattern = pattern.replace(key, part)
        compiled.append((re.compile(pattern), methods))
    return tuple(compiled)


ROUTES: Final = _routes(
    {
        "/": {"GET": _root},
        "/schemas": {"GET": _schemas},
        "/schemas/types": {"GET": _types},
        "/schemas/ids/{id}": {"GET": _by_id},
        "/schemas/ids/{id}/schema": {"GET": _text_by_id},
        "/schemas/ids/{id}/versions": {"GET": _versions_of_id},
        "/schemas/ids/{id}/subjects": {"GET": _subjects_of_id},
        "/schemas/guids/{guid}": {"GET": _by_guid},
        "/subjects": {"GET": _subjects},
        "/subjects/{s}": {"POST": _look_up},
        "/subjects/{s}/versions": {"GET": _numbers, "POST": _register},
        "/subjects/{s}/versions/{v}": {"GET": _one},
        "/subjects/{s}/versions/{v}/schema": {"GET": _text_of_one},
        "/subjects/{s}/versions/{v}/referencedby": {"GET": _referenced_by},
        "/compatibility/subjects/{s}/versions": {"POST": _compatible_with_all},
        "/compatibility/subjects/{s}/versions/{v}": {"POST": _compatible_with_one},
        "/config": {"GET": _config},
        "/config/{s}": {"GET": _subject_config},
        "/mode": {"GET": _mode},
        "/mode/{s}": {"GET": _mode},
        "/contexts": {"GET": _contexts},
    }
)
"""Every path that is served, and what answers it; another method on one of them is told that nothing can be written."""
