"""What librdkafka says is passed on seldom and never louder than a warning."""

import logging

import pytest
from confluent_kafka import KafkaError

from cdc.errors import KafkaRefused, Retriable
from cdc.kafka.client import REPEATED_S, Notes, Seldom, unanswered
from cdc.kafka.faults import Code, Fault


def line(text: str, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("cdc.kafka.librdkafka", level, "", 0, "%s [client] %s", (text.split(" ", 1)[0], text), None)


def test_a_repeated_line_passes_seldom() -> None:
    now = [0.0]
    seldom = Seldom(lambda: now[0])
    assert seldom.filter(line("FAIL connection refused"))
    assert not seldom.filter(line("FAIL connection refused again"))
    assert seldom.filter(line("FENCED"))
    now[0] = REPEATED_S
    assert seldom.filter(line("FAIL connection refused"))


def test_nothing_is_louder_than_a_warning() -> None:
    loud, quiet = line("FATAL", logging.CRITICAL), line("DEBUG", logging.DEBUG)
    seldom = Seldom(lambda: 0.0)
    assert seldom.filter(loud)
    assert seldom.filter(quiet)
    assert (loud.levelname, quiet.levelname) == ("WARNING", "DEBUG")


def test_a_broker_that_does_not_know_us_is_noted() -> None:
    notes = Notes()
    notes(KafkaError(Code.TRANSPORT))
    notes(KafkaError(Code.GROUP_AUTHORIZATION_FAILED))
    notes.check("opening")
    notes(KafkaError(Code.AUTHENTICATION, "wrong"))
    notes(KafkaError(Code.TRANSPORT))
    with pytest.raises(KafkaRefused, match="opening: _AUTHENTICATION"):
        notes.check("opening")


def test_a_request_without_answer_tells_what_the_client_said() -> None:
    notes = Notes()
    fault = Fault(Code.TIMED_OUT, "_TIMED_OUT", "late")
    assert str(unanswered(fault, notes, "asking")) == "Kafka, while asking: _TIMED_OUT: late"
    notes(KafkaError(Code.RESOLVE, "no such host"))
    error = unanswered(fault, notes, "asking")
    assert isinstance(error, Retriable)
    assert "no such host" in str(error)
