"""Copy a Registry to an external Confluent Schema Registry, keeping ids. The other file of this room that does I/O.

Strategy: a subject at a time, versions in order. What the other side has already is compared and left alone, so a push that
broke off is run again. A registry takes given ids only in mode IMPORT, and that only for a subject that is empty; the mode
is set for the subject alone, and taken back afterwards.
"""

from __future__ import annotations

import base64
import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from cdc.avro.confluent import MEDIA_TYPE, SCHEMA_NOT_FOUND, SUBJECT_NOT_FOUND, VERSION_NOT_FOUND
from cdc.avro.fingerprint import fingerprint
from cdc.avro.parse import parse
from cdc.errors import AuditFailed, ConfigurationError

if TYPE_CHECKING:
    from cdc.avro.registry import Registry, Version

TIMEOUT_S: Final = 30.0
"""For one request; registries answer in milliseconds, or not at all."""

_ABSENT: Final = (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did: versions that were copied, and versions that were there already."""

    copied: tuple[str, ...]
    present: tuple[str, ...]


def push(registry: Registry, url: str) -> Pushed:
    """Copy every version; a user and a password may stand in the URL."""
    remote = _Remote(url)
    copied: list[str] = []
    present: list[str] = []
    for subject, versions in registry.subjects.items():
        missing = [version for version in versions if not remote.has(version)]
        present += [str(version) for version in versions if version not in missing]
        if missing:
            remote.copy(subject, missing)
            copied += [str(version) for version in missing]
    return Pushed(tuple(copied), tuple(present))


class _Remote:
    """The other registry."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("the registry's address is no URL", "write it as http://HOST:PORT")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self.place = f"{parts.hostname}:{parts.port or kind.default_port}"
        self.base = parts.path.rstrip("/")
        self.headers = {"accept": MEDIA_TYPE, "content-type": MEDIA_TYPE}
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self.headers["authorization"] = "Basic " + base64.b64encode(secret).decode()

    def has(self, version: Version) -> bool:
        """Whether the version is there; AuditFailed if another one stands in its place."""
        status, found = self.call("GET", f"/subjects/{_part(version.subject)}/versions/{version.number}")
        if status == http.HTTPStatus.OK:
            if found.get("id") != version.id or fingerprint(parse(json.loads(found["schema"]), "remote")) != version.fingerprint:
                what = f"{self.place}: {version} is another schema there, or has id {found.get('id')} and not {version.id}"
                raise AuditFailed(what, "push to a registry that this folder alone fills")
            return True
        if found.get("error_code") not in _ABSENT:
            raise self.refused(f"{version} cannot be read", found)
        return False

    def copy(self, subject: str, versions: list[Version]) -> None:
        """Register versions with their ids."""
        path = f"/mode/{_part(subject)}"
        status, found = self.call("PUT", path, {"mode": "IMPORT"})
        if status != http.HTTPStatus.OK:
            status, found = self.call("PUT", path + "?force=true", {"mode": "IMPORT"})
        if status != http.HTTPStatus.OK:
            raise self.refused(f"subject {subject} cannot be set to mode IMPORT", found)
        try:
            for version in versions:
                body = {"schema": version.text, "id": version.id, "version": version.number}
                status, found = self.call("POST", f"/subjects/{_part(subject)}/versions", body)
                if status != http.HTTPStatus.OK or found.get("id") != version.id:
                    raise self.refused(f"{version} is not taken with id {version.id}", found)
        finally:
            self.call("DELETE", path)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Make one request."""
        try:
            data = None if body is None else json.dumps(body)
            self.connection.request(method, self.base + path, data, self.headers)
            response = self.connection.getresponse()
            document = json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.connection.close()
            what = f"the registry at {self.place} does not answer as one: {type(error).__name__}"
            raise ConfigurationError(what, "check the address") from None
        return response.status, document if isinstance(document, dict) else {}

    def refused(self, what: str, found: dict[str, Any]) -> AuditFailed:
        """Return the error for an answer that is a refusal."""
        return AuditFailed(f"{self.place}: {what}: {found.get('message', 'no reason given')}", "see the registry's log")


def _part(text: str) -> str:
    return quote(text, safe="")
