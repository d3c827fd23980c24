"""Reminders stand at their offset from their event, wherever that is moved by whomever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, update

from dispatcher import (
    Dispatcher,
    DispatcherError,
    Event,
    IdempotencyConflict,
    InvalidDraft,
    Message,
    QuotaExceeded,
    Rejection,
    Status,
    StoreUnavailable,
)
from dispatcher.times.offset import Offset
from dispatcher.times.send_time import to_ms
from tests.submission.test_crashes_submitting import ledger_house, wish
from tests.support.callers import calling
from tests.support.crashes import CHANNEL, How, die, each_how, reconcile
from tests.support.doubles import once
from tests.support.house import (
    FAR,
    House,
    draft,
    hour_ago,
    house_on,
    pending_entries,
    promised,
    windows_of,
)  # fmt: skip
from tests.support.house_fixtures import Build, on_postgresql
from tests.support.model import is_broken
from tests.support.proxy import FarDatabase
from tests.support.servers import RedisServer

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BERLIN, EVENT = "Europe/Berlin", "appointment:17"
AT = FAR + 40 * DAY


def remind(house: House, recipient: str = "ada", **asked: Any) -> Message:
    asked = {"send_at": None, "event": EVENT, "offset": -HOUR} | asked
    return house.submit(recipient, **asked)


def stand_right(house: House) -> None:
    """Each scheduled reminder stands at its offset; the windows hold that and nothing else."""
    event = house.dispatcher.events.get(EVENT)
    for message in house.dispatcher.select(status="scheduled", event=EVENT):
        offset = Offset.parse(message.wish)
        zone = ZoneInfo(event.zone or house.settings.zone)
        assert message.send_at == offset.from_event(event.at, zone), "a reminder at an old time"
    assert windows_of(house) == promised(house)
    assert house.dispatcher.verify_windows().equal


# Offsets.


@given(
    at=st.integers(1_420_000_000, 2_240_000_000),
    days=st.integers(-400, 400),
    zone=st.sampled_from(
        [BERLIN, "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca"]
    ),
)
def test_a_day_keeps_the_wall_time_and_24_hours_do_not(at: int, days: int, zone: str) -> None:
    """Asked of every second around: the first that shows the wall time, or by the gap's length."""
    rules = ZoneInfo(zone)
    instant = datetime.fromtimestamp(at, UTC)
    wall = instant.astimezone(rules).replace(tzinfo=None, fold=0) + timedelta(days=days)
    got = Offset.parse(f"{days} days").from_event(instant, rules)
    shown = got.astimezone(rules).replace(tzinfo=None, fold=0)
    if shown == wall:
        earlier = [got - step for step in (HOUR / 2, HOUR, 2 * HOUR, DAY)]
        assert all(one.astimezone(rules).replace(tzinfo=None, fold=0) != wall for one in earlier)
    else:  # skipped: as far behind the gap as the clocks would have been before it
        before = (got - DAY).astimezone(rules).utcoffset()
        assert before is not None
        assert got == (wall - before).replace(tzinfo=UTC)
        assert shown > wall
    assert Offset.parse(f"{days * 24} hours").from_event(instant, rules) == (
        instant + timedelta(days=days)
    )


def test_offsets_have_one_text_each() -> None:
    cases: dict[Any, str | None] = {
        None: "0 hours", "0 days": "0 days", "+1 hour": "1 hour", timedelta(days=-1): "-24 hours",
        "-24 hours": "-24 hours", "-90 minutes": "-90 minutes", -1.5 * HOUR: "-90 minutes",
        "-1 day": "-1 day", "2 weeks": "14 days", "-1 week": "-7 days", "1 month": "1 month",
        "-1 year": "-12 months", " 3 days ": "3 days", "-1500 milliseconds": "-1500 milliseconds",
        timedelta(microseconds=-1500): "-1 millisecond", "-3600s": None, "1d": None,
    }  # fmt: skip
    for given_one, text in cases.items():
        if text is None:
            with pytest.raises(InvalidDraft, match="offset: cannot read"):
                Offset.parse(given_one)
            continue
        offset = Offset.parse(given_one)
        assert str(offset) == ("0 hours" if not any(offset) else text), given_one
        assert Offset.parse(str(offset)) == offset
    months = {"2027-03-31": "2027-02-28", "2028-03-31": "2028-02-29", "2027-05-31": "2027-04-30"}
    for day, before in months.items():
        at = datetime.fromisoformat(f"{day}T09:00+00:00")
        got = Offset.parse("-1 month").from_event(at, ZoneInfo("UTC"))
        assert got == datetime.fromisoformat(f"{before}T09:00+00:00")


