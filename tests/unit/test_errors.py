"""Each error says what to do by its branch of the tree, and each branch that ends the process has an exit code."""

from __future__ import annotations

import inspect
import re

import pytest

from cdc import errors
from cdc.errors import CdcError, Fenced, InvalidEvent, Retriable, SlotBusy, TransactionTimedOut

CODES = {
    "ProtocolError": 1,
    "ConfigurationError": 2,
    "PostgresRefused": 3,
    "ContinuityError": 4,
    "SinkRefused": 5,
    "KafkaRefused": 5,
    "IdentityTaken": 6,
    "StoppedByPolicy": 7,
    "AuditFailed": 8,
}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_the_exit_codes(name: str, code: int) -> None:
    assert getattr(errors, name)("what").exit_code == code


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = set(re.findall(r"[|`]-- (\w+)", errors.__doc__ or "")) | {"CdcError"}
    made = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CdcError)}
    assert drawn == made


def test_an_error_tells_what_and_how_to_fix_it() -> None:
    assert str(CdcError("no such slot", "run `cdc init`")) == "no such slot. Fix: run `cdc init`"
    assert str(CdcError("no such slot")) == "no such slot"


def test_an_invalid_event_has_a_reason_in_a_word() -> None:
    error = InvalidEvent("schema", "$.n: an int expected, string came", "mend it")
    assert (error.reason, error.what, error.fix) == ("schema", "$.n: an int expected, string came", "mend it")


def test_what_heals_is_retriable() -> None:
    busy, slow = SlotBusy("cdc_shop", 42), TransactionTimedOut(7, 61.25, 60.0)
    assert all(isinstance(error, Retriable) for error in (busy, slow, Fenced("fenced")))
    assert (busy.slot, busy.active_pid, str(busy)) == ("cdc_shop", 42, "replication slot 'cdc_shop' is active for backend pid 42")
    assert (slow.rows, slow.seconds, slow.timeout_s) == (7, 61.25, 60.0)
    assert "7 outbox rows so far took 61.2 s, longer than transaction.timeout.ms = 60000" in str(slow)
    assert "transaction.max.timeout.ms" in slow.fix
