"""A position topic that could forget the position is refused, with the fix."""

import dataclasses
from typing import Any

import pytest

from cdc.kafka.positions import CONFIG, flaws
from cdc.kafka.topics import Topic

GOOD = Topic("p", 1, 3, CONFIG | {"min.insync.replicas": "2"}, readable=True, writable=True)


def changed(**change: Any) -> Topic:  # noqa: ANN401 - any field of a topic
    return dataclasses.replace(GOOD, **change)


def test_a_good_topic() -> None:
    assert flaws(GOOD) == []
    assert flaws(changed(replication_factor=1, config=CONFIG | {"min.insync.replicas": "1"})) == []


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (changed(partitions=2), "partitions"),
        (changed(readable=False), "read"),
        (changed(writable=False), "write"),
        (changed(config={**GOOD.config, "cleanup.policy": "delete"}), "cleanup.policy"),
        (changed(config={**GOOD.config, "cleanup.policy": "compact,delete"}), "cleanup.policy"),
        (changed(config={**GOOD.config, "unclean.leader.election.enable": "true"}), "unclean"),
        (changed(config={**GOOD.config, "min.insync.replicas": "1"}), "min.insync.replicas"),
    ],
)
def test_a_flaw_is_named_with_its_fix(bad: Topic, word: str) -> None:
    ((what, fix),) = flaws(bad)
    assert word in what
    assert fix
