"""Parts are built once, whichever thread asks, also where a worker is forked meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import pytest

from dispatcher import Settings
from dispatcher.app import App, built_once
from dispatcher.celery import tasks
from dispatcher.celery.tasks import here
from tests.support.waiting import DEADLINE, wait_until

SETTINGS = Settings.load(channels={"sms": {"transport": "memory"}})


@pytest.mark.parametrize(
    ("room", "name"), [(tasks, "settings_of"), (App, "make")], ids=["the app", "a part"]
)
def test_a_child_forked_while_its_parent_builds_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str
) -> None:
    monkeypatch.setattr(tasks, "settings_of", lambda _: SETTINGS)
    monkeypatch.setattr(tasks, "_apps", {})
    parent, build = os.getpid(), getattr(room, name)
    begun, go_on = threading.Event(), threading.Event()

    def slow_in_the_parent(*given: Any, **named: Any) -> Any:
        if os.getpid() == parent:
            begun.set()
            go_on.wait(DEADLINE)
        return build(*given, **named)

    monkeypatch.setattr(room, name, slow_in_the_parent)
    thread = threading.Thread(target=lambda: here().rules)
    thread.start()
    assert begun.wait(DEADLINE)
    child = multiprocessing.get_context("fork").Process(target=lambda: here().rules, daemon=True)
    child.start()
    child.join(DEADLINE)
    exit_code = child.exitcode
    child.kill()
    go_on.set()
    thread.join(DEADLINE)
    assert exit_code == 0, "it waits for a lock that a thread of its parent held"
    assert not thread.is_alive()


def test_two_threads_do_not_build_a_part_twice() -> None:
    begun, go_on = threading.Event(), threading.Event()
    built: list[object] = []

    class SlowApp(App):
        @built_once
        def slow(self) -> object:
            built.append(object())
            begun.set()
            go_on.wait(DEADLINE)
            return built[-1]

    shared, asking, answers = SlowApp(SETTINGS), [], []

    def ask() -> None:
        asking.append(True)
        answers.append(shared.slow)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    assert begun.wait(DEADLINE)
    threads[1].start()
    wait_until(lambda: len(asking) == 2)
    go_on.set()
    for each in threads:
        each.join(DEADLINE)
    assert answers == built * 2
