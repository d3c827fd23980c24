"""A late message waits for the end of its quiet hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from dispatcher import Message, Settings, Status, TemporaryFailure
from dispatcher.testing import MemoryDispatcher
from dispatcher.times.zones import known_zone
from tests.support import canaries
from tests.support.house import hour_ago
from tests.support.house_fixtures import Build

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
MORNING = datetime(2026, 11, 24, 8, tzinfo=UTC)
NIGHT = "21:00-08:00"
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def made(*, quotas: str = "5/minute", zone: str = "UTC", **sms: Any) -> MemoryDispatcher:
    """Return a dispatcher of a test with a channel ``sms``, at noon."""
    channels = {"sms": {"transport": "memory"} | sms}
    settings = Settings.load(quotas=quotas, zone=zone, channels=channels)
    return MemoryDispatcher(settings, start=START)


def submit(memory: MemoryDispatcher, **asked: Any) -> Message:
    usual: dict[str, Any] = {"channel": "sms", "recipient": "ada", "body": {"text": canaries.BODY}}
    if "send_in" not in asked:
        usual["send_at"] = START + 8 * HOUR
    return memory.submit(**usual | asked)


def sent_after_an_outage(memory: MemoryDispatcher, *, until: datetime, **asked: Any) -> datetime:
    """Submit a message, keep back what is due until then; return when it was sent."""
    message = submit(memory, **asked)
    memory.pause("channel", "sms")
    memory.travel(to=until)
    memory.resume("channel", "sms")
    memory.travel.until_idle()
    [sent] = memory.outbox
    assert sent.message.id == message.id
    assert sent.message.send_at == message.send_at
    [attempt] = memory.attempts(message.id)
    assert attempt.started_at == sent.at
    return sent.at


@pytest.mark.parametrize(
    ("channel", "asked", "opens"),
    [
        ({"quiet_hours": NIGHT}, {}, MORNING),
        ({"send_window": "mon-fri 08:00-21:00"}, {}, MORNING),
        ({}, {"quiet_hours": NIGHT}, MORNING),
        ({}, {"send_window": "mon,wed 09:00-21:00"}, MORNING + 25 * HOUR),
        ({"quiet_hours": "00:00-13:00"}, {"quiet_hours": NIGHT}, MORNING),
        ({"quiet_hours": "20:30-07:00"}, {"zone": "Europe/Berlin", "send_in": HOUR},
         MORNING - 2 * HOUR),
    ],
)  # fmt: skip
def test_after_an_outage_it_is_sent_once_when_they_end(
    channel: dict[str, Any], asked: dict[str, Any], opens: datetime
) -> None:
    with made(**channel) as memory:
        at = sent_after_an_outage(memory, until=START + 10 * HOUR, **asked)
        assert timedelta(0) <= at - opens < timedelta(seconds=1)


@pytest.mark.parametrize(
    ("asked", "until"),
    [
        ({"quiet_hours": "none"}, START + 10 * HOUR),
        ({"send_in": HOUR}, START + 3 * HOUR),
        ({"send_in": 8 * HOUR}, MORNING),
    ],
)
def test_outside_them_a_late_message_is_sent_at_once(
    asked: dict[str, Any], until: datetime
) -> None:
    with made(quiet_hours=NIGHT) as memory:
        at = sent_after_an_outage(memory, until=until, **asked)
        assert timedelta(0) <= at - until < timedelta(seconds=1)


def test_a_retry_waits_and_the_wait_uses_up_no_attempt() -> None:
    with made(quiet_hours=NIGHT, max_attempts=2, backoff_base=1) as memory:

        def fail_at_first(message: Message) -> None:
            if message.attempt_count == 1:
                raise TemporaryFailure("busy", retry_after=2 * HOUR)

        memory.outbox.before = fail_at_first
        message = submit(memory)
        memory.travel(to=START + 11 * HOUR)
        waiting = memory.get(message.id)
        assert (waiting.status, waiting.attempt_count) == (Status.SCHEDULED, 1)
        assert timedelta(0) <= waiting.next_attempt_at - MORNING < timedelta(seconds=1)
        memory.travel.until_idle()
        assert [message.at >= MORNING for message in memory.outbox] == [True]
        assert [attempt.outcome for attempt in memory.attempts(message.id)] == ["temporary", "sent"]


def test_what_waited_for_a_limit_waits_and_leaves_as_the_limit_allows() -> None:
    with made(quiet_hours=NIGHT, limits=["1/hour"], quotas="100/minute") as memory:
        for name in ("ada", "ben", "cyd"):
            submit(memory, recipient=name, send_at=MORNING - 12 * HOUR + 30 * MINUTE)
        memory.travel.until_idle()
        first, second, third = (message.at for message in memory.outbox)
        assert first == MORNING - 12 * HOUR + 30 * MINUTE
        assert MORNING <= second < MORNING + MINUTE
        assert third >= second + HOUR


def test_a_zone_that_this_host_lacks_is_that_of_the_settings() -> None:
    known_zone.cache_clear()  # a process says it once for each zone
    with made(quiet_hours=NIGHT, zone="Asia/Tokyo") as memory:
        submit(memory, zone="UTC")
        database = memory._app.database
        database.execute(update(database.tables.messages).values(zone="Mars/Olympus"))
        memory.pause("channel", "sms")
        memory.travel(to=START + 9 * HOUR + 30 * MINUTE)  # quiet in UTC, and 06:30 in Tokyo
        memory.resume("channel", "sms")
        memory.travel.until_idle()
        [sent] = memory.outbox
        assert timedelta(0) <= sent.at - (START + 11 * HOUR) < timedelta(seconds=1)


def test_hours_that_cannot_be_read_are_those_of_the_channel_and_hold_up_no_other(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    house = build(clock=hour_ago(), quotas="100/minute")
    broken, other = house.submit("ada"), house.submit("ben")
    house.change([broken], quiet_hours="late at night")
    assert house.deliver(broken, other) == 2
    assert {*house.sent} == {broken.id, other.id}
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == (f"message {broken.id}: quiet hours unreadable; those of its channel apply")


@pytest.mark.every_database
def test_it_is_put_back_without_a_permit_and_without_an_attempt(build: Build) -> None:
    house = build(clock=hour_ago(), quotas="100/minute")
    now = house.database_time()
    ends = (now + 2 * MINUTE).replace(second=0, microsecond=0)
    quiet = f"{now - MINUTE:%H:%M}-{ends:%H:%M}"
    waits, goes = house.submit("ada", quiet_hours=quiet), house.submit("ben")
    assert house.deliver(waits, goes) == 1
    assert house.sent == [goes.id]
    put_back = house.again(waits)
    assert (put_back.status, put_back.attempt_count) == (Status.SCHEDULED, 0)
    assert put_back.send_at == waits.send_at
    assert timedelta(0) <= put_back.next_attempt_at - ends < timedelta(seconds=10)
    assert house.dispatcher.attempts(waits.id) == []
    assert house.permits("ada") == {}
    assert house.deliver(waits) == 0, "it is not due"
    house.change([waits], quiet_hours="none", next_attempt_at=now)
    assert house.deliver(waits) == 1
    assert house.deliver(waits) == 0
    assert house.sent == [goes.id, waits.id]
