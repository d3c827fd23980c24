"""What operators ask for is found, in pages, by statements that look at few rows; and counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from typing import Any, cast

import pytest

from dispatcher import InvalidDraft, Message, Status
from dispatcher.message import new_id
from dispatcher.selection import Selection, Wanted
from dispatcher.store import listing as listing_module
from dispatcher.store import wishes
from dispatcher.store.database import Database
from dispatcher.store.events import EventRows
from dispatcher.store.listing import Figures, Listing, StoredVersion
from dispatcher.store.messages import Messages
from dispatcher.store.wishes import Wishes
from tests.store.plans import add_many, asked_of, plan_of, touched
from tests.support import rows
from tests.support.house import FAR
from tests.support.tables import messages

pytestmark = pytest.mark.every_database

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def listing(database: Database, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """Give what reads; a statement looks at three rows, so that pages cross many edges."""
    monkeypatch.setattr(listing_module, "_EXAMINED", 3)
    monkeypatch.setattr(listing_module, "_COUNTED", 3)
    return Listing(database, late=rows.SOON, put_off=rows.TTL)


@pytest.fixture
def stored(database: Database) -> list[Message]:
    """Give ten messages on three channels, oldest first; each third one is cancelled."""
    stored = []
    for number in range(10):
        message = rows.add(
            database,
            channel=("sms", "mail", "fax")[number % 3],
            recipient=f"r{number % 2}",
            scope=f"s{number % 4}",
            send_at=rows.now() + number * HOUR,
            idempotency_key=f"{'Key' if number < 5 else 'key'} {number}",
            scopes={"tenant": f"t{number % 2}", "shop": "s%"} if number > 2 else {},
            campaign=(None, "summer", "Summer", "summer")[number % 4],
            event=(None, "e1", "e1")[number % 3],
            priority=(0, -100, 50, 100)[number % 4],
        )
        if number % 3 == 0:
            message = Messages(database).cancel([message.id]).rows[message.id].message
        stored.append(message)
    return stored


def chosen(**filters: Any) -> Selection:
    return Selection.of(cast("Wanted", filters))


CASES: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda _: True),
    ({"status": "cancelled"}, lambda message: message.status is Status.CANCELLED),
    ({"channel": "mail"}, lambda message: message.channel == "mail"),
    ({"channel": "telex"}, lambda _: False),
    ({"channel": ["sms", "mail"]}, lambda message: message.channel in ("sms", "mail")),
    ({"recipient": "r1"}, lambda message: message.recipient == "r1"),
    ({"recipient": "r1", "channel": "sms"}, lambda message: message.recipient == "r1"
     and message.channel == "sms"),
    ({"scope": "s2"}, lambda message: message.scope == "s2"),
    ({"idempotency_key": "key 7"}, lambda message: message.idempotency_key == "key 7"),
    ({"key_prefix": "key"}, lambda message: message.idempotency_key.startswith("key")),
    ({"key_prefix": "k_y"}, lambda _: False),
    ({"scopes": {"tenant": "t1"}}, lambda message: message.scopes.get("tenant") == "t1"),
    ({"scopes": {"tenant": "t1", "shop": "s%"}, "channel": "mail"}, lambda message: (
        message.scopes.get("tenant") == "t1" and message.channel == "mail")),
    ({"campaign": "summer"}, lambda message: message.campaign == "summer"),
    ({"campaign": "Summer"}, lambda message: message.campaign == "Summer"),
    ({"campaign": "summe"}, lambda _: False),
    ({"event": "e1"}, lambda message: message.event == "e1"),
    ({"event": "e1", "campaign": "summer"}, lambda message: (
        message.event == "e1" and message.campaign == "summer")),
    ({"event": "e1", "recipient": "r1"}, lambda message: (
        message.event == "e1" and message.recipient == "r1")),
    ({"campaign": "summer", "status": "cancelled"}, lambda message: (
        message.campaign == "summer" and message.status is Status.CANCELLED)),
    ({"campaign": "summer", "recipient": "r1", "channel": "mail"}, lambda message: (
        message.campaign == "summer" and message.recipient == "r1" and message.channel == "mail")),
    ({"priority_from": -99}, lambda message: message.priority >= -99),
    ({"priority_from": 50, "campaign": "summer"}, lambda message: (
        message.priority >= 50 and message.campaign == "summer")),
    ({"scopes": {"shop": "s_"}}, lambda _: False),
    ({"scopes": {"recipient.sms": "s2"}}, lambda message: (
        message.scope == "s2" and message.channel == "sms")),
    ({"scopes": {"channel.mail": "mail"}}, lambda message: message.channel == "mail"),
    ({"scopes": {"channel.mail": "sms"}}, lambda _: False),
]  # fmt: skip


def test_matching_messages_are_found_counted_and_paged(
    listing: Listing, stored: list[Message]
) -> None:
    for filters, matches in CASES:
        expected = [message for message in stored if matches(message)]
        selection = chosen(**filters)
        assert listing.count(selection) == len(expected), filters
        by_status = Counter((message.channel, message.status) for message in expected)
        by_channel, _ = listing.counted(selection)
        assert {(channel, status): count for channel, counts in by_channel.items()
                for status, count in counts.items()} == by_status  # fmt: skip
        oldest = listing.pages(selection, size=4, oldest_first=True)
        assert list(chain.from_iterable(oldest)) == expected, filters
        for limit in (1, 2, 3, 50):
            assert _all_pages(listing, selection, limit) == expected[::-1], filters


def test_messages_after_a_cursor_are_found_from_either_end(
    listing: Listing, stored: list[Message]
) -> None:
    cases: list[tuple[int, dict[str, str]]] = [
        (3, {}), (9, {}), (4, {"channel": "mail"}), (2, {"recipient": "r1"}),
        (1, {"campaign": "summer"}),
    ]  # fmt: skip
    for number, filters in cases:
        expected = [
            message for message in stored[number + 1 :]
            if all(getattr(message, name) == value for name, value in filters.items())
        ]  # fmt: skip
        selection = chosen(made_after=str(stored[number].id), **filters)
        assert listing.count(selection) == len(expected)
        oldest = listing.pages(selection, size=2, oldest_first=True)
        assert list(chain.from_iterable(oldest)) == expected
        assert _all_pages(listing, selection, 2) == expected[::-1]


def _all_pages(listing: Listing, selection: Selection, limit: int) -> list[Message]:
    read: list[Message] = []
    after = None
    while True:
        page = listing.page(selection, after=after, limit=limit)
        assert len(page.messages) <= limit
        read += page.messages
        after = page.after
        if after is None:
            return read
        assert len(page.messages) == limit, "a page that is not the last one is full"


def test_versions_are_read_without_whole_rows_and_look_ups_by_id(
    database: Database, listing: Listing, stored: list[Message]
) -> None:
    """PostgreSQL would look for each id in every partition."""
    versions: list[StoredVersion] = []
    after, selection = None, chosen(status="scheduled")
    with asked_of(database.engine) as asked:
        while after is not None or not versions:
            page, after = listing.versions(selection, after=after, limit=4, patience=MINUTE)
            versions += page
    assert versions == [
        (message.id, 0, 0, message.max_attempts, Status.SCHEDULED)
        for message in stored
        if message.status is Status.SCHEDULED
    ]
    assert not [statement for statement, _ in asked if re.search("body|JOIN", statement)]


def test_times_bound_the_promised_time(listing: Listing, stored: list[Message]) -> None:
    start, end = stored[3].send_at, stored[6].send_at
    page = listing.page(chosen(from_at=start, until_at=end), after=None, limit=50)
    assert [*page.messages] == [*page] == [stored[5], stored[4], stored[3]]
    assert len(page) == 3
    assert listing.count(chosen(from_at=end)) == 4


def test_a_date_is_where_that_day_begins_in_the_zone() -> None:
    day = chosen(from_at="2026-03-29", until_at=date(2026, 3, 30), zone="Europe/Berlin")
    assert (day.from_at, day.until_at) == (
        datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 3, 29, 22, tzinfo=UTC),
    )  # fmt: skip
    assert chosen(from_at="2026-11-24").from_at == datetime(2026, 11, 24, tzinfo=UTC)
    skipped = chosen(from_at="2018-11-04", zone="America/Sao_Paulo")  # its midnight was skipped
    assert skipped.from_at == datetime(2018, 11, 4, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"status": "lost"}, "status: "),
        ({"channel": "a\nb"}, "channel: "),
        ({"channel": []}, "channel: an empty list"),
        ({"channel": 7}, "channel: "),
        ({"recipient": ""}, "recipient: "),
        ({"from_at": "2026-02-30"}, "from_at: there is no date 2026-02-30"),
        ({"from_at": "9999-12-31", "zone": "Etc/GMT+12"}, "from_at: "),
        ({"from_at": "soon"}, r"from_at: .*or a date \(2026-12-24\)"),
        ({"until_at": "2030-01-01T00:00"}, "until_at: "),
        ({"from_at": "2030-01-02T00:00Z", "until_at": "2030-01-01T00:00Z"}, "until_at: "),
        ({"made_after": "yesterday"}, "made_after: "),
        ({"scopes": {"tenant": "a\nb"}}, "scopes.tenant: the character"),
        ({"scopes": "tenant"}, "scopes: a str"),
        ({"key_prefix": ""}, "key_prefix: 0 characters"),
        ({"overdue": True, "status": "sent"}, "overdue: "),
        ({"overdue": "yes"}, "overdue: "),
        ({"campaign": "c" * 65}, "campaign: "),
        *(({"priority_from": value}, "priority_from: ") for value in (101, 1.5, "high", "7", True)),
    ],
)
def test_filters_that_cannot_be_are_refused_by_field(filters: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDraft, match=f"^{said}"):
        chosen(**filters)


def test_a_filter_that_does_not_exist_is_a_type_error() -> None:
    """A misspelt one counted, listed and changed everything."""
    with pytest.raises(TypeError, match="there is no filter 'recipent'; the filters are status,"):
        chosen(recipent="ada")


def test_messages_made_after_the_first_page_are_left_out(
    database: Database, listing: Listing
) -> None:
    first = rows.add(database)
    before = new_id()
    rows.add(database)
    pages = listing.pages(chosen(), size=9, before=before, oldest_first=True)
    assert list(chain.from_iterable(pages)) == [first]


def test_overdue_is_what_is_scheduled_and_was_due_for_a_while(
    database: Database, listing: Listing
) -> None:
    late = rows.add_due(database)
    retried = rows.add_due(database)
    rows.change(database, retried.id, enqueue_at=rows.now() + timedelta(seconds=3))
    rows.add(database, send_at=rows.now() - timedelta(seconds=1))
    rows.add(database)
    rows.claimed(database)
    Messages(database).cancel([rows.add_due(database).id])
    page = listing.page(chosen(overdue=True), after=None, limit=9)
    assert [message.id for message in page.messages] == [retried.id, late.id]
    assert listing.count(chosen(overdue=True)) == 2
    assert listing.count(chosen(overdue=True, channel="fax")) == 0


INDEXES: list[tuple[dict[str, Any], str]] = [
    ({"status": "held"}, "ix_dispatcher_messages_held"),
    ({"status": "sending"}, "ix_dispatcher_messages_claim_expires_at"),
    ({"overdue": True}, "ix_dispatcher_messages_enqueue_at"),
    ({"recipient": "ada"}, "ix_dispatcher_messages_recipient"),
    ({"idempotency_key": "k"}, "id=?"),
    ({"channel": "sms"}, "id>? AND id<?"),
    ({"campaign": "summer"}, "ix_dispatcher_messages_campaign (campaign>? AND campaign<?"),
    ({"event": "e1"}, "ix_dispatcher_messages_event (event>? AND event<?"),
    ({"status": "failed"}, "ix_dispatcher_messages_unsent (status=?"),
]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_index_leads_to_what_matches(
    database: Database, listing: Listing, stored: list[Message]
) -> None:
    del stored
    for filters, index in INDEXES:
        plan = list(_plan(database, listing, chosen(**filters)))
        assert any(index in step for step in plan), filters
        assert not any(re.search("SCAN dispatcher_messages(?!.*INDEX)", step) for step in plan)


def test_each_campaign_is_named_once(listing: Listing, stored: list[Message]) -> None:
    [first, second] = listing.campaigns()
    assert {first, second} == {message.campaign for message in stored} - {None}
    assert [*listing.campaigns(after=first)] == [second]
    assert [*listing.campaigns(after=second)] == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_stretch_of_a_campaign_reads_no_more_than_itself(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, at_once = 20_000, 100
    monkeypatch.setattr(listing_module, "_EXAMINED", at_once)
    rows.add(database, campaign="winter")
    columns = ", ".join(column.name for column in messages.c if column.name != "id")
    copy = (
        f"INSERT INTO dispatcher_messages (id, {columns}) "  # noqa: S608 - names of our own
        f"SELECT lpad(to_hex(n), 32, '0')::uuid, {columns} "
        f"FROM dispatcher_messages, generate_series(1, {total}) AS n"
    )
    for statement in (copy, "VACUUM ANALYZE dispatcher_messages"):
        database.run(lambda connection, it=statement: connection.exec_driver_sql(it))  # type: ignore[misc]  # a default argument
    listing = Listing(database, late=rows.SOON, put_off=rows.TTL)
    with asked_of(database.engine) as asked:
        counts, is_whole = listing.counted(chosen(campaign="winter"), patience=0 * DAY)
        assert [*listing.campaigns()] == ["winter"]
    assert (counts["sms"][Status.SCHEDULED], is_whole) == (at_once, False)
    with database.engine.connect() as connection:
        for statement, values in asked:
            plan = plan_of(connection, statement, values, "ANALYZE", "BUFFERS")
            # It was 115 while the whole campaign was read in its index.
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 40, statement


def _plan(database: Database, listing: Listing, selection: Selection) -> Iterator[str]:
    with asked_of(database.engine) as asked:
        listing.page(selection, after=None, limit=2)
    with database.engine.connect() as connection:
        for statement, values in asked:
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values):
                yield str(row[-1])


@pytest.fixture
def figures(database: Database) -> Figures:
    return Figures(database, late=rows.SOON, put_off=rows.TTL)


def due_in(database: Database, length: timedelta, **more: object) -> Message:
    return rows.add(database, send_at=rows.now() + length, **more)


def ended(database: Database, status: str, ago: timedelta, channel: str = "sms") -> None:
    message = rows.add(database, channel=channel)
    rows.change(database, message.id, status=status, finished_at=rows.now() - ago)


def test_counts_have_live_messages_and_those_ended_lately(
    database: Database, figures: Figures
) -> None:
    rows.add(database, channel="mail")
    rows.claimed(database)
    held = rows.claimed(database)
    rows.change(database, held.message.id, status="held", claimed_by=None, claim_expires_at=None)
    Messages(database).cancel([rows.add(database).id])
    ended(database, "sent", HOUR)
    ended(database, "sent", 2 * DAY)
    ended(database, "failed", HOUR, channel="mail")
    counts = figures.counts(since=DAY)
    assert counts.by_channel == {
        "mail": {Status.SCHEDULED: 1, Status.FAILED: 1},
        "sms": {Status.SENDING: 1, Status.HELD: 1, Status.CANCELLED: 1, Status.SENT: 1},
    }
    assert [*counts.by_channel] == ["mail", "sms"]
    assert counts.complete
    assert abs(counts.now - rows.now()) < MINUTE
    assert figures.counts(since=3 * DAY).by_channel["sms"][Status.SENT] == 2


def test_each_hour_of_the_last_day_has_what_ended_in_it(
    database: Database, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest are counted first, and an hour as a whole or not at all."""
    monkeypatch.setattr(listing_module, "_COUNTED", 2)
    this = figures.last_day()[-1].at
    for hours, status, late in (
        (1, "sent", 0), (1, "sent", 2), (1, "failed", 2), (2, "sent", 1), (2, "sent", 0),
        (2, "cancelled", 0), (2, "expired", 3), (23, "failed", 0), (24, "sent", 0),
    ):  # fmt: skip
        at = this - hours * HOUR + MINUTE
        message = rows.add(database, send_at=at - late * HOUR, expires_at=None)
        rows.change(database, message.id, status=status, finished_at=at)

    def counted() -> dict[int, tuple[int, ...]]:
        return {
            (this - hour.at) // HOUR: (hour.sent, hour.late, hour.failed, hour.expired)
            for hour in figures.last_day()
        }

    told = dict.fromkeys(range(24), (0, 0, 0, 0))
    told |= {1: (2, 1, 1, 0), 2: (2, 1, 0, 1), 23: (0, 0, 1, 0)}
    assert counted() == told
    monkeypatch.setattr(listing_module, "MOST_COUNTED", 4)
    assert counted() == {n: told[n] for n in range(2)}


