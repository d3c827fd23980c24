"""How many examples tests try: few in `make test`, more with ``--all``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine

ALL = "DISPATCHER_TESTS_ALL"
"""The variable that ``pytest --all`` sets, for itself and the processes that it starts."""

_FEW, _FEW_EXAMPLES = 3, 10


def examples(usual: int) -> int:
    """Return how many examples to try of what usually takes so many; a tenth without ``--all``."""
    return usual if os.environ.get(ALL) else max(2, usual // _FEW_EXAMPLES)


def play(machine: type[RuleBasedStateMachine], *, stories: int, steps: int, **more: Any) -> None:
    """Play so many random stories of so many steps; ``more`` are further settings of Hypothesis."""
    case: Any = machine.TestCase
    case.settings = settings(
        max_examples=stories, stateful_step_count=steps, deadline=None, database=None, **more
    )
    case("runTest").runTest()


def a_third_of(cases: Sequence[Any]) -> list[Any]:
    """Return cases for ``parametrize``: every third runs always, the others with ``--all``."""
    return [case if number % _FEW == 0 else _long(case) for number, case in enumerate(cases)]


def _long(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.long])
    return pytest.param(case, marks=pytest.mark.long)
