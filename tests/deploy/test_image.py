"""The image, without an engine: its Dockerfile is linted, its steps are done here, and what they made runs against real servers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.cli.version import versions
from cdc.devstack.process import start
from tests.deploy.dockerfile import Image, instructions
from tests.docs.pages import ROOT
from tests.pipeline import Pipeline, cdc, environment
from tests.waiting import wait_for

DOCKERFILE = ROOT / "docker" / "Dockerfile"
BIN = Path(sys.executable).parent


def pins(path: Path) -> dict[str, frozenset[str]]:
    """Return what a lock pins: name and version to hashes."""
    whole = path.read_text().replace("\\\n", " ")
    found = re.findall(r"^([\w.-]+==\S+)((?: +--hash=\S+)+)", whole, re.MULTILINE)
    return {pin: frozenset(hashes.split()) for pin, hashes in found}


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([BIN / "hadolint", DOCKERFILE], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_what_the_image_installs_is_what_was_tested() -> None:
    lock = pins(ROOT / "requirements.lock")
    for name in ("requirements.txt", "build-requirements.txt"):
        own = pins(ROOT / "docker" / name)
        assert own
        assert {pin: lock.get(pin) for pin in own} == own, name


def test_nobody_in_particular_runs_it_and_nothing_is_the_newest_of_anything() -> None:
    steps = list(instructions(DOCKERFILE.read_text()))
    assert [step.text for step in steps if step.name == "USER"] == ["10001:10001"]
    assert not [step for step in steps if step.name == "FROM" and ("latest" in step.text or ":" not in step.text)]
    last = max(i for i, step in enumerate(steps) if step.name == "FROM")
    assert not [step for step in steps[last:] if step.name == "RUN"], "the last stage only copies"


@pytest.mark.soak  # asks the package registry for forty packages, and compiles them
@pytest.mark.servers
@pytest.mark.timeout(1200)
def test_what_the_steps_make_runs_and_is_healthy(pipeline: Pipeline, tmp_path: Path) -> None:
    """`cdc --version`, `cdc init` and `cdc run` of the image, with the settings of compose.yml; the health check sees it come."""
    image = Image(DOCKERFILE, ROOT, tmp_path / "image")
    assert image.user
    opt = image.path("/opt/cdc")
    assert not (opt / "bin" / "pip").exists()
    ours = {**environment(), **image.environment}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, env=ours, cwd=image.path("/etc/cdc"))

    program = str(opt / "bin" / "cdc")
    said = run(program, "--version")
    assert said.stdout.splitlines()[0] == f"cdc {versions()['cdc']}", said.stderr
    size_mb = sum(path.lstat().st_size for path in opt.rglob("*")) / 1e6
    print(f"/opt/cdc of the image: {size_mb:.0f} MB")

    (image.path("/etc/cdc") / "cdc.toml").write_bytes((ROOT / "docker" / "compose" / "cdc.toml").read_bytes())
    (tmp_path / "dsn").write_text(pipeline.dsn + "\n")
    (tmp_path / "token").write_text("a-token-of-the-test\n")
    ours |= {
        "CDC_NAME": pipeline.name,
        "CDC_POSTGRES__DSN_FILE": str(tmp_path / "dsn"),
        "CDC_HTTP__TOKEN_FILE": str(tmp_path / "token"),
        "CDC_HTTP__LISTEN": image.environment["CDC_HTTP__LISTEN"].replace("8642", str(pipeline.port)),
        "CDC_KAFKA__BOOTSTRAP_SERVERS": pipeline.bootstrap,
    }
    made = run(program, "init", "--create-table")
    assert made.returncode == 0, made.stderr
    files = set((tmp_path / "image").rglob("*"))
    check = [word.replace("8642", str(pipeline.port)) for word in image.health]
    assert run(str(opt / "bin" / check[0]), *check[1:]).returncode != 0, "nobody answers yet"
    assert image.entry == ["cdc", "run"]
    process = start(
        [program, *image.entry[1:]], pipeline.folder / "run-1.log", dies_with_us=True, environment=ours, cwd=image.path("/etc/cdc")
    )
    pipeline.processes.append(process)

    def healthy() -> bool:
        assert process.poll() is None, pipeline.log
        return run(str(opt / "bin" / check[0]), *check[1:]).returncode == 0

    wait_for(healthy, 60, "the health check passes")
    wait_for(pipeline.ready, 60, "it streams")
    assert pipeline.get("/status")[0] == 401, "beyond loopback a token is needed"
    assert pipeline.terminate() == 0
    assert set((tmp_path / "image").rglob("*")) == files, "it wrote something, and the root file system is read-only"
    assert cdc("--version").code == 0
