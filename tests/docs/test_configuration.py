"""docs/configuration.md says what the models say."""

import re
from pathlib import Path

from cdc.settings import Settings
from cdc.settings.models import SECTION_NOTES
from cdc.settings.reference import markdown
from cdc.settings.sources import all_paths, kind_of

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "python -m cdc.settings.reference > docs/configuration.md"


def test_every_setting_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for path in all_paths():
        if path != ("kafka",):
            row = re.search(rf"\| `{path[-1]}` \| [^|]+ \| ([^|]+) `CDC_{'__'.join(path).upper()}` \|", page)
            assert row is not None, path
            assert row[1].endswith("."), path


def test_what_is_said_of_tables_is_about_what_exists() -> None:
    assert all(kind_of(tuple(section.split("."))) for section in SECTION_NOTES)
    assert kind_of(("nothing",)) is None
    assert kind_of(()) is Settings
