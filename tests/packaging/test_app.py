"""The parts of an app: built once, when first asked for, and closed without building others."""

from __future__ import annotations

import threading
from contextlib import closing

from dispatcher import Settings
from dispatcher.app import App, built_once
from dispatcher.operations.doctor import Doctor
from tests.support.waiting import DEADLINE, wait_until

SETTINGS = Settings.load(channels={"sms": {"transport": "memory"}}, broker_url="memory://")


def test_every_part_is_built_of_the_others() -> None:
    with closing(App(SETTINGS)) as parts:
        for name, part in vars(App).items():
            if isinstance(part, built_once):
                getattr(parts, name)
        assert parts.submitter.own is parts.own_transaction
        assert parts.sweep.store is parts.store_maintenance
        assert isinstance(parts.doctor(), Doctor)


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


def test_closing_builds_nothing() -> None:
    fresh = App(SETTINGS)
    fresh.stop_sending()
    assert fresh.finish_sending()
    fresh.close()
    assert set(vars(fresh)) == {"settings", "clock", "stop_flag"}