def test_counting_ends_somewhere(
    database: Database, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "MOST_COUNTED", 2)
    for _ in range(2):
        due_in(database, MINUTE)
    assert figures.counts(since=DAY).complete
    assert figures.load().complete
    assert figures.busiest("channel", within=HOUR, limit=5)[1]
    for _ in range(2):
        due_in(database, MINUTE)
    assert not figures.counts(since=DAY).complete
    assert not figures.load().complete
    assert not figures.busiest("channel", within=HOUR, limit=5)[1]


def test_the_oldest_of_what_is_overdue_is_named(database: Database, figures: Figures) -> None:
    assert figures.overdue().many == 0
    due_in(database, -MINUTE)
    oldest = due_in(database, -HOUR)
    due_in(database, -timedelta(seconds=1))
    overdue = figures.overdue()
    assert (overdue.many, overdue.oldest) == (2, oldest.id)
    assert timedelta(0) <= overdue.longest - HOUR < MINUTE


def test_each_minute_of_the_next_hour_is_counted(database: Database, figures: Figures) -> None:
    start = figures.load().start
    assert (start.second, start.microsecond) == (0, 0)
    for number in (2, 2, 3, 59):
        at = start + number * MINUTE + timedelta(seconds=number)
        rows.add(database, send_at=at)
    rows.add(database, send_at=start + 3 * MINUTE - timedelta(milliseconds=1))
    rows.add(database, send_at=start + 61 * MINUTE)
    due_in(database, -HOUR)
    Messages(database).cancel([rows.add(database, send_at=start + 5 * MINUTE).id])
    load = figures.load()
    skipped = (load.start - start) // MINUTE  # where a minute has ended since
    expected = {2: 3, 3: 1, 59: 1}
    assert len(load.minutes) == 60
    assert {n + skipped: due for n, due in enumerate(load.minutes) if due} == {
        n: due for n, due in expected.items() if n >= skipped
    } | ({61: 1} if skipped > 1 else {})


