"""Options that commands share."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner

from cdc.cli.log_options import LogFormat, LogLevel, start_logs
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout, schemas_from, settings_from
from cdc.observe import logs

app = typer.Typer()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@app.command()
def probe(
    *,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
    timeout: Timeout = TIMEOUT_S,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Say what came in."""
    start_logs(log_format, log_level)
    settings = settings_from(config, sets)
    logs.logger("probe").info("connecting", to="postgresql://u:canary@h/d")
    typer.echo(f"{settings.postgres.slot} {schemas_from(config, sets).folder} {as_json} {timeout}")


def run(*arguments: str, **environ: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, arguments, env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


SETTINGS = ("--set", "name=shop", "--set", "postgres.dsn=dbname=x")


def test_defaults() -> None:
    out, err = run(*SETTINGS)
    assert out == "cdc_shop schemas False 30.0\n"
    assert orjson.loads(err)["to"] == "postgresql://u:***@h/d"


def test_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('name = "other"\n[schemas]\nfolder = "there"\n')
    out, err = run("-c", str(file), "--set", "postgres.dsn=dbname=x", "--json", "--timeout", "5", "--log-level", "warning")
    assert out == f"cdc_other {tmp_path / 'there'} True 5.0\n"
    assert err == ""


def test_environment() -> None:
    out, err = run(
        CDC_NAME="shop",
        CDC_POSTGRES__DSN="dbname=x",
        CDC_LOG_FORMAT="console",
        CDC_SCHEMAS__FOLDER="elsewhere",
    )
    assert out == "cdc_shop elsewhere False 30.0\n"
    assert "connecting" in err
    assert not err.startswith("{")
