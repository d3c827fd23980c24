"""Fault points: named, read from the environment, and nothing at all where nothing is armed."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import dispatcher
from dispatcher import InvalidSettings, Settings, faults
from dispatcher.app import App
from dispatcher.faults import POINTS, VARIABLE, InjectedFault, arm, fault

POINT = "submit.after_reserve"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm(None)


def passes(count: int) -> list[bool]:
    """Pass a point so often; tell of each pass whether it raised."""
    raised = []
    for _ in range(count):
        try:
            fault(POINT)
        except InjectedFault:
            raised.append(True)
        else:
            raised.append(False)
    return raised


def test_every_point_stands_in_the_code_once_and_is_known() -> None:
    sources = Path(dispatcher.__file__).parent.rglob("*.py")
    calls = (re.findall(r"\bfault\((?!point)\"?([^)\"]*)", each.read_text()) for each in sources)
    assert Counter(chain.from_iterable(calls)) == Counter(POINTS)


def test_every_point_is_named_in_a_test() -> None:
    tests = Path(__file__).parents[1].rglob("test_*.py")
    texts = "".join(each.read_text() for each in tests)
    assert {point for point in POINTS if point not in texts} == set()


def test_where_nothing_is_armed_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    App(Settings())
    assert faults._armed is None
    assert passes(3) == [False] * 3


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (f"{POINT}=raise", [True, False, False, False]),
        (f"{POINT}=raise@3", [False, False, True, False]),
        (f" submit.after_commit=kill ; {POINT}=raise@2+ ;", [False, True, True, True]),
        ("submit.after_commit=raise", [False] * 4),
    ],
)
def test_a_fault_happens_at_its_point_and_pass(spec: str, expected: list[bool]) -> None:
    arm(spec)
    assert passes(4) == expected


@pytest.mark.parametrize(
    "spec",
    [
        "submit.after_reserve",
        "submit.after_reserve=explode",
        "submit.nowhere=kill",
        "submit.after_reserve=kill:1",
        "submit.after_reserve=wait",
        "submit.after_reserve=kill@0",
        "submit.after_reserve=kill,submit.after_commit=kill",
    ],
)
def test_a_wrong_spec_is_refused_with_what_is_accepted(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, spec)
    with pytest.raises(InvalidSettings) as refused:
        App(Settings())
    assert refused.value.field == VARIABLE
    assert refused.value.accepted


def test_an_armed_process_says_so_and_says_what_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, f"{POINT}=raise@2")
    with pytest.warns(RuntimeWarning, match=VARIABLE):
        App(Settings())
    assert passes(1) == [False]
    with pytest.warns(RuntimeWarning):
        App(Settings())  # goes on counting
    assert passes(1) == [True]
    loud = [each.getMessage() for each in caplog.records if each.levelno == logging.CRITICAL]
    assert [VARIABLE in each for each in loud] == [True, True, False]
    assert f"{POINT}, pass 2: raise" in loud[2]
