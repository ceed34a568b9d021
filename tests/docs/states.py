"""Draw the supervisor's states as a mermaid diagram; `python -m tests.docs.states` prints it for docs/architecture.md.

The site draws the same table as SVG: it loads no script that could draw the diagram.
"""

import math

from cdc.pipeline.supervisor import TRANSITIONS, State

ENDS = (State.STOPPED, State.FAILED)


def diagram() -> str:
    """Every transition but those that any state may make: to stopping, stopped and failed."""
    leaving = frozenset.intersection(*(after for state, after in TRANSITIONS.items() if after and state is not State.STOPPING))
    lines = ["stateDiagram-v2", f"    [*] --> {State.STARTING}"]
    for state, after in TRANSITIONS.items():
        others = after if state is State.STOPPING else after - leaving
        lines += [f"    {state} --> {following}" for following in State if following in others]
        if leaving <= after:
            lines.append(f"    {state} --> {State.STOPPING}")
    lines += [f"    {state} --> [*]" for state in ENDS]
    text = ", ".join(state for state in State if state in leaving and state is not State.STOPPING)
    return "\n".join([*lines, f"    note right of {State.STOPPING}: every state before it may also end in {text}"])


PLACES = {
    State.STARTING: (70, 130),
    State.OPENING: (230, 130),
    State.STANDBY: (150, 40),
    State.HELD: (320, 40),
    State.BACKOFF: (320, 220),
    State.STREAMING: (420, 130),
    State.STOPPING: (590, 130),
    State.STOPPED: (730, 70),
    State.FAILED: (730, 190),
}
"""Where each state stands in the drawing."""

WIDTH, HEIGHT, HALF_X, HALF_Y = 810, 265, 46, 17


def drawing() -> str:
    """The same as SVG, in the colours of the text around it; to stopping there is one arrow, which stands for all."""
    arrows = {(state, after) for state, others in TRANSITIONS.items() for after in others if after not in {State.STOPPING, *ENDS}}
    arrows |= {(State.STREAMING, State.STOPPING), *((State.STOPPING, end) for end in ENDS)}
    lines = "".join(_arrow(*arrow, both=(arrow[1], arrow[0]) in arrows) for arrow in sorted(arrows))
    boxes = "".join(
        f'<rect x="{x - HALF_X}" y="{y - HALF_Y}" width="{2 * HALF_X}" height="{2 * HALF_Y}" rx="8" fill="none" stroke="currentColor"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle">{state}</text>'
        for state, (x, y) in PLACES.items()
    )
    told = "; ".join(f"{state} to {after}" for state, after in sorted(arrows))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="States: {told}; every state may also end" width="100%" '
        'fill="currentColor" font-size="14" font-family="sans-serif"><defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" '
        'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 10 5 0 10Z"/></marker></defs>'
        f'{lines}{boxes}<text x="590" y="250" text-anchor="middle" font-size="12">from every state but these three</text></svg>'
    )


def _arrow(state: State, after: State, *, both: bool) -> str:
    """A line from the edge of one box to that of another; where there is one back, both stand apart."""
    x1, y1, x2, y2 = map(float, (*PLACES[state], *PLACES[after]))
    length = math.hypot(x2 - x1, y2 - y1)
    across, down = (x2 - x1) / length, (y2 - y1) / length
    aside = 6 if both else 0
    x1, x2 = x1 - down * aside, x2 - down * aside
    y1, y2 = y1 + across * aside, y2 + across * aside
    edge = min(HALF_X / abs(across) if across else math.inf, HALF_Y / abs(down) if down else math.inf) + 2
    return (
        f'<line x1="{x1 + across * edge:.0f}" y1="{y1 + down * edge:.0f}" x2="{x2 - across * edge:.0f}" y2="{y2 - down * edge:.0f}" '
        'stroke="currentColor" marker-end="url(#tip)"/>'
    )


if __name__ == "__main__":
    print(diagram())
