"""Random wishes around clock changes, on a real Redis, against a model that steps through time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.errors import SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import CalendarQuota, Quota
from dispatcher.redis.keys import shard_of
from dispatcher.reservation import BookingRequest, Slot
from dispatcher.reservation.terms import AnyQuota
from dispatcher.scope import OWN_SCOPE, Scope, counted, own_scope
from dispatcher.times.periods import UNIT_MS, CalendarUnit
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.calendar_model import CHANGES, MINUTE_MS, Item, items, zoned
from tests.support.limits import little_at_once
from tests.support.model import Ledger, Wish
from tests.support.reserving import (
    Reserving,
    cancel,
    move,
    reserve,
    reserving,
    stored,
    win,
    window,
)
from tests.support.servers import RedisServer
from tests.support.soak import examples

CHANNEL = "sms"
KINDS = ("recipient.sms", "channel.sms", "tenant")
SCALES_MS: dict[CalendarUnit, int] = {
    "minute": UNIT_MS["minute"],
    "hour": UNIT_MS["hour"],
    "day": UNIT_MS["day"],
    "week": UNIT_MS["week"],
    "month": 30 * UNIT_MS["day"],
}
UNITS: list[CalendarUnit] = list(SCALES_MS)
SHARDS = 4


class Step(NamedTuple):
    """One call: what is asked for, by whom, and when."""

    verb: str
    offset: int
    room: int
    who: int


@dataclass(frozen=True)
class Scene:
    """Where and when a story plays, by what rules."""

    zone: str
    other_zone: str
    base: int
    quotas: Mapping[str, Sequence[AnyQuota]]
    items: tuple[Item, ...]
    steps: Sequence[Step]


class Story:
    """Plays a scene's steps on real windows and in the model."""

    numbers = itertools.count()

    def __init__(self, url: str, scene: Scene, wishes: Sequence[Wish]) -> None:
        self.scene = scene
        self.wishes = wishes
        self.ledger = Ledger(scene.quotas)
        self.of: dict[UUID, Wish] = {}
        self.unconfirmed: set[UUID] = set()
        self.tails: dict[UUID, str] = {}
        further = {kind: each for kind, each in scene.quotas.items() if kind != OWN_SCOPE}
        self.real: Reserving = reserving(
            url,
            list(scene.quotas[OWN_SCOPE]),
            further=further,
            namespace=f"zoned-{next(self.numbers)}",
            shards=SHARDS,
        )
        self.real.open()

    def play(self) -> None:
        with self.real:
            for step in self.scene.steps:
                getattr(self, step.verb)(step)
                self.check_windows()
            names = self.real.client.keys(f"{{{self.real.namespace}:*")
            self.real.client.unlink(*names)

    def wish(self, step: Step) -> Wish:
        return self.wishes[step.who % len(self.wishes)]

    def asked(self, step: Step) -> int:
        return self.scene.base + step.offset

    def book(self, step: Step, room: int = 0) -> None:
        wish, asked = self.wish(step), self.asked(step)
        slot = self.ledger.slot(wish, asked)
        latest = from_ms(asked + room) if room else None
        try:
            found = reserve(
                self.real.windows, new_id(), terms=wish.terms, send_at=from_ms(asked), latest=latest
            )
        except SlotRefused as refused:
            assert slot > asked + room
            self.ledger.check(wish, asked, refused)
        else:
            assert to_ms(found.send_at) == slot
            assert slot <= asked + room
            self.note(found.message_id, wish, slot)

    def note(self, message_id: UUID, wish: Wish, slot: int) -> None:
        self.ledger.book(wish.scopes, message_id, slot)
        self.of[message_id] = wish
        self.unconfirmed.add(message_id)

    def again(self, step: Step) -> None:
        """Book one that is booked: it keeps its place, and waits for the store once more."""
        if (message_id := self.booked(step)) is None or message_id in self.tails:
            return  # the submit of what was moved ended long ago
        terms, scope = self.of[message_id].terms, self.of[message_id].scopes[0]
        found = reserve(
            self.real.windows, message_id, terms=terms, send_at=from_ms(self.asked(step))
        )
        assert to_ms(found.send_at) == self.ledger.places[scope][message_id]
        self.unconfirmed.add(message_id)

    def confirm(self, _: Step) -> None:
        """Confirm, as the sweep does, all that waits for the store; the scripts are lost."""
        found = self.real.upkeep.unconfirmed(older_than=timedelta(0), limit=1_000)
        assert {each.message_id for each in found} == self.unconfirmed
        places = {each: at for held in self.ledger.places.values() for each, at in held.items()}
        times = {each: from_ms(at) for each, at in places.items()}
        assert self.real.upkeep.confirm(found, stored(times, self.tails)) == 0
        self.unconfirmed.clear()
        self.real.client.script_flush()

    def booked(self, step: Step) -> UUID | None:
        """Return one of those that are booked."""
        booked = list(self.of)
        return booked[step.who % len(booked)] if booked else None

    def shift(self, step: Step) -> None:
        self.book(step, step.room)

    def many(self, step: Step) -> None:
        """Several at once get what they would get one after the other."""
        asked, rooms = self.asked(step), [0, step.room, 0, step.room // 2]
        wishes = [self.wishes[(step.who + n) % len(self.wishes)] for n in range(4)]
        requests = [
            BookingRequest(new_id(), wish.terms, asked, asked + room)
            for wish, room in zip(wishes, rooms, strict=True)
        ]
        answers = self.real.windows.book(requests)
        for wish, request, answer in zip(wishes, requests, answers, strict=True):
            slot = self.ledger.slot(wish, asked)
            if isinstance(answer, Slot):
                assert answer.at_ms == slot <= request.latest_ms
                self.note(answer.message_id, wish, slot)
            else:
                assert isinstance(answer, SlotRefused)
                assert slot > request.latest_ms
                self.ledger.check(wish, asked, answer)

    def slot(self, step: Step) -> None:
        wish, asked = self.wish(step), self.asked(step)
        found = self.real.windows.next_slot(wish.terms, from_ms(asked))
        assert to_ms(found) == self.ledger.slot(wish, asked)

    def move(self, step: Step, room: int = 0) -> None:
        if (message_id := self.booked(step)) is None:
            return
        wish, asked = self.of[message_id], self.asked(step)
        slot = self.ledger.slot(wish, asked, without=message_id)
        latest = from_ms(asked + room) if room else None
        try:
            moving = move(
                self.real.windows, message_id, terms=wish.terms, send_at=from_ms(asked),
                latest=latest, tail=self.tails.get(message_id, ""),
            )  # fmt: skip
        except SlotRefused as refused:
            assert slot > asked + room
            self.ledger.check(wish, asked, refused, without=message_id)
            return
        assert moving.asked_ms == slot
        assert slot <= asked + room
        if step.who % 3:
            win(self.real.windows, moving, tail=self.tails.get(message_id, ""))
            self.tails[message_id] = moving.tail
            self.note(message_id, wish, slot)
        else:
            self.real.windows.withdraw([moving])
            self.unconfirmed.add(message_id)

    def push(self, step: Step) -> None:
        self.move(step, step.room)

    def free(self, step: Step) -> None:
        if (message_id := self.booked(step)) is None:
            return
        terms = self.of.pop(message_id).terms
        cancel(self.real.windows, message_id, terms, self.tails.get(message_id, ""))
        self.ledger.free(message_id)
        self.unconfirmed.discard(message_id)

    def check_windows(self) -> None:
        for scope, members in self.ledger.places.items():
            key = self.real.keys(scope.home).window(scope.name, scope.kind)
            assert window(self.real.client, key) == members
            assert self.ledger.broken(scope, sorted(members.values())) == []


property_test = settings(
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


VERBS = ["book", "book", "shift", "shift", "shift", "slot", "move", "push", "free", "many"]
verbs = st.sampled_from(VERBS)


def lengths(scale: int) -> st.SearchStrategy[int]:
    """Offsets on and right beside the places where things begin and end."""
    grid = st.sampled_from([scale, scale // 2, scale // 4, MINUTE_MS])
    return st.one_of(
        st.builds(
            lambda step, many, aside: step * many + aside,
            grid,
            st.integers(-8, 8),
            st.sampled_from([0, 0, 0, 0, -1, 1]),
        ),
        st.integers(-3 * scale, 3 * scale),
    )


def quotas_near(unit: CalendarUnit) -> st.SearchStrategy[list[AnyQuota]]:
    scale = SCALES_MS[unit]
    near = [each for each in UNITS if SCALES_MS[each] <= scale][-2:]
    rolling = st.builds(
        Quota,
        st.integers(1, 4),
        st.builds(
            lambda part, aside: max(1, scale * part // 4 + aside),
            st.integers(1, 10),
            st.sampled_from([0, 0, 0, -1, 1, 7]),
        ),
    )
    calendar = st.builds(
        CalendarQuota,
        st.integers(1, 4),
        st.sampled_from(near),
        st.one_of(st.none(), st.none(), st.sampled_from(sorted(CHANGES))),
    )
    return st.lists(st.one_of(calendar, calendar, rolling), min_size=1, max_size=3)


def steps_of(scale: int) -> st.SearchStrategy[list[Step]]:
    step = st.builds(Step, verbs, lengths(scale), lengths(scale).map(abs), st.integers(0, 50))
    return st.lists(step, min_size=1, max_size=12)


def leave_some_time(quiet: list[Item]) -> bool:
    return not quiet or not Hours.parse(Wish((), items=tuple(quiet)).text).covers_week


def scenes(kinds: Sequence[str]) -> st.SearchStrategy[Scene]:
    """Return stories in which the quotas of every kind are of about the same length."""
    return st.sampled_from(UNITS).flatmap(
        lambda unit: st.builds(
            lambda where, other, quotas, quiet, steps: Scene(
                where[0], other, where[1] // 1_000 * 1_000, quotas, tuple(quiet), steps
            ),
            zoned,
            st.sampled_from(sorted(CHANGES)),
            st.fixed_dictionaries({kind: quotas_near(unit) for kind in kinds}),
            st.lists(items, max_size=2).filter(leave_some_time),
            steps_of(SCALES_MS[unit]),
        )
    )


@pytest.fixture(scope="module")
def url(redis_session: RedisServer) -> str:
    """Give a Redis that all examples share."""
    return redis_session.url


@settings(property_test, max_examples=examples(60))
@given(scene=scenes([OWN_SCOPE]))
def test_a_scope_answers_as_the_clocks_of_its_zone(url: str, scene: Scene) -> None:
    ada = (own_scope("ada"),)
    wishes = [
        Wish(ada, scene.zone, scene.items),
        Wish(ada, scene.zone),
        Wish(ada, scene.other_zone, scene.items),
    ]
    Story(url, scene, wishes).play()


DENSE = 4_102_444_800_000  # 2100-01-01, ms
few_ms = st.integers(0, 120)


@pytest.mark.parametrize(
    ("most_read", "stories"), [(None, 200), (0, 50), (9, 50)], ids=["as it is", "0", "9"]
)
def test_times_that_lie_close_together_are_judged_to_the_millisecond(
    url: str, monkeypatch: pytest.MonkeyPatch, most_read: int | None, stories: int
) -> None:
    """Also where a script may do so little that a judgement takes several calls."""
    if most_read is not None:
        monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(most_read))
    further = st.sampled_from([*VERBS, "again", "confirm"])
    step = st.builds(Step, further, few_ms, few_ms, st.integers(0, 50))

    @settings(property_test, max_examples=examples(stories))
    @given(
        quotas=st.lists(
            st.builds(Quota, st.integers(1, 6), st.integers(1, 60)), min_size=1, max_size=3
        ),
        steps=st.lists(step, min_size=15, max_size=30),
    )
    def compare(quotas: list[AnyQuota], steps: list[Step]) -> None:
        scene = Scene("UTC", "UTC", DENSE, {OWN_SCOPE: quotas}, (), steps)
        Story(url, scene, [Wish((own_scope("ada"),))]).play()

    compare()


def scopes(recipient: str, tenant: str | None = None) -> tuple[Scope, ...]:
    named = {"tenant": tenant} if tenant else {}
    return counted((OWN_SCOPE, *KINDS), scope=recipient, channel=CHANNEL, scopes=named)


@settings(property_test, max_examples=examples(60))
@given(scene=scenes([OWN_SCOPE, *KINDS]))
def test_several_scopes_answer_as_the_clocks_say(url: str, scene: Scene) -> None:
    lone, rich = scopes("ada"), scopes("ada", "acme")
    assert len({shard_of(each.home, SHARDS) for each in rich}) == 3
    wishes = [
        Wish(rich, scene.zone, scene.items),
        Wish(lone, scene.zone, scene.items),
        Wish(scopes("ben", "acme"), scene.other_zone),
        Wish(scopes("ben", "initech"), scene.zone),
    ]
    Story(url, scene, wishes).play()


def open_for(minutes: int, day: int | None, start: int) -> tuple[Item, ...]:
    """Return quiet hours that leave so many minutes, of one day of the week or of each."""
    every = frozenset(range(7))
    end = (start + minutes) % 1440
    if day is None:
        return ((every, end, start),)
    others = every - {day}
    return ((others, 0, 1440), (frozenset({day}), end, start)) if others else ()


@settings(property_test, max_examples=examples(8))
@given(
    where=zoned,
    quiet=st.builds(
        open_for, st.integers(1, 3), st.one_of(st.none(), st.integers(0, 6)), st.integers(1, 1430)
    ),
    quotas=st.lists(
        st.sampled_from(
            [
                Quota(1, 60_000),
                Quota(1, 5 * UNIT_MS["day"]),
                Quota(3, 40 * UNIT_MS["day"]),
                CalendarQuota(1, "minute", None),
                CalendarQuota(1, "day", None),
                CalendarQuota(2, "week", None),
                CalendarQuota(3, "month", None),
            ]
        ),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    steps=steps_of(UNIT_MS["day"]),
)
def test_hours_that_leave_a_minute_are_searched_for_weeks(
    url: str,
    where: tuple[str, int],
    quiet: tuple[Item, ...],
    quotas: list[AnyQuota],
    steps: list[Step],
) -> None:
    far = [step._replace(room=30 * step.room) for step in steps]
    scene = Scene(where[0], where[0], where[1], {OWN_SCOPE: quotas}, quiet, far)
    Story(url, scene, [Wish((own_scope("ada"),), scene.zone, quiet)]).play()
