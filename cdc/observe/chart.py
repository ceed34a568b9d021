"""Small charts as inline SVG: drawn here, stretched by the page, described in words for who does not see them.

A chart is a curve over time with its ground filled; its labels are text of the page, so that they keep their size however wide
the curve is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 600, 120
"""Units of the drawing; the page gives it its size."""

COLUMNS = 180
"""Points of a curve: on a wide screen one for every four pixels."""

Point = tuple[float, float]
"""A Unix time in seconds, and a value."""


def top_of(value: float) -> float:
    """Return the next round number (1, 2 or 5 times a power of ten), at least 1, that is not below `value`."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def columns(points: Sequence[Point], start_s: float, end_s: float) -> list[Point]:
    """Return at most COLUMNS points between both times, the highest of each column: a peak is not averaged away."""
    width = (end_s - start_s) / COLUMNS
    found: dict[int, Point] = {}
    for time_s, value in points:
        if time_s >= start_s:
            column = int((time_s - start_s) / width)
            if column not in found or value >= found[column][1]:
                found[column] = (time_s, value)
    return list(found.values())


def curve(points: Sequence[Point], start_s: float, end_s: float, top: float, label: str) -> str:
    """Draw points between two times and from 0 to `top`; `label` says in words what there is to see."""
    across, up = WIDTH / (end_s - start_s), HEIGHT / top
    places = [f"{(time_s - start_s) * across:.1f} {HEIGHT - value * up:.1f}" for time_s, value in columns(points, start_s, end_s)]
    lines = "".join(f'<path class="grid" d="M0 {y}H{WIDTH}"/>' for y in (0.5, HEIGHT / 2, HEIGHT - 0.5))
    drawn = ""
    if places:
        line = "M" + "L".join(places)
        left, right = places[0].split()[0], places[-1].split()[0]
        drawn = f'<path class="ground" d="{line}L{right} {HEIGHT}L{left} {HEIGHT}Z"/><path class="line" d="{line}"/>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">{lines}{drawn}</svg>'


def strip(spans: Sequence[tuple[float, float, str]], start_s: float, end_s: float) -> str:
    """Draw spans of time, each from, to and its class, as one line of blocks; the page tells them in words elsewhere."""
    across = WIDTH / (end_s - start_s)
    blocks = ""
    for begin, end, kind in spans:
        left, right = max(begin, start_s), min(end, end_s)
        if right > left:
            # An outage of seconds in an hour is to be seen as well.
            blocks += (
                f'<rect class="{kind}" x="{(left - start_s) * across:.1f}" width="{max(3.0, (right - left) * across):.1f}" height="10"/>'
            )
    return f'<svg class="strip" viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">{blocks}</svg>'
