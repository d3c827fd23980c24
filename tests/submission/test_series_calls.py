"""The calls of ``dispatcher.series``: as a program makes them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher import InvalidValue, Recipient
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

DAY = timedelta(days=1)
EVERY_DAY = "0 9 * * *"


def booked(house: House, name: str) -> list[datetime]:
    house.parts.series_list.book_ahead()
    rows = house.dispatcher.select(event=f"series:{name}", status="scheduled")
    return sorted(message.send_at for message in rows)


@pytest.mark.parametrize("until", ["2100-01-04", "2100-01-03T09:00:00", "2100-01-03T08:00:00Z"])
@pytest.mark.parametrize("of_datetime", [False, True])
def test_times_are_texts_or_datetimes(build: Build, until: str, of_datetime: bool) -> None:
    """A time without an offset is one of the series' zone."""
    house = build(quotas="1000/hour")
    start: Any = "2100-01-02T09:00+01:00"
    end: Any = f"{until}T00:00" if "T" not in until else until
    if of_datetime:
        start, end = map(datetime.fromisoformat, (start, end))
    series = house.dispatcher.series
    made = series.add(
        "daily", EVERY_DAY, channel="memory", recipient="ada", body={}, start=start, until=end,
        zone="Europe/Berlin", spread="1 hour", window=DAY,
    )  # fmt: skip
    assert made.start == datetime(2100, 1, 2, 9)  # noqa: DTZ001 - a wall time
    first = datetime(2100, 1, 2, 8, tzinfo=UTC)
    assert series.preview("daily") == [first, first + DAY]
    assert len(booked(house, "daily")) == 2


@pytest.mark.parametrize(
    ("since", "early"), [(FAR + 3 * DAY, 3), ("2100-01-03T12:00", 2), ("2100-01-04", 2), (None, 0)]
)
def test_a_change_keeps_what_it_does_not_name(build: Build, since: Any, early: int) -> None:
    house = build(
        quotas="1000/hour",
        channels={"memory": {"transport": "memory", "templates": {"hi": {"text": "{{ who }}"}}}},
    )
    series = house.dispatcher.series
    series.add("daily", EVERY_DAY, channel="memory", template="hi", data={"who": "you"},
               recipients=["bob", Recipient("ada", "Asia/Tokyo", {"who": "Ada"})])  # fmt: skip
    booked(house, "daily")
    changed = series.change("daily", since, rule="0 10 * * *", campaign="ten")
    assert (changed.template, len(changed.recipients)) == ("hi", 2)
    assert [at.hour for at in booked(house, "daily")] == [9] * 2 * early + [10] * 2 * (35 - early)
    changed = series.change("daily", recipient="cyd", body={"text": "x"}, campaign=None, data=None)
    assert (changed.template, changed.campaign) == (None, None)
    assert changed.recipients == (Recipient("cyd"),)


def test_a_list_has_pages(build: Build) -> None:
    house = build()
    series = house.dispatcher.series
    names = ["a", "b", "c/d", "daily"]
    for name in reversed(names):
        series.add(name, EVERY_DAY, channel="memory", recipient="ada", body={})
    assert [one.name for one in series.list()] == names
    assert [one.name for one in series.list(limit=2, after="a")] == ["b", "c/d"]
    assert series.remove("b") == 0
    assert [one.name for one in series.list(limit=2)] == ["a", "c/d"]


@pytest.mark.parametrize(
    ("call", "arguments", "field"),
    [
        *(
            (call, ["nobody"], "name")
            for call in ("get", "change", "remove", "pause", "resume", "preview")
        ),
        ("preview", ["daily", 0], "count"),
        ("preview", ["daily", 10_001], "count"),
        ("preview", ["local", 1, "Nowhere"], "zone"),
        ("list", {"limit": 0}, "limit"),
        ("list", {"after": 7}, "after"),
        ("change", ["daily", "soon"], "since"),
        ("change", ["daily", FAR + 36 * DAY], "since"),
        ("change", {"name": "daily", "rule": "FREQ=NEVER"}, "rule"),
        ("change", {"name": "daily", "recipient": "a", "recipients": ["b"]}, "recipients"),
        ("change", {"name": "daily", "count": 5}, "rule"),
    ],
)
def test_bad_calls(build: Build, call: str, arguments: Any, field: str) -> None:
    house = build()
    series = house.dispatcher.series
    good: Any = {"channel": "memory", "recipient": "ada", "body": {}}
    series.add("daily", "FREQ=DAILY;COUNT=3", **good)
    series.add("local", EVERY_DAY, zone="local", **good)
    given = arguments if isinstance(arguments, dict) else {}
    with pytest.raises(InvalidValue) as refused:
        getattr(series, call)(*([] if given else arguments), **given)
    assert refused.value.field == field
    assert series.get("daily").rule.startswith("RRULE:FREQ=DAILY;COUNT=3")


def test_every_call_can_be_awaited(build: Build) -> None:
    dispatcher = build().dispatcher
    series = dispatcher.series

    async def calls() -> None:
        made = await series.aadd("daily", EVERY_DAY, channel="memory", recipient="ada", body={})
        assert await series.aget("daily") == made
        assert await series.alist() == [made]
        assert await series.apreview("daily", 1) == series.preview("daily", 1)
        assert (await series.achange("daily", priority=5)).priority == 5
        await series.apause("daily")
        assert dispatcher.pauses()
        assert await series.aresume("daily") == 0
        assert await series.aremove("daily") == 0

    asyncio.run(calls())
