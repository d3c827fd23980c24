"""A limiter's answer as a value."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.limiters import Decision, Refusal, State
from dispatcher.limiters.decision import NEVER

NOON = datetime(2026, 11, 20, 12, 0, 0, 7_000, tzinfo=UTC)
FACTS: dict[str, Any] = {
    "allowed": False, "state": State.REFUSED, "limit": 5, "remaining": 2,
    "retry_after": timedelta(milliseconds=1_500), "reset_at": NOON, "granted": 0, "permit": "p",
    "refusals": (Refusal("5/minute", 0, timedelta(seconds=1)), Refusal("x (2/hour)", 1, NEVER)),
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "allowed": True, "state": State.UNKNOWN, "limit": 6, "remaining": 1,
    "retry_after": timedelta(0), "reset_at": NOON + timedelta(1), "granted": 1, "permit": "q",
    "refusals": (),
}  # fmt: skip
IN_MS = FACTS | {"retry_after": 1_500, "reset_at": round(NOON.timestamp() * 1_000)}


def test_times_given_in_ms_are_times() -> None:
    decision = Decision(**IN_MS)
    assert {name: getattr(decision, name) for name in FACTS} == FACTS
    assert decision == Decision(**FACTS)
    assert hash(decision) == hash(Decision(**FACTS))


@pytest.mark.parametrize("name", FACTS)
def test_decisions_that_differ_in_anything_are_not_equal(name: str) -> None:
    assert Decision(**FACTS) != Decision(**(FACTS | {name: OTHERS[name]}))


def test_a_decision_is_shown_copied_and_pickled_whole() -> None:
    decision = Decision(**IN_MS)
    shown = ", ".join(f"{name}={value!r}" for name, value in FACTS.items())
    assert repr(decision) == f"Decision({shown})"
    for other in (pickle.loads(pickle.dumps(decision)), copy.deepcopy(decision)):  # noqa: S301 - ours
        assert other == decision
    assert decision != "p"


def test_a_decision_does_not_change() -> None:
    decision: Any = Decision(**FACTS)
    with pytest.raises(AttributeError, match="does not change"):
        decision.allowed = True
    with pytest.raises(AttributeError, match="does not change"):
        del decision.limit
    assert not decision