# Submits.


@pytest.mark.every_database
def test_reminders_stand_at_their_offset_and_follow_their_event(house: House) -> None:
    first = remind(house, event_at=AT, offset="-24 hours", expire_after=2 * HOUR)
    assert (first.send_at, first.event, first.wish) == (AT - DAY, EVENT, "-24 hours")
    drafts = [draft(f"r{n}", send_at=None, event=EVENT, offset=n * HOUR) for n in range(3)]
    results = house.dispatcher.submit_many(drafts)
    assert [r.send_at for r in results if isinstance(r, Message)] == [
        AT, AT + HOUR, AT + 2 * HOUR
    ]  # fmt: skip
    own = remind(house, "own")
    house.dispatcher.reschedule(own.id, send_at=AT + 5 * DAY)
    event = house.dispatcher.events.move(EVENT, AT + 3 * DAY)
    assert event == house.dispatcher.events.get(EVENT)
    moved = house.again(first)
    assert (moved.send_at, moved.expires_at) == (AT + 2 * DAY, AT + 2 * DAY + 2 * HOUR)
    assert (moved.wish, moved.next_attempt_at) == ("-24 hours", moved.send_at)
    assert house.again(own).send_at == AT + 5 * DAY, "it has a time of its own"
    assert house.again(own).wish is None
    house.dispatcher.cancel(own.id)
    stand_right(house)
    assert house.dispatcher.events.cancel(EVENT).cancelled_at is not None
    assert house.dispatcher.counts(event=EVENT) == {"memory": {Status.CANCELLED: 5}}
    assert house.all_members() == {}, "their places are free at once"
    assert house.dispatcher.events.cancel(EVENT) == house.dispatcher.events.get(EVENT)


def test_a_calendar_offset_keeps_the_wall_time_through_a_clock_change(house: House) -> None:
    events = house.dispatcher.events
    events.set(EVENT, "2100-03-28T09:00", BERLIN)
    day, hours = remind(house, offset="-1 day"), remind(house, "ben", offset="-24 hours")
    assert day.send_at == datetime(2100, 3, 27, 8, tzinfo=UTC)
    assert hours.send_at == datetime(2100, 3, 27, 7, tzinfo=UTC)
    of_event = {"event_at": "2100-03-28T16:00", "zone": "Asia/Tokyo", "offset": "-1 day"}
    other = remind(house, "cyd", **of_event)
    assert other.send_at == day.send_at, "its zone is its own, that of the event stays"
    events.move(EVENT, "2100-06-02T09:00")
    assert house.again(day).send_at == house.again(hours).send_at
    assert house.again(day).send_at == datetime(2100, 6, 1, 7, tzinfo=UTC)
    assert events.get(EVENT).wish == "2100-06-02T09:00:00.000"


