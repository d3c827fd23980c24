"""Random wishes around clock changes, on a real Redis, against a model that steps through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.quota import AnyQuota, CalendarQuota, Quota
from dispatcher.redis.keys import shard_of
from dispatcher.scope import OWN_SCOPE, Scope, counted, own_scope
from dispatcher.times.periods import UNIT_MS, CalendarUnit
from dispatcher.times.quiet_hours import Hours
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
            st.builds(Quota, st.integers(1, 6), st.integers(1, 60)), min_size=1, max_size=3
        ),
        steps=st.lists(step, min_size=15, max_size=30),
    )
    def compare(quotas: list[AnyQuota], steps: list[Step]) -> None:
        scene = Scene("UTC", "UTC", BASE, {OWN_SCOPE: quotas}, (), steps)
        scene.play(url, [Wish((own_scope("ada"),))])

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
