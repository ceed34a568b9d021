"""A Dockerfile without an engine: its instructions, and its steps done in a folder that stands for the image's root.

Only what ours uses: FROM, ARG, WORKDIR, COPY (of the context and of a stage), RUN, ENV, USER and the forms of ENTRYPOINT, CMD and
HEALTHCHECK as a list. Absolute paths of the image in a RUN are those below the folder; the python is ours.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOTS = ("/opt/", "/src", "/etc/cdc")
"""Folders of the image that steps name."""


class Instruction(NamedTuple):
    """One instruction, its line continuations joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The list of an exec form (the last thing of a HEALTHCHECK)."""
        found: list[str] = json.loads(self.text[self.text.index("[") :])
        return found


def instructions(text: str) -> Iterator[Instruction]:
    """Read a Dockerfile."""
    whole = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    for line in filter(None, map(str.strip, whole.splitlines())):
        name, _, rest = line.partition(" ")
        yield Instruction(name.upper(), " ".join(rest.split()) if name.upper() == "RUN" else rest)


class Image:
    """What the steps of a Dockerfile make, below `root`."""

    def __init__(self, dockerfile: Path, context: Path, root: Path) -> None:
        self._context = context
        self._root = root
        self._stage = ""
        self._workdir = "/"
        self.environment: dict[str, str] = {}
        self.health: list[str] = []
        self.entry: list[str] = []
        self.user = ""
        steps: dict[str, Callable[[Instruction], None]] = {
            "FROM": self._from,
            "WORKDIR": self._enter,
            "COPY": self._copy,
            "RUN": self._run,
            "ENV": self._env,
            "USER": self._user,
            "HEALTHCHECK": self._healthcheck,
            "ENTRYPOINT": self._entrypoint,
            "CMD": self._cmd,
        }
        for step in instructions(dockerfile.read_text()):
            if step.name not in {"ARG", "EXPOSE", "STOPSIGNAL"}:
                steps[step.name](step)

    def path(self, path: str) -> Path:
        """Return where a path of the image is."""
        return self._root / self._stage / path.lstrip("/")

    def there(self, text: str) -> str:
        """Return a text with the paths of the image as they are here."""
        pattern = "|".join(map(re.escape, ROOTS))
        return re.sub(rf"(?<![\w.])(?={pattern})", str(self._root / self._stage), text)

    def _from(self, step: Instruction) -> None:
        self._stage = step.text.partition(" AS ")[2] or "final"
        self._workdir, self.environment = "/", {}
        self.path("/").mkdir(parents=True)

    def _at(self, path: str) -> Path:
        return self.path(os.path.normpath(Path(self._workdir, path)))

    def _enter(self, step: Instruction) -> None:
        self._workdir = step.text
        self.path(step.text).mkdir(parents=True, exist_ok=True)

    def _copy(self, step: Instruction) -> None:
        *sources, target = step.text.split()
        base, kept = self._context, not_ignored(self._context)
        if sources[0].startswith("--from="):
            base, kept = self._root / sources.pop(0).removeprefix("--from="), lambda _: True
        for source in sources:
            there = base / source.lstrip("/")
            assert kept(source.lstrip("/")), f".dockerignore keeps {source} from the build"
            into = self._at(target) / there.name if target.endswith("/") else self._at(target)
            into.parent.mkdir(parents=True, exist_ok=True)
            if there.is_dir():
                shutil.copytree(there, into, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            else:
                shutil.copy(there, into)

    def _run(self, step: Instruction) -> None:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["/bin/sh", "-ec", self.there(step.text)],
            cwd=self.path(self._workdir),
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{step.text}\n{done.stdout}{done.stderr}"

    def _env(self, step: Instruction) -> None:
        for each in step.text.split():
            name, _, value = each.partition("=")
            self.environment[name] = self.there(value).replace("$PATH", os.environ["PATH"])

    def _user(self, step: Instruction) -> None:
        self.user = step.text

    def _healthcheck(self, step: Instruction) -> None:
        self.health = step.words

    def _entrypoint(self, step: Instruction) -> None:
        self.entry = step.words

    def _cmd(self, step: Instruction) -> None:
        self.entry = self.entry + step.words


def not_ignored(context: Path) -> Callable[[str], bool]:
    """Return whether a path of the context comes into a build, by .dockerignore."""
    patterns = [line for line in (context / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    def kept(path: str) -> bool:
        answer = True
        for pattern in patterns:
            bare = pattern.removeprefix("!")
            if fnmatch.fnmatch(path, bare) or any(fnmatch.fnmatch(str(parent), bare) for parent in Path(path).parents):
                answer = pattern.startswith("!")
        return answer

    return kept
