"""The parts of an app: built once, when first asked for, and closed without building others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dispatcher import Settings
from dispatcher.app import App
from dispatcher.reservation import Rules
from tests.support.waiting import DEADLINE, wait_until

SETTINGS = Settings.load(channels={"sms": {"transport": "memory"}}, broker_url="memory://")


def test_two_threads_do_not_build_a_part_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    built: list[Any] = []

    def slow(*given: Any) -> Rules:
        built.append(given)
        begun.set()
        go_on.wait(DEADLINE)
        return Rules(*given)

    monkeypatch.setattr("dispatcher.app.Rules", slow)
    shared, asking, found = App(SETTINGS), [], []

    def ask() -> None:
        asking.append(True)
        found.append(shared.rules)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    assert begun.wait(DEADLINE)
    threads[1].start()
    wait_until(lambda: len(asking) == 2)
    go_on.set()
    for each in threads:
        each.join(DEADLINE)
    assert len(built) == 1
    assert found == [shared.rules, shared.rules]


def test_closing_builds_nothing() -> None:
    fresh = App(SETTINGS)
    fresh.stop_sending()
    assert fresh.finish_sending()
    fresh.close()
    assert set(vars(fresh)) == {"settings", "clock", "_stop_flag"}
