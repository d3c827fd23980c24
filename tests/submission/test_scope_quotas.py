"""Single scopes have quotas of their own, from one submit to the next, in every process."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from threading import Barrier, Event
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import delete, update

from dispatcher import Message, QuotaExceeded, ReservationsUnavailable, StoreUnavailable
from dispatcher.scope import scope_named
from tests.support.house import FAR, House, draft, hour_ago, key_of, let_graces_pass, windows_of
from tests.support.house_fixtures import Build, on_postgresql
from tests.support.refusals import refuses

ACME = ("tenant", "acme")
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
KINDS: dict[str, Any] = {
    "quotas": "1000/hour",
    "scopes": {"tenant": {"quotas": "2/hour"}},
    "channels": {
        "memory": {"transport": "memory", "quotas": "900/hour", "recipient_quotas": "800/hour"}
    },
}


def submit(house: House, at: datetime = FAR + HOUR, **more: Any) -> Message:
    more.setdefault("scopes", {"tenant": "acme"})
    return house.submit(send_at=at, **more)


@pytest.mark.parametrize("shards", [1, 64])
def test_a_plan_is_upgraded_in_the_middle_of_the_day(build: Build, shards: int) -> None:
    """Submit, many, plan, next slot, timeline, refusal and move judge by it from then on."""
    house = build(**KINDS, shards=shards)
    dispatcher = house.dispatcher
    drafts = [draft(scopes={"tenant": "acme"}) for _ in range(9)]

    def accepted() -> int:
        return dispatcher.plan(drafts).accepted

    assert accepted() == 2
    for _ in range(2):
        submit(house)
    with pytest.raises(QuotaExceeded, match="2/hour") as refused:
        submit(house)
    assert refused.value.next_slot == FAR + 2 * HOUR
    upgraded = dispatcher.set_quotas(*ACME, "4/hour, 5/day in UTC")
    assert (upgraded.quotas, upgraded.own, upgraded.over) == (("4/hour", "5/day in UTC"), True, 0)
    assert dispatcher.quotas_of(*ACME) == upgraded
    assert not dispatcher.quotas_of("tenant", "other").own
    assert accepted() == 2
    timeline = dispatcher.timeline("acme", kind="tenant", start=FAR)
    assert [str(of.quota) for of in timeline.windows[0].quotas] == ["4/hour", "5/day in UTC"]
    moved = submit(house, FAR + 3 * HOUR)
    submit(house)
    assert dispatcher.reschedule(moved.id, send_at=FAR + HOUR).send_at == FAR + HOUR
    with pytest.raises(QuotaExceeded, match="4/hour"):
        submit(house)
    submit(house, FAR + 5 * HOUR)
    with pytest.raises(QuotaExceeded, match="5/day in UTC") as by_day:
        submit(house, FAR + 8 * HOUR)
    assert by_day.value.next_slot == FAR.replace(hour=0) + DAY
    submit(house, scopes={"tenant": "other"})
    assert dispatcher.verify_windows().equal
    back = dispatcher.unset_quotas(*ACME)
    assert (back.quotas, back.own, back.over) == (("2/hour",), False, 2)
    submit(house, FAR + 6 * HOUR - MINUTE)
    with pytest.raises(QuotaExceeded, match="2/hour"):
        submit(house, FAR + 5 * HOUR)
    rules = {(rule.kind, rule.quota) for rule in dispatcher.refusals().rules}
    assert rules == {("tenant", "2/hour"), ("tenant", "4/hour"), ("tenant", "5/day in UTC")}


@pytest.mark.parametrize(
    ("kind", "name", "further"),
    [
        ("tenant", "acme", {}),
        ("recipient", "ada", {}),
        ("recipient", "my own", {"scope": "my own"}),
        ("recipient.memory", "ada", {}),
        ("channel.memory", "memory", {}),
    ],
)
def test_every_kind_may_have_some(
    build: Build, kind: str, name: str, further: dict[str, Any]
) -> None:
    house = build(**KINDS)
    house.dispatcher.set_quotas(kind, name, ["1/hour"])
    submit(house, **further)
    with pytest.raises(QuotaExceeded, match="1/hour"):
        submit(house, **further)
    [listed] = house.dispatcher.scope_settings()
    assert (listed.kind, listed.name, listed.quotas) == (kind, name, ("1/hour",))
    assert house.dispatcher.scope_settings("plain") == ()
    house.dispatcher.unset_quotas(kind, name)
    assert house.dispatcher.scope_settings() == ()


def test_what_cannot_be_is_refused_with_its_field(build: Build) -> None:
    house = build(**KINDS)
    cases: list[tuple[Any, Any, Any, str]] = [
        ("quotas", "acme", "1/hour", "kind"),
        ("nobody", "acme", "1/hour", "kind"),
        ("", "acme", "1/hour", "kind"),
        (7, "acme", "1/hour", "kind"),
        ("tenant", "", "1/hour", "name"),
        ("tenant", "a" * 256, "1/hour", "name"),
        ("tenant", None, "1/hour", "name"),
        ("channel.memory", "sms", "1/hour", "name"),
        ("tenant", "acme", "1/fortnight", "quotas"),
        ("tenant", "acme", ["1/hour", ""], "quotas"),
        ("tenant", "acme", [], "quotas"),
        ("tenant", "acme", "", "quotas"),
        ("tenant", "acme", "[", "quotas"),
        ("tenant", "acme", 5, "quotas"),
        ("tenant", "acme", [5], "quotas"),
        ("tenant", "acme", "1/60 day", "quotas"),
    ]
    for *given, field in cases:
        refuses(house.dispatcher.set_quotas, *given, field=field)
    assert house.dispatcher.scope_settings() == ()


def test_a_smaller_set_is_allowed_and_tells_what_is_over(build: Build) -> None:
    house = build(**KINDS | {"scopes": {"tenant": {"quotas": "100/hour"}}})
    for minutes in (0, 1, 2, 3, 90):
        submit(house, FAR + HOUR + minutes * MINUTE)
    assert house.dispatcher.set_quotas(*ACME, "2/hour").over == 2
    assert house.dispatcher.set_quotas(*ACME, "4/day in UTC, 3/hour").over == 1
    assert house.dispatcher.set_quotas(*ACME, "1/day in UTC").over == 4
    assert house.dispatcher.set_quotas(*ACME, "5/day in UTC").over == 0
    ramp = "1/day growing 2 daily to 9/day from 2099-12-31"
    assert house.dispatcher.set_quotas(*ACME, ramp).over == 3, "two on its second day"
    assert house.dispatcher.set_quotas(*ACME, "4/hour, 3 kept for priority >= 9").over == 0
    assert house.dispatcher.count() == 5, "they stay"


@on_postgresql
def test_two_processes_know_of_a_change_within_five_seconds(build: Build) -> None:
    """Each has its own snapshot: it is read again by its clock, and not before two seconds."""
    house, other = build(**KINDS), build(**KINDS)
    submit(house)
    submit(other)
    house.dispatcher.set_quotas(*ACME, "3/hour")
    submit(house)
    with pytest.raises(QuotaExceeded, match="2/hour"):
        submit(other)
    other.moved.advance(timedelta(seconds=2))
    with pytest.raises(QuotaExceeded, match="3/hour"):
        submit(other)
    other.dispatcher.unset_quotas(*ACME)
    house.moved.advance(timedelta(seconds=5))
    with pytest.raises(QuotaExceeded, match="2/hour"):
        submit(house)


@on_postgresql
def test_what_a_process_could_not_see_come_it_sees_within_ten_minutes(build: Build) -> None:
    """A change that was committed minutes after its time, and a row that was deleted."""
    house, other = build(**KINDS), build(**KINDS)
    table = house.parts.database.tables.scope_settings
    house.dispatcher.set_quotas(*ACME, "1/hour")
    with pytest.raises(QuotaExceeded, match="1/hour"):
        [submit(other) for _ in range(2)]
    house.dispatcher.set_quotas(*ACME, "3/hour")
    late = house.database_time() - 15 * MINUTE
    house.parts.database.execute(update(table).values(changed_at=late))

    def goes_on() -> None:
        for _ in range(10):
            other.moved.advance(MINUTE)
            other.parts.rules.now()

    goes_on()
    with pytest.raises(QuotaExceeded, match="3/hour"):
        [submit(other) for _ in range(3)]
    house.parts.database.execute(delete(table))
    goes_on()
    with pytest.raises(QuotaExceeded, match="2/hour"):
        submit(other)


def test_without_the_database_the_last_ones_serve(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house, late = build(**KINDS), build(**KINDS)
    house.dispatcher.set_quotas(*ACME, "1/hour")
    submit(house)
    for made in (house, late):
        away = Mock(side_effect=StoreUnavailable("away"))
        monkeypatch.setattr(made.parts.rules, "_changed", away)
    house.moved.advance(MINUTE)
    slot: dict[str, Any] = {"scopes": {"tenant": "acme"}, "recipient": "ada"}
    assert house.dispatcher.next_slot(after=FAR + HOUR, **slot) == FAR + 2 * HOUR
    assert "as they were last read" in caplog.text
    with pytest.raises(StoreUnavailable):
        late.dispatcher.next_slot(after=FAR + HOUR, **slot)
    with pytest.raises(StoreUnavailable):
        submit(late)


@pytest.mark.parametrize("shards", [1, 64])
def test_long_quotas_of_a_scope_count_what_its_window_had_forgotten(
    build: Build, shards: int
) -> None:
    """Also after sweeps, and after Redis lost everything; windows of others keep no more."""
    house = build(**KINDS, clock=hour_ago(), shards=shards, retention="60 days")
    now = house.clock.now() + 2 * HOUR
    kept, others, *_ = [
        [submit(house, now, scopes={"tenant": tenant}) for _ in range(2)]
        for tenant in ("acme", "other")
    ]
    house.change([*kept, *others], send_at=now - 10 * DAY)
    house.redis.flushall()
    house.reconciled()
    acme, other = (scope_named("tenant", name) for name in ("acme", "other"))

    def booked() -> list[int]:
        windows = windows_of(house)
        return [len(windows.get(key_of(house, scope), ())) for scope in (acme, other)]

    assert booked() == [0, 0]
    house.dispatcher.set_quotas(*ACME, "3/30 day")
    filled: list[list[int]] = []
    house.between("reconciler", "upkeep", before={"tidy": lambda: filled.append(booked())})
    for _ in range(2):
        let_graces_pass(house)
        for _ in range(3):
            house.reconciled()
        assert booked() == [2, 0]
        assert house.dispatcher.verify_windows().equal
        house.redis.flushall()
        house.reconciled()
    assert filled == [[2, 0]] * len(filled), "a rebuild brings back what counts"
    submit(house, now)
    with pytest.raises(QuotaExceeded, match="3/30 day") as refused:
        submit(house, now + 2 * DAY)
    assert refused.value.next_slot == now + 20 * DAY
    submit(house, now, scopes={"tenant": "other"})
    epoch = house.redis.hgetall(house.keys(acme.home).epoch)
    assert epoch[b"reach:tenant"] == b"%d" % (HOUR / timedelta(milliseconds=1))
    house.dispatcher.unset_quotas(*ACME)
    submit(house, now + 2 * DAY)
    assert house.dispatcher.verify_windows().equal


def test_shorter_quotas_of_a_scope_forget_nothing_that_the_longer_ones_count(build: Build) -> None:
    """Whoever sets them dies before they are in force, and others judge by the longer ones."""
    house = build(**KINDS, clock=hour_ago(), retention="60 days")
    now = house.clock.now() + 2 * HOUR
    house.change([submit(house, now) for _ in range(2)], send_at=now - 10 * DAY)
    house.dispatcher.set_quotas(*ACME, "2/30 day")
    house.redis.flushall()
    house.reconciled()
    house.between(
        "quota_list", "scope_settings", before={"put": Mock(side_effect=KeyboardInterrupt)}
    )
    with pytest.raises(KeyboardInterrupt):
        house.dispatcher.set_quotas(*ACME, "2/2 day")
    let_graces_pass(house)
    for _ in range(3):
        house.reconciled()
    with pytest.raises(QuotaExceeded, match="2/30 day"):
        submit(house, now + DAY)


@pytest.mark.parametrize("step", ["wipe", "restore", "open"])
def test_a_rebuild_under_way_misses_no_new_long_quotas(build: Build, step: str) -> None:
    """They are set before the rebuild wipes, before it fills, and before it opens the windows."""
    house = build(**KINDS, clock=hour_ago(), retention="60 days")
    now = house.clock.now() + 2 * HOUR
    messages = [submit(house, now) for _ in range(2)]
    house.change(messages, send_at=now - 10 * DAY)
    submit(house, now, scopes={"tenant": "other"})
    house.redis.flushall()
    other = build(**KINDS, clock=hour_ago(), opened=False, retention="60 days")
    other.parts.rules.now()

    def change() -> None:
        with suppress(ReservationsUnavailable):  # it cannot tell what is over
            house.dispatcher.set_quotas(*ACME, "3/30 day")

    other.between("reconciler", "upkeep", before={step: change})
    other.parts.reconciler.reconcile()
    submit(house, now)
    with pytest.raises(QuotaExceeded, match="3/30 day"):
        submit(house, now + HOUR)


def answer(house: House, at: datetime) -> tuple[str, datetime]:
    try:
        submit(house, at)
    except QuotaExceeded as refused:
        return refused.quota, refused.next_slot
    return "booked", at


def test_a_rebuild_before_the_commit_of_long_quotas_takes_nothing_from_them(build: Build) -> None:
    """It wipes what they brought back, and knows nothing of them yet."""
    house = build(**KINDS, clock=hour_ago(), retention="60 days")
    now = house.clock.now() + 2 * HOUR
    house.change([submit(house, now) for _ in range(2)], send_at=now - 10 * DAY)
    house.redis.flushall()
    other = build(**KINDS, clock=hour_ago(), opened=False, retention="60 days")
    rebuild = other.parts.reconciler.reconcile
    house.between("quota_list", "scope_settings", before={"put": rebuild})
    house.dispatcher.set_quotas(*ACME, "3/30 day")
    submit(house, now)
    with pytest.raises(QuotaExceeded, match="3/30 day"):
        submit(house, now + HOUR)


OLD, NEW = "1/minute", "30/day in UTC"


@on_postgresql
def test_64_submitters_are_judged_by_the_old_or_the_new_set_and_then_by_the_new_one(
    build: Build,
) -> None:
    """Four processes; both sets refuse a time which a mixture of them would let through.

    Each of the sets is sharp in one of its quotas and wide in the other one, so that whoever took
    one quota of each would book, or be told another slot.
    """
    old, new = f"{OLD}, 900/day in UTC", f"900/minute, {NEW}"
    settings = KINDS | {"scopes": {"tenant": {"quotas": old}}, "quotas": "9000/hour"}
    settings["channels"] = {"memory": {"transport": "memory"}}
    houses = [build(**settings) for _ in range(4)]
    at = FAR + HOUR
    for minutes in range(30):
        submit(houses[0], at + minutes * MINUTE)
    began, over = Barrier(65), Event()

    def hammer(number: int) -> set[tuple[str, datetime]]:
        answers = set()
        began.wait()
        while not over.is_set():
            answers.add(answer(houses[number % 4], at))
        return answers

    def change(turn: int) -> None:
        dispatcher = houses[turn % 4].dispatcher
        if turn % 2:
            dispatcher.unset_quotas(*ACME)
        else:
            dispatcher.set_quotas(*ACME, new)
        for house in houses:
            house.moved.advance(timedelta(seconds=1))

    with ThreadPoolExecutor(64) as threads:
        hammering = [threads.submit(hammer, number) for number in range(64)]
        began.wait()
        for turn in range(12):
            change(turn)
        over.set()
        answers = set().union(*(hammered.result() for hammered in hammering))
    assert answers == {(OLD, at + 30 * MINUTE), (NEW, FAR.replace(hour=0) + DAY)}

    houses[0].dispatcher.set_quotas(*ACME, f"900/minute, {NEW.replace('30', '40')}")
    for house in houses:
        house.moved.advance(timedelta(seconds=5))
    with ThreadPoolExecutor(64) as threads:
        last = Counter(threads.map(partial(answer, at=at), houses * 16))
    assert last == {("booked", at): 10, ("40/day in UTC", FAR.replace(hour=0) + DAY): 54}


def test_an_erased_recipient_has_no_quotas_of_its_own(build: Build) -> None:
    house = build(**KINDS, retention="60 days")
    house.dispatcher.set_quotas("recipient", "lovelace", "3/30 day")
    assert any("lovelace" in str(held) for _, held in house.everything())
    house.dispatcher.erase("lovelace")
    assert not any("lovelace" in str(held) for _, held in house.everything())
    assert house.dispatcher.scope_settings() == ()


def test_a_recipient_gets_as_many_as_its_own_quotas_allow_also_at_hand_over(build: Build) -> None:
    """Rolling quotas of the own scope hold for sends, too: those of its own, not of its kind."""
    house = build(clock=hour_ago(), quotas="2/hour")
    house.dispatcher.set_quotas("recipient", "ada", "4/hour")
    messages = [house.submit("ada") for _ in range(4)]
    house.deliver(*messages)
    assert [house.again(message).status for message in messages] == ["sent"] * 4
    house.change(messages, send_at=house.database_time() - 3 * HOUR)
    house.redis.flushall()
    house.reconciled()
    fifth = house.submit("ada")
    house.deliver(fifth)
    assert house.again(fifth).status == "scheduled", "four sends were less than an hour ago"
    house.dispatcher.set_quotas("recipient", "ada", "9/day in UTC")
    house.moved.advance(timedelta(seconds=5))
    house.change([fifth], next_attempt_at=house.database_time())
    house.deliver(fifth)
    assert house.again(fifth).status == "sent", "calendar quotas hold for promised times alone"
