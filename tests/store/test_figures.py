"""Numbers for operators, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Message, Status
from dispatcher.store import Database, Figures, Messages
from dispatcher.store import figures as figures_module
from tests.support import rows

pytestmark = pytest.mark.every_database

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def figures(database: Database) -> Figures:
    return Figures(database, late=rows.SOON, put_off=rows.TTL)


def due_in(database: Database, length: timedelta, **more: object) -> Message:
    return rows.add(database, send_at=rows.now() + length, **more)


def ended(database: Database, status: str, ago: timedelta, channel: str = "sms") -> None:
    message = rows.add(database, channel=channel)
    rows.change(database, message.id, status=status, finished_at=rows.now() - ago)


def test_what_lives_counts_and_what_ended_lately(database: Database, figures: Figures) -> None:
    rows.add(database, channel="mail")
    rows.claimed(database)
    held = rows.claimed(database)
    rows.change(database, held.message.id, status="held", claimed_by=None, claim_expires_at=None)
    Messages(database).cancel(rows.add(database).id)
    ended(database, "sent", HOUR)
    ended(database, "sent", 2 * DAY)
    ended(database, "failed", HOUR, channel="mail")
    found = figures.counts(since=DAY)
    assert found.by_channel == {
        "mail": {Status.SCHEDULED: 1, Status.FAILED: 1},
        "sms": {Status.SENDING: 1, Status.HELD: 1, Status.CANCELLED: 1, Status.SENT: 1},
    }
    assert [*found.by_channel] == ["mail", "sms"]
    assert found.complete
    assert abs(found.now - rows.now()) < MINUTE
    assert figures.counts(since=3 * DAY).by_channel["sms"][Status.SENT] == 2


def test_counting_ends_somewhere(
    database: Database, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "MOST_COUNTED", 2)
    for _ in range(2):
        due_in(database, MINUTE)
    assert figures.counts(since=DAY).complete
    assert figures.load().complete
    assert figures.busiest("channel", within=HOUR, at_most=5)[1]
    for _ in range(2):
        due_in(database, MINUTE)
    assert not figures.counts(since=DAY).complete
    assert not figures.load().complete
    assert not figures.busiest("channel", within=HOUR, at_most=5)[1]


def test_the_oldest_of_what_is_overdue_is_named(database: Database, figures: Figures) -> None:
    assert figures.overdue().many == 0
    due_in(database, -MINUTE)
    oldest = due_in(database, -HOUR)
    due_in(database, -timedelta(seconds=1))
    found = figures.overdue()
    assert (found.many, found.oldest) == (2, oldest.id)
    assert timedelta(0) <= found.longest - HOUR < MINUTE


def test_each_minute_of_the_next_hour_is_counted(database: Database, figures: Figures) -> None:
    start = figures.load().start
    assert (start.second, start.microsecond) == (0, 0)
    for number in (2, 2, 3, 59):
        at = start + number * MINUTE + timedelta(seconds=number)
        rows.add(database, send_at=at)
    rows.add(database, send_at=start + 3 * MINUTE - timedelta(milliseconds=1))
    rows.add(database, send_at=start + 61 * MINUTE)
    due_in(database, -HOUR)
    Messages(database).cancel(rows.add(database, send_at=start + 5 * MINUTE).id)
    found = figures.load()
    skipped = (found.start - start) // MINUTE  # where a minute has ended since
    expected = {2: 3, 3: 1, 59: 1}
    assert len(found.minutes) == 60
    assert {n + skipped: many for n, many in enumerate(found.minutes) if many} == {
        n: many for n, many in expected.items() if n >= skipped
    } | ({61: 1} if skipped > 1 else {})


def test_the_busiest_come_first(database: Database, figures: Figures) -> None:
    for name, many in (("ada", 1), ("ben", 3), ("cyd", 2)):
        for number in range(many):
            due_in(database, (2 + number) * MINUTE, scope=name, recipient=f"to {name}")
    due_in(database, 2 * DAY, scope="ada")
    late = due_in(database, -HOUR, scope="cyd", recipient="to cyd")
    Messages(database).cancel(due_in(database, MINUTE, scope="ada").id)
    busy, complete = figures.busiest("scope", within=DAY, at_most=2)
    assert [(each.name, each.messages) for each in busy] == [("ben", 3), ("cyd", 3)]
    assert busy[1].next_at == late.next_attempt_at
    assert complete
    by_recipient, _ = figures.busiest("recipient", within=DAY, at_most=9)
    assert [each.name for each in by_recipient] == ["to ben", "to cyd", "to ada"]
    assert figures.busiest("channel", within=DAY, at_most=9)[0][0].messages == 7


def test_without_messages_there_is_nothing_to_tell(figures: Figures) -> None:
    assert figures.counts(since=DAY).by_channel == {}
    assert sum(figures.load().minutes) == 0
    assert figures.busiest("scope", within=DAY, at_most=9) == ([], True)
