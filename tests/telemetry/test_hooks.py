"""Hooks: told on a thread of their own, once, after the commit; nothing they do reaches anybody."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from unittest.mock import Mock, patch

import pytest

from dispatcher import Draft, InvalidSettings, Message, Status, StoreUnavailable
from dispatcher.telemetry.journal import KNOWN, Hooks, Journal, Transition, find_hooks
from tests.support.doubles import HookCalls, at_once
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.rows import a_message
from tests.support.waiting import wait_until


class Typo:
    def on_send(self, message: Message) -> None: ...


class Empty:
    pass


class Broken:
    def __init__(self) -> None:
        raise RuntimeError


TOLD = HookCalls("on_scheduled")


def row(status: Status = Status.SENT) -> Message:
    return a_message(status=status)


def tell(hooks: Hooks, transition: Transition, *messages: Message) -> None:
    """Tell what a journal tells, which has no more than the ids of some."""
    journal = Journal(listeners=[hooks.on_event])
    for message in messages:
        if transition in (Transition.SCHEDULED, Transition.RESCHEDULED):
            journal.tell(transition, message)
        else:
            journal.tell_of(transition, message.id, message.channel)


def test_each_is_told_by_how_it_stands_and_by_nothing_else() -> None:
    calls = HookCalls("on_scheduled", "on_sent")
    rows = [row(Status.SENT), row(Status.SCHEDULED), row(Status.CANCELLED), row(Status.SENT)]
    hooks = Hooks(calls, read=lambda ids: [each for each in rows if each.id in ids])
    new = row(Status.SCHEDULED)
    tell(hooks, Transition.SCHEDULED, new)
    Journal(listeners=[hooks.on_event]).tell_of(Transition.SCHEDULED, rows[0].id, "status")
    tell(hooks, Transition.SENT, *rows, row())
    hooks.close()
    assert calls == [("on_scheduled", new), ("on_sent", rows[0]), ("on_sent", rows[3])]


def test_events_without_a_hook_are_not_read() -> None:
    calls = HookCalls("on_scheduled", "on_sent", "on_failed")
    hooks = Hooks(calls, read=lambda _: pytest.fail("it was read"))
    tell(hooks, Transition.HELD, row())
    tell(hooks, Transition.EXPIRED, row())
    tell(hooks, Transition.SNOOZED, row(Status.SCHEDULED))
    tell(hooks, Transition.RESCHEDULED, row(Status.SCHEDULED))
    hooks.close()
    assert hooks._backlog._thread is None


TOLD_OF = {
    Transition.SCHEDULED: (Status.SCHEDULED, "on_scheduled"),
    Transition.ENQUEUED: (Status.SCHEDULED, "on_enqueued"),
    Transition.SENT: (Status.SENT, "on_sent"),
    Transition.RETRIED: (Status.SCHEDULED, "on_retry"),
    Transition.SNOOZED: (Status.SENDING, "on_snoozed"),
    Transition.FAILED: (Status.FAILED, "on_failed"),
    Transition.HELD: (Status.HELD, "on_held"),
    Transition.RELEASED: (Status.SENDING, "on_retry"),
    Transition.EXPIRED: (Status.EXPIRED, "on_expired"),
    Transition.CANCELLED: (Status.CANCELLED, "on_cancelled"),
    Transition.RESCUED: (Status.SCHEDULED, "on_retry"),
    Transition.RESCHEDULED: (Status.SCHEDULED, "on_rescheduled"),
}


@pytest.mark.parametrize("transition", Transition)
def test_each_transition_has_its_hook(transition: Transition) -> None:
    status, name = TOLD_OF[transition]
    message = row(status)
    calls = HookCalls(*KNOWN)
    hooks = Hooks(calls, read=lambda _: [message])
    tell(hooks, transition, message)
    hooks.close()
    assert calls == [(name, message)]


def test_a_hook_that_raises_is_logged_without_its_words_and_the_next_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def on_failed(message: Message) -> None:
        raise ValueError("canary", message.body)

    calls = HookCalls("on_sent")
    vars(calls)["on_failed"] = on_failed
    bad, good = row(Status.FAILED), row(Status.SENT)
    hooks = Hooks(calls, read=lambda _: [bad, good])
    tell(hooks, Transition.FAILED, bad)
    tell(hooks, Transition.SENT, good)
    hooks.close()
    assert calls == [("on_sent", good)]
    assert f"message {bad.id}: on_failed raised ValueError" in caplog.text
    assert "canary" not in caplog.text


def test_a_store_that_is_away_costs_those_it_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = HookCalls("on_scheduled", "on_sent")
    hooks = Hooks(calls, read=Mock(side_effect=StoreUnavailable("away")))
    new = row()
    tell(hooks, Transition.SENT, row())
    tell(hooks, Transition.SCHEDULED, new)
    hooks.close()
    assert calls == [("on_scheduled", new)]
    assert "hooks not called for" in caplog.text


class Slow:
    """Waits in each call until it may go on."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.count = 0

    def on_scheduled(self, message: Message) -> None:
        self.begun.set()
        self.may_end.wait(60)
        self.count += message.attempt_count == 0


