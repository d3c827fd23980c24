"""Series: each occurrence is booked once, ahead of others who ask, whatever dies or changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import (
    DispatcherError,
    DuplicateUnderWay,
    InvalidDraft,
    InvalidValue,
    Message,
    QuotaExceeded,
    StoreUnavailable,
)
from dispatcher.faults import InjectedFault, arm
from dispatcher.message import Rejection
from dispatcher.store.database import Database
from dispatcher.store.messages import GivenUp
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build, on_postgresql, on_sqlite

SECOND = timedelta(seconds=1)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ROOMY = "1000/hour"
HI = {"text": "{{ who }} {{ of }}"}
MEMBERS: list[Any] = []
NAMED = "tests.submission.test_series:members"


def members() -> Iterator[Any]:
    yield from MEMBERS


def add(house: House, name: str = "daily", rule: str = "FREQ=DAILY;BYHOUR=9", **more: Any) -> Any:
    fields: dict[str, Any] = {"channel": "memory", "body": {}} | more
    if "recipients" not in fields:
        fields.setdefault("recipient", "ada")
    return house.parts.series_list.add(name, {"rule": rule, **fields})


def book(house: House, later: timedelta = timedelta(0)) -> int:
    house.moved.advance(later)
    return house.parts.series_list.book_ahead()


def booked(house: House, name: str = "daily", **wanted: Any) -> list[Message]:
    wanted = {"status": "scheduled"} | wanted
    rows = house.dispatcher.select(event=f"series:{name}", **wanted)
    return sorted(rows, key=lambda message: message.send_at)


@contextmanager
def dying(point: str) -> Iterator[None]:
    """Let what is called die at a fault point."""
    arm(f"{point}=raise")
    with pytest.raises(InjectedFault):
        yield
    arm(None)


def once_taken(house: House, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something when the next pass has read what is due."""
    rows, take = house.parts.series_rows, house.parts.series_rows.take_due

    def take_late(*args: Any, **more: Any) -> Any:
        taken = take(*args, **more)
        monkeypatch.undo()
        act()
        return taken

    monkeypatch.setattr(rows, "take_due", take_late)


def walls(messages: list[Message]) -> list[str | None]:
    return [message.wish and message.wish[:16] for message in messages]


def test_occurrences_hold_their_places_and_keep_their_keys(build: Build) -> None:
    """What was moved or cancelled is not booked again; a stranger finds the place taken."""
    house = build(quotas="1/hour", zone="Europe/Berlin")
    add(house)
    assert book(house) == 35
    first, second, third, *_ = booked(house)
    assert walls([first, second]) == ["2100-01-02T09:00", "2100-01-03T09:00"]
    assert (first.zone, first.send_at.hour) == ("Europe/Berlin", 8)
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=first.send_at, recipient="ada")
    house.dispatcher.cancel(second.id)
    house.dispatcher.reschedule(third.id, send_at=third.send_at + 3 * HOUR)
    assert book(house, later=2 * DAY) == 2
    times = [message.send_at for message in booked(house)]
    assert second.send_at not in times
    assert third.send_at not in times
    assert len(times) == len(set(times)) == 36
    assert house.dispatcher.verify_windows().equal


@on_postgresql
def test_many_passes_and_changes_at_once(build: Build) -> None:
    house = build(quotas=ROOMY)
    for number in range(8):
        add(house, f"s{number}", recipients=["ada", "bob", "cyd"])
    series = house.parts.series_list

    def act(number: int) -> None:
        with suppress(DispatcherError):
            if number % 4:
                series.book_ahead()
            else:
                series.change(f"s{number % 8}", {"rule": "FREQ=DAILY;BYHOUR=10"}, None)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(act, range(32)))
    book(house, later=5 * MINUTE)
    book(house, later=5 * MINUTE)
    for number in range(8):
        of_one = booked(house, f"s{number}")
        assert len(of_one) == len({(m.recipient, m.send_at) for m in of_one}) == 3 * 35
        assert {m.send_at.hour for m in of_one} == {9 if number % 4 else 10}
    assert house.dispatcher.verify_windows().equal