def test_what_is_wrong_is_refused_and_named(house: House) -> None:
    events = house.dispatcher.events
    events.set(EVENT, AT, BERLIN)
    assert events.set(EVENT, AT, BERLIN) == events.get(EVENT), "asked for again"
    events.set("past", FAR - DAY)
    events.set("gone", AT)
    events.cancel("gone")
    before = house.snapshot()
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: remind(house, event="unknown"), "event: there is no event"),
        (lambda: remind(house, event="gone"), "event: .*was cancelled"),
        (lambda: remind(house, event="e" * 129), "event: 129 characters"),
        (lambda: remind(house, event="past"), "offset: .*is past"),
        (lambda: remind(house, offset="-1 fortnight"), "offset: cannot read"),
        (lambda: remind(house, offset=5), "offset: an int"),
        (lambda: remind(house, offset="-99999999 months"), "offset: .*out of range"),
        (lambda: remind(house, offset="999 years"), "offset: .*too far ahead"),
        (lambda: remind(house, send_at=AT), "send_at: given together with event"),
        (lambda: remind(house, send_in=HOUR), "send_in: given together with event"),
        (lambda: remind(house, event_at=AT + HOUR), "event_at: the event is set to"),
        (lambda: remind(house, event_at="2100"), "event_at: cannot read"),
        (lambda: remind(house, expires_at=AT - 2 * HOUR), "expires_at: "),
        (lambda: remind(house, event=None, send_at=AT), "offset: given without event"),
        (lambda: house.submit(send_at=AT, event_at=AT), "event_at: given without event"),
        (lambda: events.set(EVENT, AT + HOUR, BERLIN), "at: the event is set to"),
        (lambda: events.set(EVENT, AT), "at: the event is set to .* in zone Europe/Berlin"),
        (lambda: events.set("past", AT), "at: the event is set to .* without a zone"),
        (lambda: events.set("gone", AT), "event: .*was cancelled"),
        (lambda: events.set("", AT), "event: "),
        (lambda: events.set("new", "2100-06-01T09:00"), "at: has neither"),
        (lambda: events.move("unknown", AT), "event: there is no event"),
        (lambda: events.move("gone", AT), "event: .*was cancelled"),
        (lambda: events.move(EVENT, AT, past="drop"), "past: "),  # type: ignore[arg-type]
        (lambda: events.cancel("unknown"), "event: there is no event"),
        (lambda: events.get("unknown"), "event: there is no event"),
    ]
    for call, text in refused:
        with pytest.raises(InvalidDraft, match=text):
            call()
    assert house.snapshot() == before
    [first, second] = house.dispatcher.submit_many([
        draft("r1", send_at=None, event="new", event_at=AT),
        draft("r2", send_at=None, event="new", event_at=AT + HOUR),
    ])  # fmt: skip
    assert isinstance(first, Message)
    assert isinstance(second, Rejection)
    assert "event_at" in str(second.error)


@pytest.mark.every_database
def test_a_repeat_after_a_move_is_the_same_draft(house: House) -> None:
    first = remind(house, event_at=AT, idempotency_key="k")
    house.dispatcher.events.move(EVENT, AT + DAY)
    assert remind(house, event_at=AT, idempotency_key="k").id == first.id
    with pytest.raises(IdempotencyConflict):
        remind(house, offset=-2 * HOUR, idempotency_key="k")
    house.dispatcher.events.cancel(EVENT)
    with pytest.raises(InvalidDraft, match="was cancelled"):
        remind(house, idempotency_key="k")


def test_a_repeat_takes_no_place_of_one_that_read_the_event_before_its_move(house: House) -> None:
    """The first has booked the old time under the key, and not stored it yet."""
    house.dispatcher.events.set(EVENT, AT)
    told: list[Message] = []

    def meet() -> None:
        change_token(house, at=AT + DAY)
        told.append(remind(house, idempotency_key="k"))

    house.between("own_transaction", "reservations", after={"reserve": once(meet)})
    assert remind(house, idempotency_key="k") == told[0]
    assert told[0].send_at == AT + DAY - HOUR
    stand_right(house)


@pytest.mark.every_database
def test_a_refused_submit_leaves_no_new_event(house: House) -> None:
    house.submit(send_at=AT - HOUR)
    with pytest.raises(QuotaExceeded):
        remind(house, event_at=AT)
    with pytest.raises(InvalidDraft, match="there is no event"):
        house.dispatcher.events.get(EVENT)
    remind(house, event_at=AT, on_conflict="shift")
    assert house.dispatcher.events.get(EVENT).at == AT


def change_token(house: House, token: str = "other", **values: Any) -> None:  # noqa: S107
    change = update(house.tables.events).values(token=token, **values)
    house.database.run(lambda connection: connection.execute(change))


