"""What commands print."""

from __future__ import annotations

import orjson
import pytest

from cdc.cli.output import console, print_json, progress, say, table
from cdc.position import Lsn


def test_json_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("working")
    with progress("counting", 3) as step:
        step()
        step(2)
    print_json({"rows": 3, "nested": {"at": None}})
    out, err = capsys.readouterr()
    assert orjson.loads(out) == {"rows": 3, "nested": {"at": None}}
    assert out.count("\n") == 1
    assert err == "working\n"


def test_a_table_prints_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(table(("name", "n"), [("[bold]x[/bold]", 1234567), ("y", None), ("lsn", Lsn(900))], title="Rows"))
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out
    assert "1,234,567" in out
    assert "0/384" in out
    assert "Rows" in out
