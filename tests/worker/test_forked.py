"""A worker's process may be forked while another thread of its parent builds parts."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import pytest

from dispatcher import Settings
from dispatcher.app import App
from dispatcher.celery import tasks
from dispatcher.celery.tasks import here
from tests.support.waiting import DEADLINE

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