@pytest.mark.parametrize("conflict", ["skip", "shift"])
def test_what_comes_due_while_a_pass_books_is_sent_now(
    build: Build, conflict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(quotas=ROOMY)
    add(house, rule="FREQ=DAILY", start=FAR + timedelta(seconds=1), conflict=conflict)
    known = house.parts.messages.with_keys

    def slowly(keys: list[str]) -> Any:
        house.moved.advance(MINUTE)
        return known(keys)

    monkeypatch.setattr(house.parts.messages, "with_keys", slowly)
    book(house)
    assert house.parts.series_list.get("daily").skipped == ()
    first, second, *_ = booked(house)
    assert FAR + MINUTE <= first.send_at < FAR + HOUR < second.send_at


@on_sqlite
def test_a_series_that_is_changed_meanwhile_delays_no_other(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(quotas=ROOMY)
    add(house)
    add(house, "other", recipient="bob")
    series, changes = house.parts.series_list, {"rule": "FREQ=DAILY;BYHOUR=10"}
    once_taken(house, monkeypatch, lambda: series.change("daily", changes, None))
    assert (book(house), book(house)) == (35, 35)
    assert series.get("other").booked_until == FAR + 35 * DAY
    assert {message.send_at.hour for message in booked(house)} == {10}


@on_sqlite
def test_a_pass_that_ends_after_a_change_leaves_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next pass need not look for what the change replaced."""
    house = build(quotas=ROOMY)
    add(house)
    rows, advance = house.parts.series_rows, house.parts.series_rows.advance

    def advance_late(booked: Any) -> None:
        monkeypatch.undo()
        house.parts.series_list.change("daily", {"rule": "FREQ=DAILY;BYHOUR=10"}, None)
        advance(booked)

    monkeypatch.setattr(rows, "advance", advance_late)
    assert [book(house), book(house)] == [35, 35]
    assert {message.send_at.hour for message in booked(house)} == {10}
    row = rows.get("series:daily")
    assert row is not None
    assert "replaces" not in row.definition


def test_a_change_leaves_what_is_on_its_way_however_long_the_horizon(build: Build) -> None:
    house = build(quotas=ROOMY, horizon="20 days", redelivery_timeout="60 days")
    add(house, rule="FREQ=HOURLY", start="2100-01-01T11:30")
    book(house)
    house.parts.series_list.change("daily", {"rule": "FREQ=DAILY;BYHOUR=18"}, None)
    book(house)
    assert {message.send_at.hour for message in booked(house)} == {18}


@pytest.mark.parametrize("conflict", ["skip", "refuse"])
def test_a_series_may_be_added_again_as_it_is(build: Build, conflict: str) -> None:
    """Also once its places are its own, and after its end."""
    house = build(quotas="1/hour")
    fields = {"conflict": conflict, "until": "2100-01-20T00:00"}
    first = add(house, **fields, recipients=iter(["ada"]))
    for later in (DAY, 40 * DAY):
        book(house, later=later)
        again = add(house, **fields, recipients=iter(["ada"]), start=None)
        assert again.model_copy(update={"booked_until": first.booked_until}) == first
    with pytest.raises(InvalidValue, match="there is a series"):
        add(house, rule="FREQ=DAILY;BYHOUR=10")


@on_sqlite
@pytest.mark.parametrize(
    ("rule", "walls_of_it"),
    [
        ("FREQ=DAILY;BYHOUR=9,12;COUNT=3", ["01T12:00", "02T09:00", "02T12:00"]),
        ("FREQ=DAILY;BYHOUR=11;COUNT=1", ["02T11:00"]),
        ("FREQ=WEEKLY;BYDAY=SA;COUNT=1", ["02T11:31"]),
        ("FREQ=MINUTELY;BYHOUR=11;COUNT=2", ["01T11:31", "01T11:32"]),
    ],
)
def test_an_hour_without_minutes_is_the_full_one(
    build: Build, rule: str, walls_of_it: list[str]
) -> None:
    """Whatever minute it is when the series is added without a start."""
    house = build(quotas=ROOMY)
    house.moved.advance(31 * MINUTE)
    series = add(house, rule=rule)
    book(house)
    assert [message.send_at.strftime("%dT%H:%M") for message in booked(house)] == walls_of_it
    assert add(house, rule=rule).start == series.start


@on_sqlite
def test_a_series_that_refuses_is_not_in_its_own_way(build: Build) -> None:
    house = build(quotas="1/hour")
    add(house, conflict="refuse")
    book(house)
    house.parts.series_list.change("daily", {"body": {"new": True}}, None)
    book(house)
    assert [message.body for message in booked(house)] == [{"new": True}] * 35
    house.submit(recipient="ada", send_at=FAR.replace(hour=18) + 3 * DAY)
    with pytest.raises(QuotaExceeded):
        house.parts.series_list.change("daily", {"rule": "FREQ=DAILY;BYHOUR=18"}, None)


@on_sqlite
def test_a_late_removal_leaves_a_new_series_of_that_name(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages, and its pause; that of the removed one has ended."""
    house = build(quotas=ROOMY)
    add(house)
    book(house)
    series = house.parts.series_list
    series.pause("daily")
    with dying("series.after_removal"):
        series.remove("daily")
    with pytest.raises(StoreUnavailable, match="being removed"):
        add(house)

    def end_and_add() -> None:
        book(house, later=5 * MINUTE)
        assert house.dispatcher.pauses() == ()
        add(house)
        series.pause("daily")
        assert book(house) == 35

    once_taken(house, monkeypatch, end_and_add)
    book(house)
    assert not house.parts.series_rows.remove("series:daily", "of the removed one")
    assert len(booked(house)) == 35
    assert len(house.dispatcher.pauses()) == 1


@pytest.mark.parametrize("recipients", [["ada"], "members"])
def test_a_change_from_a_day_on_leaves_those_before(build: Build, recipients: Any) -> None:
    house = build(quotas=ROOMY, series_recipients={"members": NAMED}, retention="60 days")
    MEMBERS[:] = ["ada"]
    add(house, recipients=recipients)
    book(house)
    house.parts.series_list.change("daily", {"rule": "FREQ=DAILY;BYHOUR=18"}, FAR + 10 * DAY)
    book(house)
    hours = [message.send_at.hour for message in booked(house)]
    assert hours == [9] * 10 + [18] * 25
    assert book(house, later=DAY) == 1


@on_sqlite
@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("hours", [(9, 18), (18, 9)])
def test_a_change_from_a_day_on_begins_with_that_day_in_each_zone(
    build: Build, hours: tuple[int, int], is_named: bool
) -> None:
    """Nobody has two on that day, or none, however far east or west of the others."""
    house = build(quotas=ROOMY, series_recipients={"members": NAMED}, retention="60 days")
    MEMBERS[:] = [
        (zone, zone)
        for zone in ("Pacific/Kiritimati", "Asia/Tokyo", "UTC", "America/New_York", "Pacific/Niue")
    ]
    before, after = hours
    recipients = "members" if is_named else [*MEMBERS]
    add(house, rule=f"FREQ=DAILY;BYHOUR={before}", zone="local", recipients=recipients)
    book(house)
    for earlier, day in (("2100-01-01", "2100-01-03"), ("2100-01-03", "2100-01-20")):
        house.parts.series_list.change("daily", {"rule": f"FREQ=DAILY;BYHOUR={after}"}, day)
        book(house)
        for zone, _ in MEMBERS:
            of_zone = [wish for wish in walls(booked(house, recipient=zone)) if wish]
            dates = Counter(wish[:10] for wish in of_zone)
            assert max(dates.values()) == 1
            assert len(dates) >= 34
            assert {wish[11:13] for wish in of_zone if wish >= day} == {f"{after:02}"}
            assert {wish[11:13] for wish in of_zone if earlier <= wish < day} == {f"{before:02}"}
        before, after = after, before


@on_sqlite
def test_a_change_cuts_by_nominal_times(build: Build) -> None:
    """No recipient loses an occurrence that is spread over the cut, or gets two of a day."""
    house = build(quotas=ROOMY)
    crowd = [f"r{number}" for number in range(9)]
    add(house, rule="FREQ=WEEKLY;BYDAY=SA;BYHOUR=9", recipients=crowd, spread="3 days")
    add(house, "alone", zone="Europe/Berlin")
    book(house)
    house.moved.advance(2 * DAY)
    before, moved = booked(house), booked(house, "alone")[9]
    house.dispatcher.reschedule(moved.id, send_at=moved.send_at - 7 * DAY)
    series = house.parts.series_list
    for name, since in (("daily", None), ("alone", moved.send_at)):
        series.change(name, {"body": {"new": True}}, since)
    book(house)
    times = [(message.recipient, message.send_at) for message in booked(house)]
    assert {(message.recipient, message.send_at) for message in before} <= set(times)
    days = Counter(message.send_at for message in booked(house, "alone"))
    assert max(days.values()) == 1
    assert moved.send_at in days


@on_sqlite
def test_a_change_after_a_pass_that_died_leaves_one_of_each(build: Build) -> None:
    """Also of those that come within the horizon, which no pass has noted as booked."""
    house = build(quotas=ROOMY)
    add(house, rule="FREQ=DAILY;BYHOUR=11;BYMINUTE=0;BYSECOND=10", start="2100-01-01T11:00")
    with dying("series.after_batch"):
        book(house)
    house.parts.series_list.change("daily", {"body": {"new": True}}, None)
    book(house)
    assert [message.body for message in booked(house)] == [{"new": True}] * 35


@on_sqlite
@pytest.mark.parametrize("change", ["change", "erase"])
def test_what_was_sent_before_a_pass_died_is_not_sent_anew(build: Build, change: str) -> None:
    house = build(quotas=ROOMY, clock=hour_ago())
    start = house.clock.now() + 10 * SECOND
    add(house, rule="FREQ=DAILY", start=start, recipients=["ada", "bob"])
    with dying("series.after_batch"):
        book(house)
    [first, *_] = booked(house, recipient="ada")
    house.deliver(first)
    house.moved.advance(20 * SECOND)
    if change == "erase":
        house.dispatcher.erase("bob")
    else:
        house.parts.series_list.change("daily", {"campaign": "new"}, None)
    book(house, later=MINUTE)
    assert booked(house, recipient="ada", status="sent") == [house.again(first)]
    assert booked(house, recipient="ada")[0].send_at == start + DAY


@pytest.mark.parametrize(("missed", "cancelled"), [("all", 0), ("last", 2 * 2), ("none", 2 * 3)])
def test_a_paused_series_keeps_its_places_and_misses_what_passes(
    build: Build, missed: str, cancelled: int
) -> None:
    house = build(quotas=ROOMY)
    add(house, missed=missed, recipients=["ada", "bob"])
    book(house)
    series = house.parts.series_list
    series.pause("daily")
    assert {pause.name for pause in house.dispatcher.pauses()} == {"series:daily"}
    house.moved.advance(3 * DAY)
    assert (series.resume("daily"), series.resume("daily")) == (cancelled, 0)
    left = booked(house)
    assert len(left) == 2 * 35 - cancelled
    late = [message.send_at for message in left if message.send_at < house.clock.now()]
    assert late == [FAR.replace(hour=9) + day * DAY for day in (1, 2, 3) for _ in "ab"][cancelled:]
    assert house.dispatcher.pauses() == ()


@pytest.mark.parametrize(("missed", "number"), [("all", 3), ("last", 1), ("none", 0)])
def test_missed_occurrences(build: Build, missed: str, number: int) -> None:
    """Nobody booked for long: of those within series_catch_up as many leave as asked for."""
    house = build(quotas=ROOMY, series_catch_up="1 day")
    add(house, rule="FREQ=HOURLY;INTERVAL=8", missed=missed, start="2100-01-01T11:30")
    book(house)
    assert book(house, later=40 * DAY) == number + 35 * 3
    late = [m for m in booked(house) if m.created_at == m.send_at]
    assert len(late) == number


def test_each_recipient_has_its_own_zone_spread_and_data(build: Build) -> None:
    house = build(
        quotas=ROOMY, series_recipients={"members": NAMED},
        channels={"memory": {"transport": "memory", "templates": {"hi": HI}}},
    )  # fmt: skip
    MEMBERS[:] = [
        ("ada", "Asia/Tokyo", {"who": "Ada"}),
        ("bob", "America/New_York", {"who": "Bob"}),
    ]
    add(house, zone="local", recipients="members", template="hi", body=None, data={"of": "us"},
        spread="30m")  # fmt: skip
    assert book(house) == 59
    by_name = {name: [m for m in booked(house) if m.recipient == name] for name in ("ada", "bob")}
    assert [by_name[name][0].body["text"] for name in by_name] == ["Ada us", "Bob us"]
    for messages in by_name.values():
        assert {(wish or "")[11:13] for wish in walls(messages)} == {"09"}
        assert len({(wish or "")[11:16] for wish in walls(messages)}) == 1
    assert by_name["ada"][0].send_at.hour == 0
    MEMBERS[:] = [("cyd", "Asia/Tokyo", {"who": "Cyd"}), *MEMBERS[1:]]
    assert book(house, later=HOUR) == 0
    assert book(house, later=DAY) == 31, "who is new gets all that is to come"


@on_sqlite
def test_a_named_list_is_booked_no_further_than_cancelled_messages_are_known(build: Build) -> None:
    house = build(quotas=ROOMY, series_recipients={"members": NAMED}, retention="10 days")
    MEMBERS[:] = ["ada"]
    add(house, recipients="members")
    assert book(house) == 10
    house.dispatcher.cancel(booked(house)[0].id)
    assert [book(house, later=DAY) for _ in range(3)] == [1, 1, 1]


@on_sqlite
def test_a_named_list_is_read_before_its_times_are_due(build: Build) -> None:
    house = build(quotas=ROOMY, series_recipients={"members": NAMED}, book_ahead="12 hours")
    MEMBERS[:] = ["ada"]
    add(house, recipients="members")
    assert sum(book(house, later=6 * HOUR) for _ in range(8)) == 2
    assert all(message.created_at < message.send_at for message in booked(house))


@on_sqlite
def test_what_is_no_recipient_keeps_no_other_one_waiting(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    house = build(quotas=ROOMY, series_recipients={"members": NAMED})
    junk: list[Any] = [None, 5, (), (5,), "", "a\ud800", b"ada", ("ada", "Mars/X"), ("ada", ["x"]),
            ("ada", None, 7), ("ada", None, {}, 1)]  # fmt: skip
    MEMBERS[:] = ["eve", *junk, "bob"]
    add(house, zone="local", recipients="members")
    assert book(house) == 60
    assert {message.recipient for message in booked(house)} == {"bob", "eve"}
    assert f"{len(junk)} entries of members are left out" in caplog.text
    assert book(house, later=5 * MINUTE) == 0


@pytest.mark.parametrize(
    ("conflict", "number", "skipped"), [("shift", 35, 0), ("skip", 34, 1), ("refuse", 0, 0)]
)
def test_conflicts(build: Build, conflict: str, number: int, skipped: int) -> None:
    house = build(quotas="1/hour")
    house.submit(recipient="ada", send_at=FAR.replace(hour=9) + 3 * DAY)
    if conflict == "refuse":
        with pytest.raises(QuotaExceeded):
            add(house, conflict=conflict)
        assert [*house.parts.series_list.all()] == []
        return
    add(house, conflict=conflict, window="2h")
    assert book(house) == number
    left = house.parts.series_list.get("daily").skipped
    assert [(one.nominal, one.reason) for one in left] == [
        ("2100-01-04T09:00", "QuotaExceeded 1/hour")
    ] * skipped


@on_sqlite
def test_a_pass_takes_a_number_of_series(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    house = build(quotas=ROOMY)
    for number in range(5):
        add(house, f"s{number}", recipient=f"r{number}")
    monkeypatch.setattr("dispatcher.submission.series._AT_ONCE", 2)
    assert [book(house) for _ in range(4)] == [70, 70, 35, 0]


@on_sqlite
@pytest.mark.parametrize("error", [GivenUp(), DuplicateUnderWay()])
def test_what_cannot_be_stored_now_is_booked_by_the_next_pass(
    build: Build, monkeypatch: pytest.MonkeyPatch, error: DispatcherError
) -> None:
    house = build(quotas=ROOMY)
    for name in ("daily", "other"):
        add(house, name)
    submit_many = house.parts.submitter.submit_many

    def refuse_one(drafts: list[Any], **more: Any) -> list[Any]:
        monkeypatch.undo()
        return [Rejection(0, drafts[0], error), *submit_many(drafts[1:], **more)]

    monkeypatch.setattr(house.parts.submitter, "submit_many", refuse_one)
    assert [book(house), book(house, later=5 * MINUTE)] == [69, 1]


@on_sqlite
def test_what_may_be_deleted_with_its_key_is_not_booked_again(build: Build) -> None:
    house = build(quotas=ROOMY, retention=3 * HOUR)
    add(house, rule="FREQ=HOURLY", missed="all")
    book(house, later=5 * HOUR + MINUTE)
    first = min(str(message.idempotency_key) for message in booked(house))
    assert first.endswith(f"{house.clock.now() - 2 * HOUR:%dT%H:00Z}")


@on_sqlite
def test_what_another_pass_has_booked_is_not_skipped(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is late by now is other than it was then."""
    house = build(quotas=ROOMY)
    add(house)
    with dying("series.after_batch"):
        book(house)
    monkeypatch.setattr(house.parts.messages, "with_keys", lambda _: {})
    book(house, later=2 * DAY)
    assert house.parts.series_list.get("daily").skipped == ()


@on_sqlite
def test_a_series_tells_the_last_of_what_it_skipped(build: Build) -> None:
    house = build(quotas="1/hour")
    for day in range(1, 26):
        house.submit(send_at=FAR.replace(hour=9) + day * DAY, recipient="ada")
    add(house)
    assert book(house) == 10
    skipped = [one.nominal for one in house.parts.series_list.get("daily").skipped]
    assert skipped == [f"2100-01-{day:02}T09:00" for day in range(7, 27)]


def test_none_of_many_at_one_minute_is_lost(build: Build) -> None:
    """37 at 08:05 where three fit a minute: all have places, one minute after another."""
    house = build(
        quotas=ROOMY, book_ahead="1 day",
        channels={"memory": {"transport": "memory", "quotas": "3/minute"}},
    )  # fmt: skip
    names = [f"r{number}" for number in range(37)]
    add(house, rule="5 8 * * *", recipients=names, conflict="shift", window="1h")
    assert book(house) == 37
    minutes = Counter((m.send_at - FAR) // MINUTE for m in booked(house))
    assert (sum(minutes.values()), max(minutes.values())) == (37, 3)


def test_an_erased_recipient_leaves_every_series(build: Build) -> None:
    house = build(quotas=ROOMY)
    add(house, "both", recipients=["ada", "bob"])
    add(house, "alone")
    book(house)
    house.dispatcher.erase("ada")
    assert [series.name for series in house.parts.series_list.all()] == ["both"]
    assert {message.recipient for message in booked(house, "both")} == {"bob"}
    book(house, later=2 * DAY)
    assert {message.recipient for message in booked(house, "both")} == {"bob"}


def test_a_pass_that_has_read_an_erased_recipient_stores_nothing_of_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it write the recipient back, or book the others twice."""
    house = build(quotas=ROOMY)
    add(house, "both", recipients=["ada", "bob"])
    add(house, "going")
    with dying("series.after_batch"):
        book(house)
    with dying("series.after_removal"):
        house.parts.series_list.remove("going")
    once_taken(house, monkeypatch, lambda: house.dispatcher.erase("ada"))
    book(house, later=5 * MINUTE)
    book(house, later=5 * MINUTE)
    stored = [str(row.definition) for row in house.parts.series_rows.all(size=10)]
    assert "ada" not in str(stored)
    assert [*house.dispatcher.select(recipient="ada")] == []
    times = Counter(message.send_at for message in booked(house, "both"))
    assert (len(times), set(times.values())) == (35, {1})


def test_no_other_pass_takes_a_series_that_takes_long(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each worker would book the same long list, one after another."""
    house = build(quotas=ROOMY)
    add(house, recipients=[f"r{number}" for number in range(100)])
    rows, known, taken = house.parts.series_rows, house.parts.messages.with_keys, list[Any]()

    def slow(keys: Any) -> Any:
        taken.extend(rows.take_due(house.clock.now(), lease=DAY, limit=1))
        house.moved.advance(20 * SECOND)
        return known(keys)

    monkeypatch.setattr(house.parts.messages, "with_keys", slow)
    assert book(house) == 3_500
    assert taken == []


def test_a_call_whose_answer_was_lost_has_done_it_once(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement runs again then; a removal that did not see its end would leave the pause."""
    house = build(quotas=ROOMY)
    run = Database.run

    def twice(self: Database, work: Any, **more: Any) -> Any:
        run(self, work, **more)
        return run(self, work, **more)

    monkeypatch.setattr(Database, "run", twice)
    first = add(house)
    changed = house.parts.series_list.change("daily", {"campaign": "x"}, None)
    assert changed == first.model_copy(update={"campaign": "x"})
    house.parts.series_list.pause("daily")
    assert house.parts.series_list.remove("daily") == 0
    assert house.dispatcher.pauses() == ()


@on_sqlite
def test_a_removal_that_a_pass_has_ended_is_no_error(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(quotas=ROOMY)
    add(house)
    book(house)
    rows, write = house.parts.series_rows, house.parts.series_rows._write

    def write_before_a_pass(changed: Any) -> None:
        monkeypatch.undo()
        write(changed)
        book(house)

    monkeypatch.setattr(rows, "_write", write_before_a_pass)
    assert house.parts.series_list.remove("daily") == 0
    assert (booked(house), [*house.parts.series_list.all()]) == ([], [])


@on_sqlite
def test_no_event_has_the_name_of_a_series(build: Build) -> None:
    house = build(quotas=ROOMY)
    add(house)
    for name in ("series:daily", "series:new"):
        with pytest.raises(InvalidDraft, match="events of series"):
            house.dispatcher.events.set(name, FAR + DAY)
        with pytest.raises(InvalidDraft, match="events of series"):
            house.submit(recipient="ada", send_at=None, event=name, event_at=FAR + DAY)
    add(house, "new")


@pytest.mark.parametrize(
    ("fields", "field", "match"),
    [
        ({"rule": "FREQ=DAILY;BYMONTHDAY=30;BYMONTH=2"}, "rule", "never fires"),
        ({"rule": "FREQ=DAILY;UNTIL=20500101T000000"}, "rule", "never fires"),
        ({"rule": "FREQ=MINUTELY"}, "rule", "denser than the quota 5/hour"),
        ({"rule": "FREQ=SECONDLY;INTERVAL=59"}, "rule", "more than 1440 times a day"),
        ({"quiet_hours": "21:00-10:00"}, "rule", "quiet hours 21:00-10:00 each time"),
        ({"zone": "Nowhere"}, "zone", "no zone"),
        ({"conflict": "perhaps"}, "conflict", "not an accepted value"),
        ({"window": "1 fortnight"}, "window", "cannot read"),
        ({"spread": timedelta(0)}, "spread", "out of range"),
        ({"recipient": None}, "recipients", "is missing"),
        ({"recipients": "nobody"}, "recipients", "no 'nobody'"),
        ({"recipients": []}, "recipients", "too few"),
        ({"channel": "pigeon"}, "channel", "no channel"),
        ({"body": None}, "body", "neither"),
        ({"start": "soon"}, "start", "time"),
        ({"colour": "red"}, "colour", "no such"),
        ({"start": "0001-01-01T00:00+05:00"}, "start", "0001-01-01"),
        ({"count": 0}, "count", "1 to 10000"),
        ({"until": "9999-12-31T23:59-05:00"}, "until", "9999-12-31"),
        ({"recipients": "members", "channel": "pigeon"}, "channel", "no channel"),
        ({"recipients": "members", "body": {"x": object()}}, "body.x", "an object"),
        ({"recipients": "members", "body": None}, "body", "nothing"),
    ],
)
def test_what_would_never_be_booked_is_refused(
    build: Build, fields: dict[str, Any], field: str, match: str
) -> None:
    house = build(quotas="5/hour", series_recipients={"members": NAMED})
    if "recipients" in fields:
        fields = {"recipient": None} | fields
    with pytest.raises(InvalidValue, match=match) as refused:
        add(house, **fields)
    assert refused.value.field == field
    assert [*house.parts.series_list.all()] == []


@on_sqlite
def test_no_log_tells_what_a_list_of_recipients_raises(
    build: Build, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be an address; the others are booked."""
    lists = {"members": "tests.submission.test_series:members"}
    house = build(quotas=ROOMY, series_recipients=lists)
    add(house, recipients="members")
    add(house, "other")

    def raising() -> None:
        raise ValueError("ada@example.org")

    monkeypatch.setattr("dispatcher.submission.series.load_named", lambda *_: raising)
    assert book(house) == 35
    assert "series:daily was not booked" in caplog.text
    assert "ada@example.org" not in caplog.text
