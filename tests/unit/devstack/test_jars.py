from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from cdc.devstack import jars
from cdc.devstack.jars import Jar
from cdc.errors import CdcError

CONTENT = b"what was locked"
JAR = Jar("org.example", "thing", "1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Repository:
    """Serves one content for every jar, and counts."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked = 0

    def __call__(self, jar: Jar, folder: Path) -> Path:
        self.asked += 1
        path = folder / f"{jar.artifact}.jar"
        path.write_bytes(self.content)
        return path


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> Repository:
    repository = Repository(content)
    monkeypatch.setattr(jars, "_download", repository)
    return repository


def test_a_jar_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = serve(monkeypatch, CONTENT)
    (path,) = jars.fetch([JAR])
    assert path.read_bytes() == CONTENT
    assert jars.fetch([JAR]) == [path]
    assert repository.asked == 1


def test_another_content_never_comes_into_the_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    serve(monkeypatch, b"something else")
    with pytest.raises(CdcError, match=r"org\.example:thing:1\.0 came with another content"):
        jars.fetch([JAR])
    assert not [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize("damaged", [CONTENT[:4], b"", CONTENT + b"!"])
def test_what_is_damaged_in_the_cache_is_fetched_anew(monkeypatch: pytest.MonkeyPatch, damaged: bytes) -> None:
    repository = serve(monkeypatch, CONTENT)
    (path,) = jars.fetch([JAR])
    path.write_bytes(damaged)
    assert jars.fetch([JAR])[0].read_bytes() == CONTENT
    assert repository.asked == 2


def test_without_a_network_and_a_cache_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    with pytest.raises(CdcError, match=r"org\.example:thing:1\.0 could not be fetched .*with a network, try again"):
        jars.fetch([JAR])


def test_the_lock_names_each_jar_once_with_its_checksum_and_no_host() -> None:
    sections = ["kafka", *(f"postgres{version}" for version in (14, 15, 16, 17))]
    listed = [jar for section in sections for jar in jars.locked(section)]
    assert len({str(jar) for jar in listed}) == len(listed)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in listed)
    assert len({jar.path for jar in listed}) == len(listed)
    assert "://" not in jars.LOCK.read_text()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    assert jars.cache_dir() == cache
    monkeypatch.delenv("CDC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jars.cache_dir() == tmp_path / "xdg" / "cdc"