def test_the_busiest_come_first(database: Database, figures: Figures) -> None:
    for name, count in (("ada", 1), ("ben", 3), ("cyd", 2)):
        for number in range(count):
            due_in(database, (2 + number) * MINUTE, scope=name, recipient=f"to {name}")
    due_in(database, 2 * DAY, scope="ada")
    late = due_in(database, -HOUR, scope="cyd", recipient="to cyd")
    Messages(database).cancel([due_in(database, MINUTE, scope="ada").id])
    busy, complete = figures.busiest("scope", within=DAY, limit=2)
    assert [(scope.name, scope.messages) for scope in busy] == [("ben", 3), ("cyd", 3)]
    assert busy[1].next_at == late.next_attempt_at
    assert complete
    by_recipient, _ = figures.busiest("recipient", within=DAY, limit=9)
    assert [recipient.name for recipient in by_recipient] == ["to ben", "to cyd", "to ada"]
    assert figures.busiest("channel", within=DAY, limit=9)[0][0].messages == 7


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_look_at_wishes_reads_no_more_than_what_is_due_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what has ended nor, where the look ends before, what is scheduled for later."""
    at_once = 100
    monkeypatch.setattr(wishes, "_EXAMINED", at_once)
    instants = [FAR + number * rows.SOON for number in range(5_000)]
    wish: dict[str, Any] = {"wish": "2100-01-01T09:00:00.000", "zone": "Europe/Berlin"}
    for status in ("scheduled", "sent"):
        add_many(database, instants, status=status, tokens=0, **wish)
    vacuum = "VACUUM ANALYZE dispatcher_messages"
    database.run(lambda connection: connection.exec_driver_sql(vacuum))
    looking = Wishes(database, EventRows(database, Messages(database)), "UTC")
    pages = looking.wrong_messages()
    for _ in range(2):
        with asked_of(database.engine) as asked:
            assert len(next(pages)) == at_once
        with database.engine.connect() as connection:
            for statement, values in asked:
                plan = plan_of(connection, statement, values, "ANALYZE")
                assert touched(plan) <= at_once + 2, statement
