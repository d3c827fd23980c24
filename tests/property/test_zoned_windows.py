"""Random wishes around clock changes, on a real Redis, against a model that steps through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.quota import AnyQuota, CalendarQuota, Kept, Quota, Ramp
from dispatcher.redis.keys import shard_of
from dispatcher.scope import OWN_SCOPE, Scope, counted, own_scope
from dispatcher.times.periods import UNIT_MS, CalendarUnit
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.send_time import from_ms
from tests.support.calendar_model import CHANGES, MINUTE_MS, Item, items, zoned
from tests.support.examples import examples
from tests.support.model import Wish
from tests.support.reserving import little_at_once
from tests.support.servers import RedisServer
from tests.support.stories import BASE, SHARDS, Step, Story

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


@dataclass(frozen=True)
class Scene:
    """Where and when a story plays, by what rules."""

    zone: str
    other_zone: str
    base: int
    quotas: Mapping[str, Sequence[AnyQuota]]
    items: tuple[Item, ...]
    steps: Sequence[Step]

    def play(self, url: str, wishes: Sequence[Wish]) -> None:
        with Story(url, self.quotas, wishes, base=self.base) as story:
            story.play(self.steps)


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


def keeping(quota: AnyQuota, least: int, number: int) -> AnyQuota:
    """Return the quota with some of its places kept, if it has any to keep."""
    if quota.count < 2 or number == 0:
        return quota
    return replace(quota, kept=Kept(1 + number % (quota.count - 1), least))


def growing(quota: AnyQuota, factor: str, most: int, since: int, base: int) -> AnyQuota:
    """Return the quota, growing from some days before or after the base on, if it is of days."""
    if not isinstance(quota, CalendarQuota) or quota.unit != "day" or most == 0:
        return quota
    day = from_ms(base).date() + timedelta(days=since)
    return replace(quota, ramp=Ramp(Decimal(factor), quota.count + most, day))


def quotas_near(unit: CalendarUnit, base: int) -> st.SearchStrategy[list[AnyQuota]]:
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
    quota = st.builds(
        lambda quota, growth, kept: keeping(
            growing(quota, growth[0], growth[1], growth[2], base), kept[0], kept[1]
        ),
        st.one_of(calendar, calendar, rolling),
        st.tuples(
            st.sampled_from(["1.01", "1.5", "2", "10"]),
            st.sampled_from([0, 1, 2, 5, 10]),
            st.integers(-4, 3),
        ),
        st.tuples(st.sampled_from([-50, 1, 50]), st.integers(0, 3)),
    )
    return st.lists(quota, min_size=1, max_size=3, unique=True)


def steps_of(scale: int) -> st.SearchStrategy[list[Step]]:
    step = st.builds(Step, verbs, lengths(scale), lengths(scale).map(abs), st.integers(0, 50))
    return st.lists(step, min_size=1, max_size=12)


def leave_some_time(quiet: list[Item]) -> bool:
    return not quiet or not Hours.parse(Wish((), items=tuple(quiet)).text).covers_week


def scenes(kinds: Sequence[str]) -> st.SearchStrategy[Scene]:
    """Return stories in which the quotas of every kind are of about the same length."""
    return st.tuples(st.sampled_from(UNITS), zoned).flatmap(
        lambda place: st.builds(
            lambda other, quotas, quiet, steps: Scene(
                place[1][0], other, place[1][1] // 1_000 * 1_000, quotas, tuple(quiet), steps
            ),
            st.sampled_from(sorted(CHANGES)),
            st.fixed_dictionaries({kind: quotas_near(place[0], place[1][1]) for kind in kinds}),
            st.lists(items, max_size=2).filter(leave_some_time),
            steps_of(SCALES_MS[place[0]]),
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
        Wish(ada, scene.zone, priority=50),
        Wish(ada, scene.other_zone, scene.items, 1),
        Wish(ada, scene.zone, priority=-51),
    ]
    scene.play(url, wishes)


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
            st.builds(
                lambda count, length, kept: keeping(Quota(count, length), 1, kept),
                st.integers(1, 6),
                st.integers(1, 60),
                st.integers(0, 5),
            ),
            min_size=1,
            max_size=3,
        ),
        steps=st.lists(step, min_size=15, max_size=30),
    )
    def compare(quotas: list[AnyQuota], steps: list[Step]) -> None:
        scene = Scene("UTC", "UTC", BASE, {OWN_SCOPE: quotas}, (), steps)
        ada = (own_scope("ada"),)
        scene.play(url, [Wish(ada), Wish(ada, priority=1)])

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
        Wish(lone, scene.zone, scene.items, 50),
        Wish(scopes("ben", "acme"), scene.other_zone, priority=100),
        Wish(scopes("ben", "initech"), scene.zone, priority=-100),
    ]
    scene.play(url, wishes)


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
    scene.play(url, [Wish((own_scope("ada"),), scene.zone, quiet)])
