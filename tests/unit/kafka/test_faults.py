"""Every error of the client leads to the door, to an exit with a fix, or, where it only reads, to another try."""

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import Fenced, KafkaRefused, Retriable
from cdc.kafka.client import fault_of
from cdc.kafka.faults import FENCES, HINTS, REMEDIES, Code, Fault, Remedy, exception, out_of_reach, remedy

FLAGS = st.booleans()


@pytest.mark.parametrize("code", Code)
def test_codes_are_those_of_the_client(code: Code) -> None:
    name = KafkaError(code).name()
    aliases = {"BAD_MSG": "_BAD_MSG", "NOT_LEADER": "NOT_LEADER_FOR_PARTITION", "TOPIC_EXCEPTION": "TOPIC_EXCEPTION"}
    assert name.lstrip("_") in {code.name, aliases.get(code.name, code.name).lstrip("_")}
    assert (code < 0) == name.startswith("_")


@given(st.integers(min_value=-300, max_value=300), FLAGS, FLAGS, FLAGS)
def test_a_transactional_call_is_never_repeated(code: int, fatal: bool, retriable: bool, requires_abort: bool) -> None:
    fault = Fault(code, "X", "x", fatal, retriable, requires_abort)
    assert remedy(fault, transactional=True) is not Remedy.REPEAT
    found = exception(fault, "committing", transactional=True)
    assert isinstance(found, KafkaRefused) == (remedy(fault, transactional=True) is Remedy.EXIT)
    assert isinstance(found, KafkaRefused | Retriable)


@given(st.integers(min_value=-300, max_value=300).filter(lambda code: code not in REMEDIES), FLAGS, FLAGS, FLAGS)
def test_an_unknown_error_goes_through_the_door(code: int, fatal: bool, retriable: bool, requires_abort: bool) -> None:
    fault = Fault(code, "X", "x", fatal, retriable, requires_abort)
    for transactional in (True, False):
        assert remedy(fault, transactional=transactional) is Remedy.DOOR


@pytest.mark.parametrize("code", sorted(FENCES))
def test_fencing_is_told_apart(code: Code) -> None:
    assert isinstance(exception(Fault(code, "X", "x", fatal=True), "committing", transactional=True), Fenced)


@pytest.mark.parametrize("code", [code for code, found in REMEDIES.items() if found is Remedy.EXIT])
def test_a_refusal_names_its_fix(code: Code) -> None:
    found = exception(Fault(code, code.name, "no"), "opening", transactional=False)
    assert isinstance(found, KafkaRefused)
    assert found.exit_code == 5
    assert "opening" in found.what
    assert code.name in found.what
    assert found.fix
    assert set(HINTS) <= set(REMEDIES)


def test_a_right_that_is_missing_for_a_topic_depends_on_the_call() -> None:
    code = Code.TOPIC_AUTHORIZATION_FAILED
    assert remedy(Fault(code, "X", "x", requires_abort=True), transactional=True) is Remedy.DOOR
    assert remedy(Fault(code, "X", "x"), transactional=True) is Remedy.DOOR
    assert remedy(Fault(code, "X", "x"), transactional=False) is Remedy.EXIT


def test_reads_are_repeated_while_the_broker_is_away() -> None:
    for code in (Code.TRANSPORT, Code.TIMED_OUT, Code.OFFSET_NOT_AVAILABLE, Code.ALL_BROKERS_DOWN):
        assert remedy(Fault(code, "X", "x", retriable=True), transactional=False) is Remedy.REPEAT


def test_a_judgement_about_a_certificate_is_final_and_a_broker_that_hangs_up_is_waited_for() -> None:
    for words in ("SSL routines::certificate verify failed", "SSL routines::tlsv13 alert certificate required", "tlsv1 alert unknown ca"):
        found = out_of_reach(Fault(Code.SSL, "_SSL", words), "asking")
        assert isinstance(found, KafkaRefused)
        assert "location" in found.fix
        assert words in found.what
    hung_up = Fault(Code.TRANSPORT, "_TRANSPORT", "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?")
    for silent in (hung_up, None):
        found = out_of_reach(silent, "asking")
        assert isinstance(found, Retriable)
        assert "security.protocol" in found.fix


def test_flags_are_read_from_the_client() -> None:
    fault = fault_of(KafkaError(Code.FENCED, "away", fatal=True, retriable=False, txn_requires_abort=False))
    assert fault == Fault(Code.FENCED, "_FENCED", "away", fatal=True)
    assert str(fault) == "_FENCED: away"
