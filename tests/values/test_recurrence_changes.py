"""Rules of repetition around clock changes, compared with a model that looks at every second."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import pairwise
from random import Random
from typing import get_args
from zoneinfo import available_timezones

import pytest

from dispatcher.errors import InvalidValue
from dispatcher.times.recurrence import Gap, Recurrence, Repeat
from dispatcher.times.zones import rules
from tests.support import recurrence_model
from tests.support.examples import examples
from tests.support.recurrence_model import LENGTHS, Model

ZONES = (
    "Pacific/Chatham", "Antarctica/Troll", "Australia/Lord_Howe", "America/Santiago",
    "America/Havana", "Europe/Berlin", "Europe/London", "America/New_York", "Asia/Kathmandu",
    "Pacific/Apia", "Africa/Casablanca", "America/St_Johns", "America/Scoresbysund",
)  # fmt: skip
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", *LENGTHS)
DAY = timedelta(days=1)
SPAN = {"HOURLY": 30 * 3_600, "MINUTELY": 4 * 3_600, "SECONDLY": 2_400}


@cache
def changes() -> list[tuple[str, int]]:
    """All changes of the zones, also the day that Apia left out, and turns of years in UTC."""
    named = [
        (name, at)
        for name in ZONES
        for at in recurrence_model.changes(rules(name), range(2015, 2041))
    ]
    turns = [
        ("UTC", int(datetime(year, 1, 1, tzinfo=UTC).timestamp())) for year in range(2015, 2041)
    ]
    return named + turns + [("Asia/Kathmandu", 504_901_800)]  # ahead by a quarter of an hour, 1986


class Drawn:
    """A rule by chance, which often has the wall time ``near``."""

    def __init__(self, random: Random, freq: str, near: datetime) -> None:
        self.random, self.freq, self.near = random, freq, near
        self.by: dict[str, frozenset[int]] = {}

    def some(self, name: str, chance: float, *values: int) -> None:
        if self.random.random() < chance:
            few = self.random.sample(values[1:], self.random.randint(0, 2))
            self.by[name] = frozenset({self.random.choice(values), *few})

    def draw_parts(self) -> None:
        near, day = self.near, self.near.timetuple().tm_yday
        self.some("BYMONTH", 0.2, near.month, 1, 12, near.month % 12 + 1)
        if self.freq != "WEEKLY":
            self.some("BYMONTHDAY", 0.2, near.day, -1, 1, 31, near.day - 32, near.day % 28 + 1)
        if self.freq == "YEARLY":
            week = near.isocalendar().week
            self.some("BYWEEKNO", 0.3, min(week, 51), 1, -1, -51, 2, 51, -2)
            self.some("BYYEARDAY", 0.2, day, 1, -1, 366, -366, day - 367, day % 365 + 1)
        self.some("BYHOUR", 0.4, near.hour, (near.hour + 1) % 24, (near.hour - 1) % 24, 0, 23)
        self.some("BYMINUTE", 0.4, near.minute, 0, 30, 15, 59)
        self.some("BYSECOND", 0.1, 0, 30, 59)

    def days(self) -> frozenset[tuple[int, int]]:
        random, near, number = self.random, self.near, 0
        if self.freq in {"YEARLY", "MONTHLY"} and "BYWEEKNO" not in self.by:
            number = random.choice([0, (near.day - 1) // 7 + 1, -1, 1, 5, -5])
            if self.freq == "YEARLY" and "BYMONTH" not in self.by:
                week = (near.timetuple().tm_yday - 1) // 7 + 1
                number = random.choice([0, week, -1, 53, -53, 1])
        days = [near.weekday(), random.randrange(7), random.randrange(7)]
        return frozenset((day, number) for day in random.sample(days, random.randint(1, 3)))

    def model(self) -> Model:
        random, near = self.random, self.near
        self.draw_parts()
        days = self.days() if random.random() < 0.3 else frozenset()
        if self.freq in {"YEARLY", "MONTHLY"} and random.random() < 0.2:
            self.by["BYSETPOS"] = frozenset(random.sample([1, -1, 2, -2, 3], random.randint(1, 2)))
        far = 40 if self.freq in LENGTHS else 4_000
        back = random.choice(
            [timedelta(minutes=random.randrange(200)), random.randrange(far) * DAY]
        )
        model = Model(
            freq=self.freq,
            start=near - back,
            interval=random.choice([1, 1, 1, 2, 3, 5, 7]),
            week_begins=random.choice([0, 0, 6, 2]),
            by=self.by,
            days=days,
        )
        end = near + timedelta(minutes=random.randrange(-100, 600))
        if random.random() < 0.3 and end > model.start:
            model = replace(model, until=random.choice([end, end.replace(tzinfo=UTC) + DAY]))
        elif random.random() < 0.2 and back < 4 * DAY:
            model = replace(model, count=random.randint(1, 9))
        utc = near.replace(tzinfo=UTC)
        if random.random() < 0.2:
            excluded = random.choice([near, near.date(), end, utc])
            model = replace(model, excluded=frozenset({excluded}))
        if random.random() < 0.2:
            model = replace(model, dates=frozenset({random.choice([near, end, utc])}))
        return model


def problem_of(text: str, parse: Callable[[str], object]) -> str | None:
    try:
        parse(text)
    except InvalidValue as refused:
        return refused.problem
    return None


def compare(random: Random, name: str, change: int) -> bool:
    """Compare a rule and the model around a change; return whether anything was there."""
    zone, freq = rules(name), random.choice(FREQUENCIES)
    wall = datetime.fromtimestamp(change, zone).replace(tzinfo=None, fold=0)
    near = wall + timedelta(minutes=random.randrange(-150, 150))
    if random.random() < 0.3:
        near = near.replace(minute=random.choice([0, 30]))
    model = Drawn(random, freq, near).model()
    gap, repeat = random.choice(get_args(Gap)), random.choice(get_args(Repeat))
    half = SPAN.get(freq, 3 * 86_400) // 2
    middle = change + random.randrange(-half, half) // 3
    begin, end = middle - half, middle + half
    if model.count:
        begin = int(model.start.replace(tzinfo=zone).timestamp()) - 7_200
        end = max(end, begin + 14_400)
        if freq == "SECONDLY" and end - begin > 86_400:
            return False
    expected = model.between(zone, begin, end, gap, repeat)
    told = f"{name} {gap} {repeat} {model.start} {begin} {model.text()}"
    parse = partial(Recurrence.parse, start=model.start, gap=gap, repeat=repeat)
    if (problem := problem_of(model.text(), parse)) is not None:
        assert re.search("never fires|before its start", problem), told
        assert not expected or model.dates or freq in LENGTHS or model.excluded, told
        return False
    rule = parse(model.text())
    found = rule.between(name, begin * 1_000, end * 1_000)
    assert [(one.at_ms // 1_000, one.nominal) for one in found] == expected, told
    assert all(one.at_ms < after.at_ms for one, after in pairwise(found)), told
    first, last = sorted(random.randrange(begin, end + 1) * 1_000 for _ in range(2))
    inside = [one for one in found if first <= one.at_ms < last]
    assert rule.between(name, first, last) == inside, told
    later = [one for one in found if one.at_ms >= first]
    assert rule.following(name, first, min(3, len(later))) == later[:3], told
    assert parse(rule.rule) == rule, told
    return bool(expected)


def test_rules_mean_around_clock_changes_what_the_model_says() -> None:
    random = Random(5_545)  # noqa: S311 - repeatable
    tried = [compare(random, *random.choice(changes())) for _ in range(examples(1_500))]
    assert sum(tried) > len(tried) // 4


@pytest.mark.long
@pytest.mark.parametrize("name", [*ZONES, "UTC"])
def test_rules_mean_around_every_change_what_the_model_says(name: str) -> None:
    random = Random(name)  # noqa: S311 - repeatable
    for change in [change for change in changes() if change[0] == name]:
        for _ in range(10):
            compare(random, *change)


@pytest.mark.long
def test_rules_mean_in_zones_by_chance_what_the_model_says() -> None:
    random = Random(1)  # noqa: S311 - repeatable
    for name in random.sample(sorted(available_timezones() - {"localtime", "Factory"}), 30):
        for change in recurrence_model.changes(rules(name), range(2015, 2041)):
            compare(random, name, change)
