"""The formal model keeps its promises in every state, and breaks one as soon as a rule is missing."""

from __future__ import annotations

import pytest

from tests.model import model
from tests.model.model import Rule, explore

EVERY = frozenset(Rule)

BREAKS = {
    Rule.FENCE: "duplicated",
    Rule.FENCE_BEFORE_READING: "duplicated",
    Rule.POSITION_WITH_EVENTS: "duplicated",
    Rule.START_AT_THE_POSITION: "duplicated",
    Rule.CONFIRM_AFTER_COMMIT: "forgotten",
    Rule.A_TIMEOUT_IS_NO_ANSWER: "forgotten",
}


def test_no_state_is_wrong_and_none_is_a_dead_end() -> None:
    found = explore(EVERY)
    assert (found.wrong, found.way) == ("", [])
    assert found.states > 10_000  # it has gone everywhere, and not stopped at the first door


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name.lower())
def test_without_a_rule_a_promise_is_broken(rule: Rule) -> None:
    found = explore(EVERY - {rule})
    assert found.wrong == BREAKS[rule], found.way
    assert found.way


@pytest.mark.soak
def test_with_one_fault_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "FAULTS", 3)
    monkeypatch.setattr(model, "EPOCHS", 11)
    found = explore(EVERY)
    assert (found.wrong, found.way) == ("", [])
