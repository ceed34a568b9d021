"""How the status page writes numbers and times: short, and the same everywhere."""

from __future__ import annotations

from cdc.position import time_text

THOUSAND, MINUTE_S, HOUR_S = 1000.0, 60.0, 3600.0

SHORT_S = 10.0
"""Below it tenths of a second are shown."""


def number(value: float, unit: str = "") -> str:
    """Write a number in three digits or so: 12.3k, or with a unit 12.3 kB."""
    power = 0
    while abs(value) >= THOUSAND and power < len(_PREFIXES) - 1:
        value /= THOUSAND
        power += 1
    digits = f"{value:.1f}" if 0 < abs(value) < 10 * SHORT_S and value != int(value) else f"{value:.0f}"
    prefix = _PREFIXES[power]
    return f"{digits} <small>{prefix}{unit}</small>" if unit else f"{digits}{prefix}"


_PREFIXES = ("", "k", "M", "G", "T", "P")


def seconds(value: float) -> str:
    """Write a duration: 0 s, 40 ms, 3.2 s, 12 min, 3.5 h."""
    if value >= HOUR_S:
        return f"{value / HOUR_S:.1f} h"
    if value >= 2 * MINUTE_S:
        return f"{value / MINUTE_S:.0f} min"
    if value >= SHORT_S:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1000:.0f} ms" if value > 0 else "0 s"


def clock(unix_us: int) -> str:
    """Write a time of the day in UTC, with the date for a machine."""
    text = time_text(unix_us)
    return f'<time datetime="{text}">{text[11:19]}</time>'


def when(unix_us: int) -> str:
    """Write a date and a time of the day in UTC."""
    text = time_text(unix_us)
    return f'<time datetime="{text}">{text[:10]} {text[11:19]} UTC</time>'
