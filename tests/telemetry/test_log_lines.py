"""Each transition of a message is a line in the log, a refused one is none; and their form."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
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


ROOMY = "100/minute"


@pytest.fixture
def roomy(build: Build) -> House:
    return build(clock=hour_ago(), quotas=ROOMY, log_key=KEY)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    def of(message: Message, *names: str) -> list[Any]:
        """What was told of a message: the transitions, or with names those fields of them."""
        lines = [vars(record) for record in caplog.records if record.name == "dispatcher.journal"]
        mine = [line for line in lines if line["message_id"] == str(message.id)]
        assert all(set(FIELDS) & set(line) for line in mine)
        wanted = names or ("transition",)
        found = [tuple(line.get(name) for name in wanted) for line in mine]
        return found if names else [facts[0] for facts in found]

    return of


def test_events_of_a_sent_message(roomy: House, told: Any) -> None:
    message = roomy.submit()
    roomy.deliver(message)
    roomy.deliver(message)
    assert told(message) == ["scheduled", "enqueued", "sent"]
    names = told(message, "recipient")
    assert names[0] == names[2] != (None,)
    assert told(message, "attempt")[2] == (1,)


def test_events_of_a_message_that_fails_and_is_retried(roomy: House, told: Any) -> None:
    message = roomy.submit()
    roomy.fail_sends(TemporaryFailure("busy", retry_after=timedelta(minutes=5)))
    roomy.deliver(message)
    roomy.fail_sends(PermanentFailure("gone"))
    roomy.change([message], next_attempt_at=message.send_at)
    roomy.deliver(message)
    roomy.dispatcher.retry(message.id)
    lines = told(message, "transition", "attempt", "outcome")
    assert lines[2:] == [
        ("retried", 1, "temporary"),
        ("failed", 2, "permanent"),
        ("retried", 2, None),
    ]
    assert told(message, "wait_seconds")[2][0] >= 300
    too_late = roomy.submit(expire_after=timedelta(hours=2))
    roomy.fail_sends(TemporaryFailure("busy", retry_after=timedelta(hours=3)))
    roomy.deliver(too_late)
    assert told(too_late)[2:] == ["expired"]


def test_events_of_an_unknown_outcome(roomy: House, told: Any) -> None:
    released, dropped = (roomy.submit(on_unknown="hold") for _ in range(2))
    roomy.fail_sends(*[PerhapsSent("the line broke")] * 2)
    roomy.deliver(released, dropped)
    roomy.dispatcher.release(released.id)
    roomy.dispatcher.drop(dropped.id)
    assert told(released)[2:] == ["held", "released"]
    assert told(dropped)[2:] == ["held", "failed"]


def test_events_of_a_snoozed_message(build: Build, told: Any) -> None:
    channels = {"memory": {"transport": "memory", "limits": ["1/minute"]}}
    house = build(clock=hour_ago(), quotas=ROOMY, channels=channels)
    first, second = house.submit(), house.submit()
    house.deliver(first, second)
    assert told(first)[2:] == ["sent"]
    assert told(second)[2:] == ["snoozed"]
    assert 50 < told(second, "wait_seconds")[2][0] <= 60


def test_events_of_expired_messages(build: Build, told: Any) -> None:
    channels = {
        "memory": {"transport": "memory", "catch_up": "expire"},
        "other": {"transport": "memory"},
    }
    house = build(clock=hour_ago(), quotas=ROOMY, channels=channels)
    overdue = house.submit()
    house.change([overdue], enqueue_at=overdue.send_at)
    assert house.parts.sweep.catch_up() == 1
    late = house.submit(channel="other", expire_after=timedelta(seconds=1))
    house.deliver(late)
    house.deliver(late)
    assert told(overdue)[-1] == told(late)[-1] == "expired"
    assert told(late).count("expired") == 1


def test_events_of_a_message_to_a_suppressed_recipient(roomy: House, told: Any) -> None:
    message = roomy.submit()
    late = roomy.submit("ben", expire_after=timedelta(seconds=1))
    roomy.parts.suppressions.add(message.recipient, None)
    for _ in range(2):
        roomy.deliver(message, late)
    assert told(message)[2:] == ["cancelled"]
    assert told(late)[2:] == ["expired"]


def test_events_of_rescued_messages(roomy: House, told: Any) -> None:
    again_, held = roomy.submit(), roomy.submit(on_unknown="hold")
    roomy.parts.delivery.shared.claims.claim([again_.id, held.id])
    roomy.end_claims(again_, held)
    assert roomy.parts.sweep.rescue() == 2
    assert told(again_)[2:] == ["rescued"]
    assert told(held)[2:] == ["rescued", "held"]


def test_events_of_moved_and_cancelled_messages_and_none_of_a_refused_one(
    house: House, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    at = house.clock.now() + timedelta(hours=1)
    alone, *many = (house.submit(f"ada {n}", send_at=at) for n in range(3))
    with pytest.raises(QuotaExceeded):
        house.submit("ada 1", send_at=at)
    assert sum(record.name == "dispatcher.journal" for record in caplog.records) == 3
    moved = house.dispatcher.reschedule(alone.id, send_at=at + timedelta(minutes=1))
    house.dispatcher.cancel(alone.id)
    house.dispatcher.cancel_many([message.id for message in many])
    assert told(alone) == ["scheduled", "rescheduled", "cancelled"]
    assert told(alone, "send_at")[1] == (as_text(moved.send_at),)
    assert [told(message) for message in many] == [["scheduled", "cancelled"]] * 2
