"""`cdc init --sql` without a server: what a DBA is asked to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.cli import main


@pytest.mark.parametrize(("user", "made"), [("postgres", False), ("cdc", True)])
def test_no_role_is_made_for_the_superuser(
    user: str, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdc.toml").write_text(f'name = "shop"\n[postgres]\ndsn = "postgresql://{user}@127.0.0.1:5432/shop"\n')
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--sql"]) == 0
    out = capsys.readouterr().out
    assert ("CREATE ROLE" in out) is made
    assert "CREATE PUBLICATION" in out