def test_a_hanging_hook_holds_up_no_work_and_its_queue_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.telemetry.journal._MOST_FOR_HOOKS", 10)
    caplog.set_level(logging.WARNING)
    slow = Slow()
    hooks = Hooks(slow, read=lambda _: [])
    tell(hooks, Transition.SCHEDULED, row())
    assert slow.begun.wait(60)
    started = time.monotonic()
    tell(hooks, Transition.SCHEDULED, *(row() for _ in range(15)))
    hooks.close(timeout=0.05)
    assert time.monotonic() - started < 30, "it waited for the one that hangs"
    assert "hooks: 11 notifications dropped" in caplog.text
    slow.may_end.set()
    assert hooks._backlog._thread is not None
    hooks._backlog._thread.join(60)
    assert slow.count == 11
    assert "hooks: 5 notifications dropped" in caplog.text


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Typo", "has on_send"),
        ("Empty", "has none of them"),
        ("Broken", "cannot load"),
        ("Nothing", "cannot load"),
    ],
)
def test_a_setting_that_names_no_hooks_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem) as caught:
        find_hooks(f"{__name__}:{name}")
    assert caught.value.field == "hooks"


def test_a_submit_is_answered_where_the_system_gives_no_thread(build: Build) -> None:
    """P6: it is stored. The next notification starts the threads of all that wait."""
    no_thread = RuntimeError("can't start new thread")
    hook = f"{__name__}:TOLD"
    house = build(events_kept=1_000, hooks=hook, quotas=["1000/minute"])
    with patch.object(threading.Thread, "start", side_effect=no_thread):
        first = house.submit("ada", send_in=timedelta(hours=1))
    second = house.submit("ben", send_in=timedelta(hours=1))
    wait_until(lambda: [message.id for _, message in TOLD][-2:] == [first.id, second.id])
    wait_until(lambda: len(house.parts.events.after("0-0", most=10)[0]) == 2)


CALLS = HookCalls(
    "on_scheduled", "on_sent", "on_failed", "on_retry", "on_held", "on_expired", "on_cancelled",
    "on_rescheduled", "on_snoozed",
)  # fmt: skip


@pytest.fixture
def house(build: Build) -> House:
    CALLS.clear()
    return build(clock=hour_ago(), hooks=f"{__name__}:CALLS", quotas=["100/minute"])


def told(house: House) -> list[tuple[str, str]]:
    """Wait for the hooks; return what they were told, with the status the message had."""
    hooks = house.parts.hooks
    assert hooks is not None
    hooks.close(30)
    return [(name.removeprefix("on_"), message.status.value) for name, message in CALLS]


@pytest.mark.every_database
def test_every_way_in_is_told_once(house: House) -> None:
    drafts = [
        Draft(channel="memory", recipient=f"r{n}", body=BODY, send_in=timedelta(0),
              idempotency_key=f"{n}")
        for n in range(3)
    ]  # fmt: skip
    house.dispatcher.submit_many(drafts)
    house.dispatcher.submit_many(drafts)
    level = "SERIALIZABLE" if house.url.startswith("sqlite") else "READ COMMITTED"
    engine = house.database.engine.execution_options(isolation_level=level)
    with engine.begin() as connection:
        house.submit(session=connection)
        assert len(CALLS) <= 3
    connection = engine.connect()
    with connection, connection.begin() as undone:
        house.submit(session=connection)
        undone.rollback()
    assert told(house) == [("scheduled", "scheduled")] * 4


@pytest.mark.every_database
def test_a_cancel_is_told_once(house: House) -> None:
    one, *others = (house.submit(f"r{n}") for n in range(4))
    at_once([lambda: house.dispatcher.cancel(one.id)] * 4)
    house.dispatcher.cancel_many([message.id for message in (one, *others)])
    house.dispatcher.cancel(one.id, if_unchanged=house.again(one))
    assert told(house)[4:] == [("cancelled", "cancelled")] * 4
