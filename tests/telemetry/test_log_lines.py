"""Each transition of a message is a line in the log, a refused one is none; and their form."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Message, PerhapsSent, PermanentFailure, QuotaExceeded, TemporaryFailure
from dispatcher.cli.serve import logging_to
from dispatcher.cli.services import JsonFormatter
from dispatcher.telemetry.journal import FIELDS, Journal, Transition
from dispatcher.testing import a_message
from dispatcher.times.send_time import as_text
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

KEY = "sixteen letters and more"
ADA = "ada@example.org"


@pytest.fixture(autouse=True)
def at_debug(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "dispatcher.journal"):
        yield


def digest(caplog: pytest.LogCaptureFixture, recipient: str, key: str = KEY) -> str | None:
    caplog.clear()
    Journal(log_key=key).tell(Transition.SENT, a_message(recipient=recipient))
    found: str | None = vars(caplog.records[0]).get("recipient")
    return found


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
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
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
    house.parts.delivery.shared.claims.claim([message.id])
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