@pytest.mark.every_database
@pytest.mark.parametrize("how", ["one", "many", "atomic", "session"])
def test_an_event_that_moves_under_a_submit_is_read_again(
    house: House, engine: Engine, how: str
) -> None:
    """Between the read of the event and the store of the message."""
    if how == "session" and not house.url.startswith("postgresql"):
        pytest.skip("on SQLite and MariaDB it cannot move before the caller's transaction ends")
    house.dispatcher.events.set(EVENT, AT)
    move = once(lambda: change_token(house, at=AT + DAY))
    part = "callers_transactions" if how == "session" else "own_transaction"
    name = "reserver" if how == "session" else "reservations"
    if how == "session":
        house.between("reserver", "windows", after={"book": move})
    else:
        house.between(part, name, after={"reserve": move})
    drafts = [draft(f"r{n}", send_at=None, event=EVENT, offset=n * HOUR) for n in range(3)]
    if how == "session":
        with calling(engine, "session") as caller:
            remind(house, session=caller, offset=None)
            caller.commit()
    elif how == "one":
        remind(house, offset=None)
    else:
        house.dispatcher.submit_many(drafts, atomic=how == "atomic")
    sent_at = sorted(message.send_at for message in house.dispatcher.select(event=EVENT))
    expected = [AT + DAY + n * HOUR for n in range(3)]
    assert sent_at == (expected if how in ("many", "atomic") else expected[:1])
    stand_right(house)


def test_an_event_that_never_rests_refuses_without_a_trace(house: House) -> None:
    house.dispatcher.events.set(EVENT, AT)
    tokens = iter(range(99))
    house.between(
        "own_transaction", "reservations",
        after={"reserve": lambda: change_token(house, str(next(tokens)))},
    )  # fmt: skip
    for atomic in (False, True):
        drafts = [draft(f"r{n}", send_at=None, event=EVENT) for n in range(2)]
        results = house.dispatcher.submit_many([*drafts, draft(f"own {atomic}")], atomic=atomic)
        refusals = [r.error for r in results if isinstance(r, Rejection)]
        assert [type(error) for error in refusals][:2] == [StoreUnavailable] * 2
        assert len(refusals) == (3 if atomic else 2)
    assert len(house.rows()) == 1
    assert windows_of(house) == promised(house)


@pytest.mark.every_database
def test_an_event_of_a_callers_transaction_is_rolled_back_with_it(
    house: House, engine: Engine
) -> None:
    with calling(engine, "session") as caller:
        remind(house, session=caller, event_at=AT)
        remind(house, "ben", session=caller, offset="1 day")
        caller.rollback()
    with pytest.raises(InvalidDraft):
        house.dispatcher.events.get(EVENT)
    with calling(engine, "session") as caller:
        remind(house, session=caller, event_at=AT)
        remind(house, "ben", session=caller, offset="1 day")
        caller.commit()
    assert house.dispatcher.count(event=EVENT) == 2
    stand_right(house)


# Moves.


@pytest.mark.every_database
def test_a_move_that_one_of_five_cannot_make_changes_nothing(house: House) -> None:
    house.dispatcher.events.set(EVENT, AT)
    for n in range(5):
        remind(house, f"r{n}", offset=n * HOUR)
    other = house.submit("r3", send_at=AT + DAY + 3 * HOUR)
    before = house.rows()
    with pytest.raises(QuotaExceeded) as refused:
        house.dispatcher.events.move(EVENT, AT + DAY)
    assert refused.value.conflicting == (other.id,)
    with pytest.raises(InvalidDraft, match=r"at: .*which is past; .*cancel or now"):
        house.dispatcher.events.move(EVENT, FAR - MINUTE)
    assert house.rows() == before
    assert windows_of(house) == promised(house)
    house.dispatcher.events.move(EVENT, AT + DAY, on_conflict="shift")
    assert house.dispatcher.list(event=EVENT, recipient="r3").messages[0].send_at == (
        other.send_at + MINUTE
    )  # fmt: skip


def test_reminders_of_one_person_move_into_each_others_places(build: Build) -> None:
    """Judged one by one, each would be refused for the old time of the next: P1."""
    house = build(quotas=["1/minute", "3/day"])
    house.dispatcher.events.set(EVENT, AT)
    for hours in (0, 1, 2):
        remind(house, offset=timedelta(hours=-hours))
    for step in (HOUR, -2 * HOUR, MINUTE / 2, 30 * DAY):
        event = house.dispatcher.events.get(EVENT)
        house.dispatcher.events.move(EVENT, event.at + step)
        stand_right(house)


