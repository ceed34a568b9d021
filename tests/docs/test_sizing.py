"""The page on sizing says what the stored figures and the model say."""

from __future__ import annotations

from benchmarks import shards


def test_the_page_was_written_from_the_stored_figures() -> None:
    page = shards.PAGE.read_text(encoding="utf-8")
    assert shards.rendered(page) == page, "python -m benchmarks.shards"


def test_the_model_names_the_bound() -> None:
    costs = shards.Costs(thread=10, library=2, sent=4, hidden=2, broker=4)
    assert shards.rate(costs, 1, 2) == (100_000, "pipelines")
    assert shards.rate(costs, 2, 2) == (2e6 / 22, "cores")
    assert shards.rate(costs, 20, 1000) == (20e6 / 42, "walsenders")
    assert shards.needed(costs, 150_000) == (2, 4)
    assert shards.needed(costs, 600_000) is None, "each walsender decodes everything"
