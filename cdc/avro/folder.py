"""Read the schema folder into an immutable Registry, and write its lock. The one file of this room that touches the disk.

    schemas/<subject>/<version>.avsc   one version of one subject
    schemas/types/*.avsc               named types that versions share
    schemas/registry.toml              what the team decided for each subject; may be missing
    schemas/registry.lock              the id and fingerprint of every version

Strategy: read everything (`scan`), hold it against the lock (`_locked`), and refuse at the first thing that is wrong, with
the file's name and the way out. A version that is not in the lock does not exist.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from cdc.avro import lock as lock_file
from cdc.avro.fingerprint import fingerprint
from cdc.avro.parse import parse
from cdc.avro.registry import Registry, Version
from cdc.avro.review import Candidate
from cdc.avro.shared import SharedType, definitions
from cdc.avro.toml import read_settings
from cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.avro.lock import Lock
    from cdc.avro.registry import SubjectSettings
    from cdc.avro.schema import Json

MAX_FILE_BYTES: Final = 4_000_000
"""A schema file beyond this is a mistake: 5,000 fields take less than a tenth of it."""

_TYPES: Final = "types"
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_SUBJECT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True, slots=True)
class Contents:
    """All that the folder holds."""

    folder: Path
    files: Mapping[str, tuple[Candidate, ...]]
    settings: Mapping[str, SubjectSettings]
    lock: Lock

    @property
    def unlocked(self) -> list[Candidate]:
        """Versions that the lock does not name yet, in the order in which `add` locks them."""
        every = [file for subject in sorted(self.files) for file in self.files[subject]]
        return [file for file in every if (file.subject, file.number) not in self.lock.by_key]


def load(path: Path) -> Registry:
    """Read the folder at start; an unlocked version is refused."""
    contents = scan(path)
    if contents.unlocked:
        file = contents.unlocked[0]
        more = f" (and {len(contents.unlocked) - 1} more)" if len(contents.unlocked) > 1 else ""
        what = f"{file.source}: {file} is not in registry.lock{more}"
        raise ConfigurationError(what, "run `cdc schemas add --all` and commit the lock")
    return registry(contents)


def refreshed(registry_: Registry) -> Registry:
    """Read the folder again while the pipeline runs: added locked versions are taken up, changed ones refused.

    An unlocked version is named in `warnings`. Returns the same registry when nothing has changed.
    """
    newer = registry_.succeeded_by(registry(scan(Path(registry_.folder))))
    same = (registry_.subjects.keys(), registry_.settings, registry_.warnings) == (
        newer.subjects.keys(), newer.settings, newer.warnings,
    ) and all(len(registry_.subjects[s]) == len(newer.subjects[s]) for s in newer.subjects)  # fmt: skip
    return registry_ if same else newer


def registry(contents: Contents) -> Registry:
    """Make a Registry of the locked versions."""
    subjects: dict[str, tuple[Version, ...]] = {}
    for subject, files in contents.files.items():
        versions = []
        for file in files:
            entry = contents.lock.by_key.get((file.subject, file.number))
            if entry is not None:
                versions.append(Version(subject, file.number, entry.id, file.fingerprint, file.schema, file.source))
        if versions:
            subjects[subject] = tuple(versions)
    warnings = tuple(f"{f.source}: {f} is not in registry.lock and does not exist yet" for f in contents.unlocked)
    for subject, settings in contents.settings.items():
        if settings.pinned is not None and settings.pinned > len(subjects.get(subject, ())):
            what = f"{contents.folder / 'registry.toml'}: {subject} pins version {settings.pinned}, which is not locked"
            raise ConfigurationError(what, "pin a locked version")
    return Registry(str(contents.folder), subjects, contents.settings, warnings)


def scan(path: Path) -> Contents:
    """Read every file of the folder and hold it against the lock."""
    if not path.is_dir():
        raise ConfigurationError(f"the schema folder {path} does not exist", "create it, or set schemas.folder")
    shared = _shared_types(path / _TYPES)
    files: dict[str, tuple[Candidate, ...]] = {}
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or entry.name == _TYPES or not entry.is_dir():
            if entry.suffix == ".avsc":
                _refuse(entry, "a schema file stands in a folder named after its subject", f"{path.name}/<subject>/1.avsc")
            continue
        files[entry.name] = _subject(entry, shared)
    lock = read_lock(path)
    _check_lock(path, files, lock)
    settings_file = path / "registry.toml"
    text = _text(settings_file) if settings_file.exists() else ""
    return Contents(path, files, read_settings(text, str(settings_file), files), lock)


def read_lock(path: Path) -> Lock:
    """Read registry.lock; a folder without one has no version yet."""
    file = path / "registry.lock"
    return lock_file.read(_text(file), str(file)) if file.exists() else lock_file.Lock()


def write_lock(path: Path, lock: Lock) -> None:
    """Write registry.lock whole, or not at all."""
    handle, name = tempfile.mkstemp(dir=path, prefix=".registry.lock.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(lock_file.render(lock))
        temporary.chmod(0o644)  # mkstemp makes files that only their owner may read
        temporary.replace(path / "registry.lock")
    except BaseException:
        temporary.unlink()
        raise


def _shared_types(path: Path) -> dict[str, SharedType]:
    found: dict[str, SharedType] = {}
    for file in sorted(path.glob("*.avsc")) if path.is_dir() else ():
        for name, shared in definitions(_json(file), str(file)).items():
            other = found.setdefault(name, shared)
            if other.document != shared.document:
                what = f"{name} is defined twice and differently, in {other.source} and in {shared.source}"
                raise ConfigurationError(what, "keep one definition, or give one of them another name")
    for name, shared in found.items():
        parse(name, shared.source, found)
    return found


def _subject(path: Path, shared: Mapping[str, SharedType]) -> tuple[Candidate, ...]:
    if not _SUBJECT.fullmatch(path.name):
        _refuse(path, "a subject's name is letters, digits, and . _ - inside it", "rename the folder")
    numbers = _numbers(path)
    if not numbers:
        _refuse(path, "the subject has no version", "add 1.avsc, or remove the folder")
    for expected, number in enumerate(sorted(numbers), 1):
        if expected != number:
            what = f"version {expected} of {path.name} is missing, but there is {numbers[number].name}"
            _refuse(path, what, "versions are numbered without a gap; restore the file or rename the newer one")
    return tuple(_file(path.name, number, numbers[number], shared) for number in sorted(numbers))


def _numbers(path: Path) -> dict[int, Path]:
    """Return the version files of a subject by their number."""
    numbers: dict[int, Path] = {}
    for file in sorted(path.iterdir()):
        if file.name.startswith("."):
            continue
        stem = file.stem.lstrip("0") or "0"
        if file.suffix != ".avsc" or not _VERSION.fullmatch(stem):
            _refuse(file, "a subject's folder holds versions only", "name it by its number: 1.avsc, 2.avsc, ..")
        other = numbers.setdefault(int(stem), file)
        if other is not file:
            _refuse(file, f"version {stem} of {path.name} stands in two files, {other.name} and {file.name}", "keep one")
    for number, file in numbers.items():
        if file.stem != str(number):
            _refuse(file, "a version's number has no leading zeros", f"rename it to {number}.avsc")
    return numbers


def _file(subject: str, number: int, path: Path, shared: Mapping[str, SharedType]) -> Candidate:
    schema = parse(_json(path), str(path), shared)
    return Candidate(subject, number, schema, fingerprint(schema), str(path))


def _check_lock(path: Path, files: Mapping[str, tuple[Candidate, ...]], lock: Lock) -> None:
    for entry in lock.entries:
        have = files.get(entry.subject, ())
        if entry.version > len(have):
            what = f"{path / entry.subject / f'{entry.version}.avsc'} is locked with id {entry.id} and missing"
            raise ConfigurationError(what, "restore it from git: records with that id may still be read")
        file = have[entry.version - 1]
        if file.fingerprint != entry.fingerprint:
            what = f"{file.source}: {file} is locked with id {entry.id} and was changed since, or a shared type in it"
            raise ConfigurationError(what, f"restore it from git, and put the change into {entry.subject}/{len(have) + 1}.avsc")
    for subject, have in files.items():
        locked = [(subject, file.number) in lock.by_key for file in have]
        if locked != sorted(locked, reverse=True):
            missing = have[locked.index(False)]
            what = f"{missing.source}: {missing} is not in registry.lock, but a later version is"
            raise ConfigurationError(what, "restore registry.lock from git")


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}", "check the file and its permissions")
    if len(data) > MAX_FILE_BYTES:
        _refuse(path, f"the file is larger than {MAX_FILE_BYTES} bytes", "split the schema")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse(path, f"is not UTF-8 (at byte {error.start})", "save it as UTF-8")


def _json(path: Path) -> Json:
    try:
        return json.loads(_text(path), object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        _refuse(path, f"is not JSON: {error.msg}, line {error.lineno} column {error.colno}", "correct the file")
    except _DuplicateMemberError as error:
        _refuse(path, f"an object has two members {error.args[0]!r}", "keep one")
    except RecursionError:
        _refuse(path, "types are nested far too deeply", "flatten the schema")


class _DuplicateMemberError(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateMemberError(next(name for name in names if names.count(name) > 1))
    return found


def _refuse(path: Path, reason: str, fix: str) -> NoReturn:
    msg = f"{path}: {reason}"
    raise ConfigurationError(msg, fix)
