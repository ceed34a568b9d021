"""The manual is built as a site without a warning; nothing on it leads nowhere or is loaded from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
from html import unescape
from pathlib import Path

import pytest

from tests import packages
from tests.docs import site
from tests.docs.pages import PAGES, ROOT


def pins(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_site_is_built_with_what_everything_else_has() -> None:
    ours, site_s = pins(ROOT / "requirements.lock"), pins(ROOT / "docs" / "requirements.txt")
    assert site_s.keys() >= {"sphinx", "myst-parser", "furo"}
    assert {name: version for name, version in site_s.items() if ours.get(name, version) != version} == {}


def test_what_is_in_the_navigation_exists() -> None:
    names = [name for group in site.NAVIGATION.values() for name in group]
    assert len(names) == len(set(names))
    assert {ROOT / name for name in names} <= set(PAGES)


def found(pattern: str, text: str) -> list[str]:
    return [unescape(each) for each in re.findall(pattern, text)]


@pytest.mark.packages
def test_the_site(capfd: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("sphinx") is None:
        reason = "Sphinx is missing: make packages"
        if os.environ.get(packages.REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    assert site.build() == 0, capfd.readouterr().err
    built = site.FOLDER / "site"
    texts = {file: file.read_text(encoding="utf-8") for file in built.rglob("*.html")}
    places = {file: {"", *found(r'\b(?:id|name)="([^"]*)"', text)} for file, text in texts.items()}
    assert {built / page.relative_to(ROOT).with_suffix(".html") for page in site.pages()} <= texts.keys()
    checked = set[tuple[Path, str]]()
    for file, text in texts.items():
        loaded = found(r'<(?:script|img|link)\b[^>]*?\b(?:src|href)="([^"]*)"', text)
        assert not [link for link in loaded if re.match(r"https?:|//", link)], f"{file} is loaded from elsewhere"
        if built / "source" in file.parents:
            continue  # a listing: its lines link to themselves
        for link in {*loaded, *found(r'<a\b[^>]*?\bhref="([^"]*)"', text)}:
            path, _, place = link.partition("#")
            if re.match(r"[a-z]+:", link) or (key := (file.parent if path else file, link)) in checked:
                continue
            checked.add(key)
            target = (file.parent / path.partition("?")[0]).resolve() if path else file
            assert target.exists(), f"{file}: {link}"
            assert place in places.get(target, {place}), f"{file}: {link}"
