"""The parts of an app are built once."""

from __future__ import annotations

import threading

from dispatcher import Settings
from dispatcher.app import App, built_once
from tests.support.waiting import DEADLINE, wait_until

SETTINGS = Settings.load(channels={"sms": {"transport": "memory"}}, broker_url="memory://")


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
