"""Each transition is a line in the log, and reaches a hook on a thread of its own, once."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from dispatcher import (
    Draft,
    InvalidSettings,
    Message,
    PerhapsSent,
    PermanentFailure,
    QuotaExceeded,
    Status,
    StoreUnavailable,
    TemporaryFailure,
)
from dispatcher.cli.services import JsonFormatter, logging_to
from dispatcher.telemetry.journal import FIELDS, KNOWN, Hooks, Journal, Transition, find_hooks
from dispatcher.testing import a_message
from dispatcher.times.send_time import as_text
from tests.support.doubles import HookCalls, at_once
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build
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
    hooks = Hooks(calls, read=lambda ids: [row for row in rows if row.id in ids])
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
    Transition.DELAYED: (Status.SCHEDULED, "on_delayed"),
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
    assert f"message {bad.id}: hook on_failed raised ValueError" in caplog.text
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
        del message
        self.count += 1


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
        ("Typo", "has unknown on_send"),
        ("Empty", "has no hook"),
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
    "on_rescheduled", "on_snoozed", "on_delayed",
)  # fmt: skip


@pytest.fixture
def house(build: Build) -> House:
    CALLS.clear()
    return build(clock=hour_ago(), hooks=f"{__name__}:CALLS", quotas=["100/minute"])


def hooked(house: House) -> list[tuple[str, str]]:
    """Wait for the hooks; return what they were hooked, with the status the message had."""
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
    assert hooked(house) == [("scheduled", "scheduled")] * 4


@pytest.mark.every_database
def test_a_cancel_is_told_once(house: House) -> None:
    one, *others = (house.submit(f"r{n}") for n in range(4))
    at_once([lambda: house.dispatcher.cancel(one.id)] * 4)
    house.dispatcher.cancel_many([message.id for message in (one, *others)])
    house.dispatcher.cancel(one.id, if_unchanged=house.again(one))
    assert hooked(house)[4:] == [("cancelled", "cancelled")] * 4


KEY = "sixteen letters and more"
ADA = "ada@example.org"


@pytest.fixture(autouse=True)
def at_debug(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "dispatcher.journal"):
        yield


def digest(caplog: pytest.LogCaptureFixture, recipient: str, key: str = KEY) -> str | None:
    caplog.clear()
    Journal(log_key=key).tell(Transition.SENT, a_message(recipient=recipient))
    recipient_digest: str | None = vars(caplog.records[0]).get("recipient")
    return recipient_digest


def test_a_line_tells_its_facts_as_text_and_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    message = a_message()
    Journal().tell(
        Transition.RETRIED, message, attempt=2, outcome="temporary", wait_seconds=timedelta(0, 1.5)
    )
    [record] = caplog.records
    assert record.getMessage() == (
        f"message {message.id} retried channel={message.channel} "
        "attempt=2 outcome=temporary wait_seconds=1.5"
    )
    told = {name: vars(record)[name] for name in FIELDS if name in vars(record)}
    assert told == {
        "transition": "retried",
        "message_id": str(message.id),
        "channel": message.channel,
        "attempt": 2,
        "outcome": "temporary",
        "wait_seconds": 1.5,
    }


def test_lines_of_one_recipient_are_joined_by_a_digest_that_needs_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ada = digest(caplog, ADA)
    assert ada is not None
    assert len(ada) == 16
    assert int(ada, 16)
    assert ada == digest(caplog, ADA)
    assert ada != digest(caplog, "ben@example.org")
    assert ada != digest(caplog, ADA, key=KEY + "!")
    assert digest(caplog, ADA, key="") is None
    assert digest(caplog, "lone \ud800 surrogate") is not None
    journal = Journal(log_key=KEY)
    assert KEY not in repr(journal) + repr(vars(journal))


def test_a_meter_that_fails_stops_counting_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []

    class Full:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            raise OSError("no space left on device")

    full: Any = Full()
    journal = Journal(meter=full)
    for _ in range(2):
        journal.tell(Transition.SENT, a_message())
        journal.count(lambda meter: meter.swept("rescue", {}))
    assert calls == ["on_event"]
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == ["metrics stopped in this process; restart it"]
    assert len(caplog.records) == 3


def record(**more: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "dispatcher.journal", "levelname": "INFO", "msg": "a %s", "args": ("text",)} | more
    )


def test_a_line_of_json_has_the_fields_and_nothing_that_others_attach() -> None:
    at = datetime(2026, 3, 29, 1, 2, 3, 456_000, tzinfo=UTC)
    written = JsonFormatter().format(
        record(created=at.timestamp(), transition="sent", attempt=1, data={"args": "secret"})
    )
    assert json.loads(written) == {
        "at": "2026-03-29T01:02:03.456Z",
        "level": "INFO",
        "logger": "dispatcher.journal",
        "process": record().process,
        "text": "a text",
        "transition": "sent",
        "attempt": 1,
    }


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise ValueError("two\nlines")  # noqa: TRY301 - it is to be caught
    except ValueError:
        written = JsonFormatter().format(record(exc_info=sys.exc_info()))
    assert "\n" not in written
    assert json.loads(written)["traceback"].endswith("ValueError: two\nlines")


def test_the_log_of_the_page_has_the_form_that_the_settings_name(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "page.log"
    with logging_to(file, "json"):
        logging.getLogger("dispatcher.web.pages.site").info("a text")
    with logging_to(file, "console"):
        logging.getLogger("dispatcher.web.pages.site").info("another")
    first, second = file.read_text().splitlines()
    assert json.loads(first)["text"] == "a text"
    assert second.endswith("INFO] another")


Act = Callable[[House, Message], object]


def deliver(*errors: BaseException) -> Act:
    """Deliver a message, whose sends raise these, more than once, as a copied task does."""

    def act(house: House, message: Message) -> None:
        house.fail_sends(*errors)
        house.deliver(message)
        house.deliver(message)

    return act


def rescue(house: House, message: Message) -> None:
    house.parts.delivery.claims.claim([message.id])
    house.end_claims(message)
    house.parts.sweep.rescue()


def catch_up(house: House, message: Message) -> None:
    house.change([message], enqueue_at=message.send_at)
    house.parts.sweep.catch_up()


def suppress(house: House, message: Message) -> None:
    house.parts.suppressions.add(message.recipient, None)


def call(method: str, **more: Any) -> Act:
    return lambda house, message: getattr(house.dispatcher, method)(message.id, **more)


BUSY = TemporaryFailure("busy", retry_after=timedelta(hours=3))
BROKE = PerhapsSent("the line broke")
HOLD, LATE, LATER = (
    {"on_unknown": "hold"}, {"expire_after": timedelta(seconds=1)}, {"send_in": timedelta(hours=2)},
)  # fmt: skip
LEVELS = {"enqueued": "DEBUG", **dict.fromkeys(("failed", "held", "rescued"), "WARNING")}
STORIES: list[tuple[dict[str, Any], list[Act], list[tuple[str, int | None, str | None]]]] = [
    ({}, [deliver()], [("sent", 1, None)]),
    ({}, [deliver(BUSY)], [("retried", 1, "temporary")]),
    ({}, [deliver(PermanentFailure("gone")), call("retry")],
     [("failed", 1, "permanent"), ("retried", 1, None)]),
    ({"expire_after": timedelta(hours=2)}, [deliver(BUSY)], [("expired", 1, "temporary")]),
    (HOLD, [deliver(BROKE), call("release")], [("held", 1, "unknown"), ("released", None, None)]),
    (HOLD, [deliver(BROKE), call("drop")], [("held", 1, "unknown"), ("failed", 1, None)]),
    (LATE, [deliver()], [("expired", None, None)]),
    ({}, [suppress, deliver()], [("cancelled", None, None)]),
    ({}, [rescue], [("rescued", 1, None)]),
    (HOLD, [rescue], [("rescued", 1, None), ("held", 1, "unknown")]),
    ({"channel": "dated"}, [catch_up], [("expired", None, None)]),
    (LATER, [call("reschedule", send_in=timedelta(hours=3)), call("cancel")],
     [("rescheduled", None, None), ("cancelled", None, None)]),
]  # fmt: skip


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[..., list[tuple[Any, ...]]]:
    """Give what was said of a message: these fields of each line."""

    def of(message: Message, *names: str) -> list[tuple[Any, ...]]:
        lines = [vars(line) for line in caplog.records if line.name == "dispatcher.journal"]
        mine = [line for line in lines if line["message_id"] == str(message.id)]
        return [tuple(line.get(name) for name in names) for line in mine]

    return of


@pytest.mark.parametrize(("asked", "acts", "lines"), STORIES)
def test_each_transition_of_a_message_is_a_line(
    build: Build, told: Any, asked: dict[str, Any], acts: list[Act], lines: list[tuple[Any, ...]]
) -> None:
    channels = {
        "memory": {"transport": "memory"},
        "dated": {"transport": "memory", "catch_up": "expire"},
    }
    house = build(clock=hour_ago(), channels=channels, quotas=["1/minute"], log_key=KEY)
    message = house.submit(ADA, **asked)
    with pytest.raises(QuotaExceeded):
        house.submit(ADA, send_at=message.send_at)
    begun = told(message, "transition")
    assert begun in ([("scheduled",), ("enqueued",)], [("scheduled",)])
    for act in acts:
        act(house, message)
    assert told(message, "transition", "attempt", "outcome")[len(begun) :] == lines
    for transition, level in told(message, "transition", "levelname"):
        assert level == LEVELS.get(transition, "INFO")


def test_a_line_says_when_a_message_is_sent_and_to_whom(build: Build, told: Any) -> None:
    channels = {"memory": {"transport": "memory", "limits": ["1/minute"]}}
    house = build(clock=hour_ago(), channels=channels, quotas=["9/minute"], log_key=KEY)
    first, second = house.submit(), house.submit()
    house.deliver(first, second)
    assert [transition for (transition,) in told(second, "transition")][2:] == ["snoozed"]
    assert 50 < told(second, "wait_seconds")[2][0] <= 60
    (scheduled, at), _, (sent, _) = told(first, "recipient", "send_at")
    assert scheduled == sent != first.recipient
    assert at == as_text(first.send_at)
