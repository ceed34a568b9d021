"""The schema folder as one immutable value: subjects, versions, ids, and an encoder for each version. No I/O.

The hot path asks `Registry.encoder` once for each row: a dictionary look-up after the first time. Encoders are compiled
when they are first asked for and kept, also by the registry that follows this one when versions are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from cdc.avro.encoder import Encoder
from cdc.avro.fingerprint import guid
from cdc.errors import ConfigurationError, InvalidEvent, nearest

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping

    from cdc.avro.schema import Schema

MODES: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)

DEFAULT_MODE: Final = "BACKWARD_TRANSITIVE"
"""Topics are replayed from their start, so the newest reader meets the oldest writer."""

GUESSES: Final = 1_000
"""Unknown subjects for which the one that was meant is looked for: a writer with more of them does not mistype, and a guess takes
longer than all else that a dead letter needs."""


@dataclass(frozen=True, slots=True)
class Version:
    """One locked version of one subject."""

    subject: str
    number: int
    id: int
    fingerprint: str
    schema: Schema
    source: str

    @property
    def text(self) -> str:
        """The schema as one JSON text with shared types written out, as clients are given it."""
        return orjson.dumps(self.schema.document).decode()

    @property
    def guid(self) -> uuid.UUID:
        """The identifier for records that name their schema in a header."""
        return guid(self.fingerprint)

    def __str__(self) -> str:
        return f"{self.subject}/{self.number}"


@dataclass(frozen=True, slots=True)
class SubjectSettings:
    """What registry.toml says of one subject; `personal` holds paths such as `customer.email`, `key` is one."""

    compatibility: str = DEFAULT_MODE
    owner: str = ""
    topic: str = ""
    retention: str = ""
    consumers: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    pinned: int | None = None
    description: str = ""
    aggregatetype: str = ""
    key: str = ""


@dataclass(frozen=True)
class Registry:
    """All locked versions of a folder; `warnings` tells what the folder holds beside them."""

    folder: str
    subjects: Mapping[str, tuple[Version, ...]]
    settings: Mapping[str, SubjectSettings]
    warnings: tuple[str, ...] = ()
    _by_id: dict[int, Version] = field(init=False, repr=False, compare=False)
    _encoders: dict[tuple[str, int | None], Encoder] = field(init=False, repr=False, compare=False)
    _guesses: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        versions = {version.id: version for versions in self.subjects.values() for version in versions}
        object.__setattr__(self, "_by_id", versions)
        object.__setattr__(self, "_encoders", {})
        object.__setattr__(self, "_guesses", {})

    def __repr__(self) -> str:
        return f"<Registry {self.folder} subjects={len(self.subjects)} versions={len(self._by_id)}>"

    @property
    def versions(self) -> Iterable[Version]:
        """Every version, by id."""
        return [self._by_id[key] for key in sorted(self._by_id)]

    @property
    def used(self) -> list[tuple[str, int]]:
        """Subjects and versions whose encoders were asked for."""
        return [(subject, number) for subject, number in list(self._encoders) if number is not None]

    def latest(self, subject: str) -> Version:
        """Return the newest version; InvalidEvent for an unknown subject."""
        return self._subject(subject)[-1]

    def version(self, subject: str, number: int) -> Version:
        """Return one version; InvalidEvent for an unknown subject or version."""
        versions = self._subject(subject)
        if not 1 <= number <= len(versions):
            known = f"versions 1 to {len(versions)}" if len(versions) > 1 else "version 1 alone"
            what = f"subject {subject!r} has no version {number}: the schema folder has {known}"
            raise InvalidEvent("schema", what, "add the version to the schema folder")
        return versions[number - 1]

    def pinned(self, subject: str) -> Version | None:
        """Return the version that registry.toml pins for rows that name none, if it does."""
        settings = self.settings.get(subject)
        return None if settings is None or settings.pinned is None else self.version(subject, settings.pinned)

    def by_id(self, schema_id: int) -> Version | None:
        """Return the version with this id, None if there is none."""
        return self._by_id.get(schema_id)

    def settings_of(self, subject: str) -> SubjectSettings:
        """Return what registry.toml says of a subject, or the defaults."""
        return self.settings.get(subject, _DEFAULTS)

    def encoder(self, subject: str, version: int | None = None) -> Encoder:
        """Return the encoder of `version`, else of the pinned version, else of the newest; InvalidEvent if unknown."""
        try:
            return self._encoders[subject, version]
        except KeyError:
            pass
        if version is None:
            found = self.pinned(subject) or self.latest(subject)
            encoder = self.encoder(subject, found.number)
        else:
            found = self.version(subject, version)
            encoder = Encoder(subject, found.number, found.id, found.schema)
        self._encoders[subject, version] = encoder
        return encoder

    def succeeded_by(self, newer: Registry) -> Registry:
        """Return `newer` if it only adds versions to this registry, with the encoders made so far."""
        for version in self._by_id.values():
            other = newer.by_id(version.id)
            if other is None or (str(other), other.fingerprint) != (str(version), version.fingerprint):
                what = f"{version.source}: {version} (id {version.id}) was changed or taken away while the pipeline runs"
                raise ConfigurationError(what, "a locked version never changes: restore it, and add a new version instead")
        for (subject, number), encoder in self._encoders.items():
            if number is not None:
                newer._encoders[subject, number] = encoder
        return newer

    def _subject(self, subject: str) -> tuple[Version, ...]:
        try:
            return self.subjects[subject]
        except KeyError:
            what = f"subject {subject!r} is not in the schema folder {self.folder}"
            raise InvalidEvent("schema", what, f"{self._guess(subject)}correct the type, or add it with `cdc schemas add`") from None

    def _guess(self, subject: str) -> str:
        """Ask for the subject that was probably meant; the same wrong one comes with every row of its writer."""
        guess = self._guesses.get(subject)
        if guess is None and len(self._guesses) < GUESSES:
            near = nearest(subject, self.subjects)
            guess = self._guesses[subject] = "" if near is None else f"did you mean {near!r}? "
        return guess or ""


_DEFAULTS: Final = SubjectSettings()