def test_a_move_is_made_exactly_where_all_new_times_fit(build: Build) -> None:
    """Asked of the set that there would be, by the quotas alone; in one window and in several."""
    quotas, tenant = [(1, MINUTE), (4, HOUR)], (5, HOUR)
    house = build(quotas=["1/minute", "4/hour"], scopes={"tenant": {"quotas": "5/hour"}})
    rng, answers = Random(38), list[bool]()  # noqa: S311 - a fixed seed
    for turn in range(60):
        name, scopes = f"e{turn}", {"tenant": f"t{turn}"}
        house.dispatcher.events.set(name, AT)
        for kind in ("own", "other"):
            for n in range(rng.randrange(2, 9)):
                at = AT + rng.randrange(20) * 5 * MINUTE
                wanted: dict[str, Any] = {"send_at": at}
                if kind == "own":
                    wanted = {"send_at": None, "event": name, "offset": at - AT}
                person = f"{turn} {n % 2}"
                draft_one = draft(person, scopes=scopes, **wanted)
                house.dispatcher.submit_many([draft_one])
        step = rng.randrange(-20, 20) * 5 * MINUTE
        by_person: dict[str, list[int]] = {}
        for message in house.dispatcher.select(scopes=scopes):
            at_ms = to_ms(message.send_at + (step if message.event else 0 * MINUTE))
            for window in ("tenant", message.recipient):
                by_person.setdefault(window, []).append(at_ms)
        fits = not any(
            is_broken(times, (count, length // timedelta(milliseconds=1)))
            for window, times in by_person.items()
            for count, length in ([tenant] if window == "tenant" else quotas)
        )
        try:
            house.dispatcher.events.move(name, AT + step)
            is_moved = True
        except QuotaExceeded:
            is_moved = False
        assert is_moved is fits, turn
        answers.append(fits)
        assert windows_of(house) == promised(house)
    assert 5 < sum(answers) < 55


def test_a_reminder_whose_new_time_is_past_is_as_asked(build: Build) -> None:
    house = build(clock=hour_ago())
    events, now = house.dispatcher.events, house.clock.now()
    for past in ("cancel", "now"):
        events.set(past, now + 9 * HOUR)
        far, near = (
            remind(house, f"{past} {n}", event=past, offset=-n * HOUR) for n in (1, 5)
        )  # fmt: skip
        with pytest.raises(InvalidDraft, match="is past"):
            events.move(past, now + 3 * HOUR)
        events.move(past, now + 3 * HOUR, past=past)
        assert house.again(far).send_at == now + 2 * HOUR
        told = house.again(near)
        if past == "cancel":
            assert (told.status, told.last_error) == (
                Status.CANCELLED, "its event was moved so near that its time was past",
            )  # fmt: skip
        else:
            assert (told.status, told.send_at) == (Status.SCHEDULED, now)
    assert windows_of(house) == promised(house)


def test_what_is_being_sent_stays_as_it_is(build: Build) -> None:
    house = build(clock=hour_ago())
    house.dispatcher.events.set(EVENT, house.clock.now() + MINUTE)
    first, second = remind(house, offset=None), remind(house, "ben", offset=HOUR)
    house.deliver(first)
    sent = house.again(first)
    assert sent.status is Status.SENT
    house.dispatcher.events.move(EVENT, house.clock.now() + 9 * HOUR)
    assert house.again(first) == sent
    assert house.again(second).send_at == house.clock.now() + 10 * HOUR


@pytest.mark.every_database
@pytest.mark.parametrize("change", ["cancelled", "submitted", "rescheduled", "moved"])
def test_whatever_changes_a_message_of_an_event_waits_for_its_move(
    house: House, change: str
) -> None:
    house.dispatcher.events.set(EVENT, AT)
    message = remind(house)
    changes: dict[str, Callable[[], object]] = {
        "cancelled": lambda: house.dispatcher.cancel(message.id),
        "submitted": lambda: remind(house, "ben"),
        "rescheduled": lambda: house.dispatcher.reschedule(message.id, send_at=AT + 9 * DAY),
        "moved": lambda: house.dispatcher.events.move(EVENT, AT + 2 * DAY),
    }
    with ThreadPoolExecutor() as threads:
        begun: list[Future[object]] = []

        def begin() -> None:
            begun.append(threads.submit(changes[change]))
            assert not wait(begun, timeout=0.2).done

        house.between("moves", "windows", after={"move_many": once(begin)})
        assert house.dispatcher.events.move(EVENT, AT + DAY).at == AT + DAY
        begun[0].result()
    expected = {"cancelled": [], "submitted": [AT + DAY - HOUR] * 2,
                "rescheduled": [AT + 9 * DAY], "moved": [AT + 2 * DAY - HOUR]}  # fmt: skip
    scheduled = house.dispatcher.select(status="scheduled", event=EVENT)
    assert [row.send_at for row in scheduled] == expected[change]
    assert windows_of(house) == promised(house)


def test_a_move_waits_until_the_last_one_has_released_what_it_left(house: House) -> None:
    house.dispatcher.events.set(EVENT, AT)
    remind(house)
    left: list[Any] = []
    reserver = house.between("moves", "reserver", instead={"withdraw": left.append})
    house.dispatcher.events.move(EVENT, AT + HOUR)
    vars(house.parts.moves)["reserver"] = reserver
    release = once(lambda: reserver.withdraw(left.pop()))
    house.between("event_list", "clock", before={"sleep": release})
    house.dispatcher.events.move(EVENT, AT)
    stand_right(house)


@pytest.mark.every_database
def test_movers_beside_submitters_leave_no_reminder_at_an_old_time(build: Build) -> None:
    house = build(quotas=["100/minute"])
    house.dispatcher.events.set(EVENT, AT)
    for n in range(3):
        remind(house, f"r{n}", offset=timedelta(hours=-n))
    times = [AT + timedelta(hours=n) for n in range(64)]

    def mover(at: datetime) -> Callable[[], object]:
        return lambda: house.dispatcher.events.move(EVENT, at)

    def submitter(n: int) -> Callable[[], object]:
        def submit() -> None:
            keys = {"idempotency_key": f"s{n}"} if n % 2 else {}
            house.dispatcher.submit_many(
                [draft(f"s{n} {m}", send_at=None, event=EVENT, **keys) for m in range(n % 3 + 1)]
            )

        return submit

    movers = [mover(at) for at in times]
    calls = [call for n in range(16) for call in (*movers[4 * n : 4 * n + 4], submitter(n))]
    calls.append(lambda: house.dispatcher.cancel(next(house.dispatcher.select(event=EVENT)).id))
    answers = []
    with ThreadPoolExecutor(24) as threads:
        for answer in [threads.submit(call) for call in calls]:
            try:
                answers.append(answer.result())
            except DispatcherError as error:
                answers.append(error)
    moved = [answer for answer in answers if isinstance(answer, Event)]
    assert moved, answers[:3]
    assert house.dispatcher.events.get(EVENT) in moved
    assert house.dispatcher.count(event=EVENT) > 3
    reconcile(house)  # a slow mover restores its places, also where another one has moved on
    stand_right(house)


def moves(dispatcher: Dispatcher, by: timedelta) -> None:
    event = dispatcher.events.get(EVENT)
    dispatcher.events.move(EVENT, event.at + by)


def cancels(dispatcher: Dispatcher) -> None:
    dispatcher.events.cancel(EVENT)


@each_how
@pytest.mark.parametrize("point", ["event.after_booking", "event.after_rows",
                                   "reserve.between_shards@2"])  # fmt: skip
def test_a_move_that_dies_has_moved_all_or_none(
    build: Build, tmp_path: Path, how: How, point: str
) -> None:
    house = ledger_house(build, tmp_path)
    at = house.clock.now().replace(microsecond=0) + 9 * HOUR
    house.dispatcher.events.set(EVENT, at)
    for n in range(3):
        house.dispatcher.submit(**wish(
            n, send_in=None, event=EVENT, offset=n * HOUR, idempotency_key=None,
        ))  # fmt: skip
    reconcile(house)
    die(point, moves, house.settings, HOUR, how=how)
    moved = point == "event.after_rows"
    assert house.dispatcher.events.get(EVENT).at == (at + HOUR if moved else at)
    reconcile(house)
    stand_right(house)
    assert pending_entries(house) == []
    moves(house.dispatcher, HOUR)
    reconcile(house)
    stand_right(house)
    die("event.after_cancel", cancels, house.settings, how=how)
    reconcile(house)
    assert windows_of(house) == {}
    assert house.dispatcher.counts(event=EVENT) == {CHANNEL: {
        Status.CANCELLED: 3}}  # fmt: skip


@pytest.mark.every_database
def test_a_move_whose_commit_lost_its_reply_keeps_every_place(
    redis_server: RedisServer, far: FarDatabase
) -> None:
    with house_on(redis_server, far.direct, database_url=far.through, clock=hour_ago()) as house:
        at = house.clock.now().replace(microsecond=0) + 9 * HOUR
        house.dispatcher.events.set(EVENT, at)
        for n in range(3):
            remind(house, f"name {n}", offset=n * HOUR)
        far.proxy.drop_reply(b"COMMIT")
        house.dispatcher.events.move(EVENT, at + HOUR)
        assert far.proxy.dropped == 1
        stand_right(house)


@pytest.mark.every_database
@pytest.mark.parametrize("is_moved", [True, False])
def test_what_is_cancelled_gives_its_place_back_though_the_reply_was_lost(
    redis_server: RedisServer, far: FarDatabase, is_moved: bool
) -> None:
    with house_on(redis_server, far.direct, database_url=far.through, clock=hour_ago()) as house:
        at = house.clock.now().replace(microsecond=0) + 9 * HOUR
        house.dispatcher.events.set(EVENT, at)
        for n in range(3):
            remind(house, f"name {n}", offset=n * HOUR)
        far.proxy.drop_reply(b"COMMIT")
        if is_moved:
            house.dispatcher.events.move(EVENT, at - 10 * HOUR, past="cancel")
        else:
            house.dispatcher.events.cancel(EVENT)
        assert far.proxy.dropped == 1
        assert house.dispatcher.count(event=EVENT, status="cancelled") == (1 if is_moved else 3)
        assert windows_of(house) == promised(house)


@on_postgresql
def test_a_move_that_ran_twice_is_not_in_its_own_way(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would shift its reminders past the places that its first run took."""
    house = build(quotas=["1/day"])
    house.dispatcher.events.set(EVENT, AT)
    remind(house)
    change = house.parts.messages.change_locked

    def conflict(connection: Connection, *args: Any) -> Any:
        monkeypatch.undo()
        connection.exec_driver_sql("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        return change(connection, *args)

    monkeypatch.setattr(house.parts.messages, "change_locked", conflict)
    house.dispatcher.events.move(EVENT, AT + 9 * DAY, on_conflict="shift")
    stand_right(house)


@pytest.mark.every_database
def test_an_event_is_deleted_once_it_is_past_and_nothing_of_it_is_to_come(build: Build) -> None:
    house = build(clock=hour_ago())
    events, long_ago = house.dispatcher.events, house.clock.now() - 400 * DAY
    for name in ("past", "follows"):
        events.set(name, long_ago)
    events.set("new", house.clock.now())
    house.submit(send_at=None, event="follows", offset="500 days")
    house.parts.sweep.prune()
    assert events.get("follows").at == events.get("follows").at == long_ago
    assert events.get("new")
    with pytest.raises(InvalidDraft, match="there is no event"):
        events.get("past")


def test_events_can_be_awaited(house: House) -> None:
    async def calls() -> None:
        events = house.dispatcher.events
        made = await events.aset(EVENT, AT)
        assert await events.aget(EVENT) == made
        moved = await events.amove(EVENT, AT + HOUR)
        assert moved.at == AT + HOUR
        assert (await events.acancel(EVENT)).cancelled_at is not None

    asyncio.run(calls())
