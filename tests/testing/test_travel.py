"""Time travel: what happens meanwhile, in which order, and what the assertions say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from dispatcher import (
    Draft,
    InvalidValue,
    Message,
    MessageNotFound,
    QuietHours,
    QuotaExceeded,
    Settings,
    TemporaryFailure,
)
from dispatcher.testing import MemoryDispatcher
from tests.support import canaries

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
BODY = {"text": canaries.BODY}
HOUR = timedelta(hours=1)


def made(**more: Any) -> MemoryDispatcher:
    """Return a dispatcher in memory with a channel ``sms``, whose settings may be given."""
    sms = {"transport": "memory"} | more.pop("sms", {})
    channels = {"sms": sms, "mail": {"transport": "memory"}} | more.pop("channels", {})
    settings = Settings.load(**{"quotas": "5/minute"} | more, channels=channels)
    return MemoryDispatcher(settings, start=START)


@pytest.fixture
def memory() -> Iterator[MemoryDispatcher]:
    """Give one with few rules."""
    with made() as found:
        yield found


def submit(memory: MemoryDispatcher, **more: Any) -> Message:
    usual = {"channel": "sms", "recipient": "ada", "body": BODY, "send_in": HOUR}
    if "send_at" in more:
        del usual["send_in"]
    return memory.submit(**usual | more)  # type: ignore[arg-type]  # passed on


def raising(error: BaseException, *, until: int = 1_000) -> Callable[[Message], None]:
    """Return what raises an error at each attempt before the one of this number."""

    def fail(message: Message) -> None:
        if message.attempt_count < until:
            raise error

    return fail


def test_messages_are_sent_at_their_instants_in_order(memory: MemoryDispatcher) -> None:
    for days in (3, 1, 2):
        submit(memory, send_in=timedelta(days=days), recipient=f"r{days}")
    memory.travel(days=2)
    assert [(each.recipient, each.at) for each in memory.outbox] == [
        ("r1", START + timedelta(days=1)),
        ("r2", START + timedelta(days=2)),
    ]
    assert memory.travel.until_idle() == START + timedelta(days=3)
    assert len(memory.outbox) == 3


def test_a_series_is_booked_and_sent(memory: MemoryDispatcher) -> None:
    """Also far behind what is booked at once, and until its end."""
    usual: Any = {"channel": "sms", "recipient": "ada", "body": BODY, "zone": "Europe/Berlin"}
    memory.series.add("daily", "0 9 * * *", **usual)
    memory.travel(days=3)
    assert [sent.at.isoformat() for sent in memory.outbox] == [
        f"2026-11-{day}T08:00:00+00:00" for day in (24, 25, 26)
    ]
    memory.travel(days=127)
    assert len(memory.outbox) == 130
    assert memory.outbox[-1].at.hour == 7, "clocks have changed"
    memory.series.remove("daily")
    memory.travel.until_idle()
    assert len(memory.outbox) == 130
    memory.series.add("thrice", "0 9 * * *", count=3, **usual)
    memory.travel.until_idle()
    assert len(memory.outbox) == 133


def test_a_failing_send_is_tried_again_until_its_attempts_are_used_up() -> None:
    with made(sms={"max_attempts": 3, "backoff_base": 60}) as memory:
        memory.outbox.before = raising(TemporaryFailure("busy", retry_after=10 * HOUR))
        message = submit(memory)
        memory.travel.until_idle()
        attempts = memory.attempts(message.id)
        assert memory.get(message.id).status == "failed"
        assert [each.started_at >= START + HOUR + 10 * HOUR * number
                for number, each in enumerate(attempts)] == [True] * 3  # fmt: skip
        assert not memory.outbox


def test_the_same_seed_has_the_same_waits() -> None:
    def ends() -> datetime:
        with made() as memory:
            memory.outbox.before = raising(TemporaryFailure("busy"), until=4)
            submit(memory)
            return memory.travel.until_idle()

    assert ends() == ends()


def test_a_message_expires_and_its_quota_is_free_again() -> None:
    with made(quotas="1/day", sms={"backoff_base": 3_600}) as memory:
        memory.outbox.before = raising(TemporaryFailure("busy", retry_after=HOUR))
        message = submit(memory, expires_at=START + HOUR * 1.5)
        with pytest.raises(QuotaExceeded):
            submit(memory, send_in=3 * HOUR)
        memory.travel(hours=2)
        assert memory.get(message.id).status == "expired"
        submit(memory)


def test_limits_put_messages_off_and_keep_their_number() -> None:
    with made(quotas="100/minute", sms={"limits": ["2/minute", "3/hour in UTC"]}) as memory:
        for _ in range(5):
            submit(memory)
        memory.travel.until_idle()
        after = [each.at - START - HOUR for each in memory.outbox]
        minute = timedelta(minutes=1)
        assert after[:2] == [timedelta(0)] * 2
        assert minute <= after[2] < minute * 1.1
        assert HOUR <= after[3] < HOUR * 1.1


def test_of_two_changes_of_quotas_at_one_instant_the_later_holds(memory: MemoryDispatcher) -> None:
    for quota in ("1/hour", "2/hour", "3/hour"):
        memory.set_quotas("recipient", "ada", quota)
        assert memory.quotas_of("recipient", "ada").quotas == (quota,)


def test_a_refusal_by_quiet_hours_is_asserted() -> None:
    with made(sms={"quiet_hours": "21:00-08:00"}) as memory:
        with pytest.raises(QuietHours):
            submit(memory, send_at=START.replace(hour=23))
        assert memory.assert_refused(quiet_hours=True).quiet_hours == "21:00-08:00"


def test_an_exception_inside_a_send_reaches_the_test_and_the_message_is_rescued(
    memory: MemoryDispatcher,
) -> None:
    class Stop(BaseException):
        pass

    def stop(message: Message) -> None:
        memory.outbox.before = None
        raise Stop

    memory.outbox.before = stop
    message = submit(memory)
    with pytest.raises(Stop):
        memory.travel(hours=2)
    memory.travel(hours=2)
    assert memory.get(message.id).status == "sent"


def test_an_assertion_that_fails_inside_a_send_fails_the_test(memory: MemoryDispatcher) -> None:
    def check(message: Message) -> None:
        assert message.recipient == "ben", "not to ben"

    memory.outbox.before = check
    message = submit(memory)
    for _ in range(2):
        with pytest.raises(AssertionError, match="not to ben") as caught:
            memory.travel.until_idle()
        assert caught.traceback[-1].name == "check"
    memory.outbox.before = None
    memory.travel.until_idle()
    assert memory.get(message.id).status == "sent"


def test_ended_messages_are_deleted_after_the_retention(memory: MemoryDispatcher) -> None:
    message = submit(memory)
    memory.travel(days=30)
    assert memory.get(message.id).status == "sent"
    submit(memory)
    memory.travel(days=1)
    memory.travel(hours=2)
    with pytest.raises(MessageNotFound):
        memory.get(message.id)


def test_status_messages_are_sent_too() -> None:
    hooks = {"hooks": {"transport": "webhook", "options": {"payload": "body"}}}
    with made(channels=hooks, status_channel="hooks") as memory:
        submit(memory, status_url="https://example.org/hook")
        memory.travel.until_idle()
        report = memory.assert_sent(channel="hooks")
        assert report.body["type"] == "message.sent"


NO_TIMES: list[tuple[dict[str, Any], str]] = [
    ({"hours": 1, "to": START + HOUR}, "to: given with a length; accepted: a length, or an"),
    ({"days": 10**7}, "length: is out of range; accepted: one that ends before"),
    ({"days": 10**10}, "length: is out of range"),
    ({"seconds": float("inf")}, "length: is out of range"),
    ({"seconds": float("nan")}, "length: is out of range"),
    ({"to": "tomorrow"}, "to: .*; accepted"),
    ({"to": START - HOUR}, "to: .* is past"),
    ({"days": -1}, "to: .* is past"),
]


def test_a_time_that_cannot_come_is_refused(memory: MemoryDispatcher) -> None:
    for way, text in NO_TIMES:
        with pytest.raises(InvalidValue, match=text):
            memory.travel(**way)
        assert memory.travel.now == START
    assert memory.travel(to=START + HOUR) == START + HOUR == memory.travel.now


def test_time_does_not_pass_after_the_end() -> None:
    with made() as memory:
        submit(memory)
    for move in (memory.travel, memory.travel.until_idle):
        with pytest.raises(RuntimeError, match="the dispatcher is closed; make a new one"):
            move()
    with pytest.raises(RuntimeError, match="the dispatcher is closed"):
        memory.travel(days=1)
    assert memory.travel.now == START
    assert memory.outbox == []


def test_scheduled_is_asserted_by_fields_and_promised_instant(memory: MemoryDispatcher) -> None:
    message = submit(memory)
    assert memory.assert_scheduled(recipient="ada", at=START + HOUR) == message
    assert memory.assert_scheduled(channel="sms", at="2026-11-23T14:00:00+01:00") == message
    with pytest.raises(AssertionError, match=r"(?s)nothing scheduled.*2026-11-23T13:00.*ada"):
        memory.assert_scheduled(recipient="ben")
    submit(memory)
    with pytest.raises(AssertionError, match="2 scheduled"):
        memory.assert_scheduled(recipient="ada")


@pytest.mark.parametrize("assertion", ["assert_scheduled", "assert_sent"])
def test_a_misspelt_field_is_refused_also_while_there_is_no_message(
    memory: MemoryDispatcher, assertion: str
) -> None:
    for _ in range(2):
        with pytest.raises(
            TypeError, match=r"no field 'recipent'; accepted: asked_at, at, .*recip"
        ):
            getattr(memory, assertion)(recipent="ada")
        submit(memory)
        memory.travel(days=1)


def test_sent_is_asserted_by_fields_and_instant(memory: MemoryDispatcher) -> None:
    submit(memory)
    with pytest.raises(AssertionError, match="nothing sent"):
        memory.assert_sent(recipient="ada")
    memory.travel(hours=1)
    sent = memory.assert_sent(recipient="ada", at=START + HOUR)
    assert sent.body == BODY
    assert memory.outbox == [sent]
    with pytest.raises(AssertionError, match=r"(?s)nothing sent.*at=.*sent 2026"):
        memory.assert_sent(at=START)


def test_a_refusal_is_asserted_by_quota_and_scope() -> None:
    with made(quotas="1/minute, 2/hour", scopes={"tenant": {"quotas": "1/day"}}) as memory:
        with pytest.raises(AssertionError, match="nothing refused"):
            memory.assert_refused()
        submit(memory, scopes={"tenant": "acme"})
        with pytest.raises(QuotaExceeded) as caught:
            submit(memory)
        assert memory.assert_refused(quota="1/60 second", scope="ada") is caught.value
        for wrong in ({"quota": "2/hour"}, {"scope": "ben"}):
            with pytest.raises(AssertionError, match="does not fit the quota 1/minute"):
                memory.assert_refused(**wrong)
        with pytest.raises(AssertionError, match="quiet_hours=True"):
            memory.assert_refused(quiet_hours=True)
        ben: dict[str, Any] = {"channel": "sms", "recipient": "ben", "body": BODY, "send_in": HOUR}
        memory.submit_many([Draft(**ben, scopes={"tenant": "acme"})])
        assert memory.assert_refused(quota="1/day").scope == "tenant:acme"


@pytest.mark.parametrize("start", ["2026-01-01", 0, date(2026, 1, 1), datetime(2026, 1, 1)])  # noqa: DTZ001 - wrong
def test_a_start_that_is_no_aware_datetime_is_refused(start: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        MemoryDispatcher(start=start)
    assert (caught.value.field, caught.value.accepted) == ("start", "an aware datetime")
