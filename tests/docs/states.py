"""Draw the supervisor's states as a mermaid diagram; `python -m tests.docs.states` prints it for docs/architecture.md."""

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


if __name__ == "__main__":
    print(diagram())
