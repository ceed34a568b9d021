"""docs/metrics.md names exactly the metrics that exist."""

from pathlib import Path

from cdc.observe.reference import markdown

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "python -m cdc.observe.reference > docs/metrics.md"
