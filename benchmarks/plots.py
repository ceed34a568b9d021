"""Plots as SVG text: bars for what is compared, lines for what grows.

Written by hand and not by a plotting library, for one reason: the same figures always give the same bytes, on every machine and
without an installation, so an everyday test can hold the plots in the manual against the file of figures that they show. Two
forms are all that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 760

BAR, GAP, LEFT, RIGHT, TOP = 22, 10, 210, 120, 40
"""Of a plot of bars, in pixels: the bar, between bars, the labels, the values, the title."""

HEIGHT, PAD_LEFT, PAD_BOTTOM = 300, 70, 60
"""Of a plot of lines: the drawing with its margins."""

COLOURS = ("#2563a8", "#9aa5b1", "#c4621d")
"""The one who is told apart first: ours, the limit, a third."""


def bars(title: str, values: Mapping[str, float], unit: str, *, ours: str = "") -> str:
    """Return horizontal bars from zero, in the order of `values`; the one called `ours` stands out."""
    longest = max(values.values())
    parts = []
    for number, (label, value) in enumerate(values.items()):
        y = TOP + number * (BAR + GAP)
        length = max(1.0, (WIDTH - LEFT - RIGHT) * value / longest)
        colour = COLOURS[0] if label == ours else COLOURS[1]
        parts += [
            _text(LEFT - 8, y + BAR * 0.7, label, "end"),
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
            _text(LEFT + length + 6, y + BAR * 0.7, f"{_short(value)} {unit}"),
        ]
    return _svg(title, TOP + len(values) * (BAR + GAP) + 4, parts)


def lines(title: str, label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return lines over a logarithmic axis called `label`, with values from zero on."""
    xs = sorted({x for points in series.values() for x, _ in points})
    low, high = math.log10(xs[0]), math.log10(xs[-1])
    top = _round_up(max(y for points in series.values() for _, y in points))
    bottom, width = HEIGHT - PAD_BOTTOM, WIDTH - PAD_LEFT - 130

    def at(x: float, y: float) -> tuple[float, float]:
        along = (math.log10(x) - low) / (high - low) if high > low else 0.5
        return PAD_LEFT + along * width, bottom - (bottom - TOP) * y / top

    parts = []
    for quarter in range(5):
        x, y = at(xs[0], top * quarter / 4)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + width:.1f}" y2="{y:.1f}" stroke="#dde3ea"/>')
        parts.append(_text(x - 8, y + 4, _short(top * quarter / 4), "end"))
    parts += [_text(at(x, 0)[0], bottom + 18, _short(x), "middle") for x in xs]
    parts.append(_text(PAD_LEFT + width / 2, bottom + 42, label, "middle"))
    for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
        placed = [at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
        parts.append(_text(placed[-1][0] + 8, placed[-1][1] + 4, name, colour=colour))
    return _svg(title, HEIGHT, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"'
        f' font-family="sans-serif" font-size="13"><title>{escape(title)}</title>'
    )
    background = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    heading = f'<text x="12" y="22" font-size="15" font-weight="bold" fill="#1f2933">{escape(title)}</text>'
    return "\n".join([head, background, heading, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start", *, colour: str = "#1f2933") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size * 10 or (value >= size and value % size == 0):
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _round_up(value: float) -> float:
    """Return 1, 2, 4 or 8 times a power of ten: quarters of it are round."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value)
