"""Every command of docs/deploying.md: run where it can be, else looked at word by word: programs, options, files, names."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from cdc.settings import load
from tests.deploy.conftest import Debian
from tests.docs.pages import ROOT, blocks
from tests.docs.test_pages import parse

PAGE = ROOT / "docs" / "deploying.md"
RUN = "run: compose"

HELP = (
    *("docker build", "docker run", "docker compose up", "docker compose down"),
    *("kubectl create secret generic", "kubectl apply", "kubectl wait", "kubectl rollout status"),
    *("systemctl", "journalctl"),
)
"""Commands whose own help lists their options."""

OF_THE_IMAGE = {"--version"}
"""Options behind the name of an image."""

SERVICES = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
UNIT = "cdc@shop"


def commands() -> Iterator[list[str]]:
    """The words of each command, without leading variables."""
    for block in blocks(PAGE):
        if block.language == "sh" and block.mark != RUN:
            for line in block.text.replace("\\\n", " ").splitlines():
                words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=.*", word)]
                yield words


@cache
def help_of(command: str) -> str | None:
    """What a program says of its options, or None where it is not on this machine, or lacks the command."""
    words = command.split()
    if shutil.which(words[0]) is None:
        return None
    done = subprocess.run([*words, "--help"], check=False, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 and command in done.stdout else None


def ours(words: list[str]) -> list[str]:
    """The command of cdc that another program is told to run, or nothing."""
    if words[0] == "cdc":
        return words[1:]
    return words[words.index("cdc", 3) + 1 :] if "exec" in words and "cdc" in words[3:] else []


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(words)[:50])
def test_a_command_makes_sense(words: list[str]) -> None:
    inner = ours(words)
    if inner:
        parse(inner[0], inner[1:])
    outer = words[: len(words) - len(inner)]
    if "compose" in outer and "exec" in outer:
        assert outer[3] in SERVICES
    if outer[0] in {"systemctl", "journalctl"}:
        assert {word for word in outer if word.startswith("cdc@")} <= {UNIT}
    for word in outer:
        path = word.partition("=")[2] or word
        if path.startswith("docker/"):
            assert (ROOT / path).exists(), word
    options = {word.partition("=")[0] for word in outer if word.startswith("--")} - OF_THE_IMAGE
    known = next((each for each in HELP if " ".join(outer).startswith(each + " ")), None)
    text = help_of(known) if known else None
    if text is not None:
        assert {option for option in options if not re.search(rf"{option}\b", text)} == set(), outer


def test_the_secrets_for_compose_are_made_as_it_says(tmp_path: Path) -> None:
    [block] = [block for block in blocks(PAGE) if block.mark == RUN]
    subprocess.run(["sh", "-ec", block.text], cwd=tmp_path, check=True, timeout=60)
    secrets = yaml.safe_load((ROOT / "compose.yml").read_text())["secrets"]
    assert {Path(each["file"]).name for each in secrets.values()} == {path.name for path in (tmp_path / "secrets").iterdir()}
    environment = {"CDC_POSTGRES__DSN_FILE": str(tmp_path / "secrets/dsn"), "CDC_HTTP__TOKEN_FILE": str(tmp_path / "secrets/http-token")}
    settings = load(ROOT / "docker/compose/cdc.toml", [], {**environment, "CDC_HTTP__LISTEN": "0.0.0.0:8642"})
    password = (tmp_path / "secrets/postgres-password").read_text()
    assert re.fullmatch("[0-9a-f]{32}", password)
    assert password in settings.postgres.dsn.get_secret_value()


@pytest.mark.packages
def test_the_secrets_for_kubernetes_have_the_names_that_pods_want(tmp_path: Path, debian: Debian) -> None:
    (tmp_path / "secrets").mkdir()
    for name in ("dsn", "http-token", "admin-dsn"):
        (tmp_path / "secrets" / name).write_text(name)
    made = {}
    for words in commands():
        if words[:4] == ["kubectl", "create", "secret", "generic"]:
            command = [str(debian("kubectl")), *words[1:], "--dry-run=client", "--output=yaml"]
            done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
            secret = yaml.safe_load(done.stdout)
            made[secret["metadata"]["name"]] = set(secret["data"])
    wanted = {}
    for name in ("base/statefulset.yaml", "init/job.yaml"):
        pod = yaml.safe_load((ROOT / "docker/kubernetes" / name).read_text())["spec"]["template"]["spec"]
        [container] = pod["containers"]
        mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
        files = [Path(each["value"]) for each in container["env"]]
        for volume in pod["volumes"]:
            if "secret" in volume:
                at = mounts[volume["name"]]
                wanted[volume["secret"]["secretName"]] = {file.name for file in files if file.parent == at}
    assert made == wanted
