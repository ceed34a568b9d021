"""The manual's figures, its plots and the README's are those that the bench has kept."""

from __future__ import annotations

import re

import pytest

from benchmarks import plots, report


def test_what_shows_figures_was_written_from_the_files_of_the_bench() -> None:
    documents = report.kept()
    assert documents.keys() >= {"backlog", "single", "latency", "profile", "growth"}
    for path, text in report.rendered(documents).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: make bench ARGS=--render"


def test_every_plot_is_shown_and_written() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    written = {path.name for path in report.FOLDER.glob("*.svg")}
    assert written == {f"{name}.svg" for name in report.drawings(report.kept())}
    assert all(f"performance/{name}" in page for name in written if not name.startswith("single-"))


@pytest.mark.parametrize("points", [[(1, 3.0)], [(1, 0.0), (10, 0.0)], [(1, 1e6), (1_000_000, 8e6)]])
def test_lines_of_any_scale_stay_in_the_drawing(points: list[tuple[float, float]]) -> None:
    drawn = plots.lines("a < b", "x", {"cdc": points})
    assert "a &lt; b" in drawn
    places = [float(number) for number in re.findall(r'<circle [^>]*cy="([\d.]+)"', drawn)]
    assert len(places) == len(points)
    assert all(plots.TOP <= place <= plots.HEIGHT - plots.PAD_BOTTOM for place in places)
