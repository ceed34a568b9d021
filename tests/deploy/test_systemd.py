"""The systemd unit: systemd-analyze takes it, it is closed, and restarts what a restart heals."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from cdc import errors
from cdc.observe.health import HEARTBEAT_MAX_AGE_S
from cdc.observe.watchdog import LOOK_S
from tests.deploy.conftest import Debian
from tests.docs.pages import ROOT

UNIT = ROOT / "docker" / "systemd" / "cdc@.service"

EXPOSED = 20
"""The most that `systemd-analyze security` may find, of 100."""


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


@pytest.mark.packages
def test_systemd_takes_it(tmp_path: Path, debian: Debian) -> None:
    made = tmp_path / "cdc@shop.service"
    made.write_text(UNIT.read_text().replace("/opt/cdc/bin/cdc", str(Path(sys.executable).parent / "cdc")))
    done = subprocess.run([debian("systemd-analyze"), "verify", made], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    judged: list[str | Path] = [debian("systemd-analyze"), "security", "--offline=yes", f"--threshold={EXPOSED}", "--no-pager", made]
    done = subprocess.run(judged, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-500:]


def test_what_a_restart_does_not_heal_is_not_restarted() -> None:
    for_good = {error.exit_code for error in vars(errors).values() if isinstance(error, type) and issubclass(error, errors.CdcError)}
    assert service()["RestartPreventExitStatus"].split() == [str(code) for code in sorted(for_good - {1, 8})]


def test_the_watchdog_is_more_patient_than_the_loop_needs() -> None:
    assert service()["Type"] == "notify"
    assert int(service()["WatchdogSec"]) >= HEARTBEAT_MAX_AGE_S + 2 * LOOK_S
