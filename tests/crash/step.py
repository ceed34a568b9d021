"""A command that kills itself at a named step: `python -m tests.crash.step MODULE:CLASS.METHOD NUMBER MOMENT COMMAND ..`.

The step is the NUMBERth call of that method, MOMENT is `before` or `after` it. The product knows nothing of this: the method is
wrapped in this process, which is otherwise `cdc COMMAND ..`.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from typing import Any

from cdc.cli import main

KILLED = -signal.SIGKILL


def arm(target: str, number: int, moment: str) -> None:
    """Wrap a method so that its call kills this process."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    method = getattr(owner, name)
    calls = 0

    @functools.wraps(method)
    def wrapped(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes
        nonlocal calls
        calls += 1
        if calls == number and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = method(*arguments, **named)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    target_, number_, moment_, *command = sys.argv[1:]
    arm(target_, int(number_), moment_)
    sys.exit(main(command))
