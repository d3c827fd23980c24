"""The load to come: what is due in each minute of a channel, and when it leaves by its limits."""

from __future__ import annotations

import random
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from dispatcher import Draft, InvalidValue
from dispatcher.operations.overview import LoadedMinute, _outflow
from dispatcher.quota import parse_limit
from dispatcher.store import listing
from tests.support.house import House
from tests.support.house_fixtures import Build

NINE = datetime(2030, 6, 3, 9, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DAY = timedelta(days=1)


def outflow(due: dict[int, int], *limits: str, late: int = 0) -> dict[int, LoadedMinute]:
    """Return what becomes of messages that are due so many minutes after nine."""
    minutes = {NINE + number * MINUTE: count for number, count in due.items() if count}
    parsed = [parse_limit(limit) for limit in limits]
    loaded = _outflow(parsed, NINE, minutes, late, until=NINE + 2 * DAY)
    return {(minute.at - NINE) // MINUTE: minute for minute in loaded}


@pytest.mark.parametrize(
    ("due", "limits", "late", "expected"),
    [
        ({0: 14_000}, ["100/second"], 0, {0: (0, "03 09:02:20")}),
        ({0: 14_000, 1: 10, 5: 10}, ["100/second"], 0, {
            0: (0, "03 09:02:20"), 1: (8_000, "03 09:02:20"), 5: (0, "03 09:05:00"),
        }),
        ({0: 5_000}, [], 0, {0: (0, "03 09:00:00")}),
        ({0: 5_000}, ["1000/hour"], 0, {0: (0, "03 13:00:00")}),
        ({0: 1_500, 59: 1}, ["1000/hour"], 0, {0: (0, "03 10:00:00"), 59: (500, "03 10:00:00")}),
        ({0: 300}, ["1/second", "200/hour"], 0, {0: (0, "03 10:01:40")}),
        ({0: 30}, ["20/day in Europe/Berlin"], 0, {0: (0, "03 22:00:00")}),
        ({1: 10}, ["1/second"], 90, {1: (30, "03 09:01:40")}),
        ({0: 20}, ["7/2 minutes"], 0, {0: (0, "03 09:04:00")}),
        ({0: 100}, ["1/2 seconds"], 0, {0: (0, "03 09:03:20")}),
        ({0: 3}, ["1/day"], 0, {0: (0, "never")}),
        ({0: 60, 7: 5}, ["1/7 seconds"], 0, {0: (0, "03 09:07:00"), 7: (0, "03 09:07:35")}),
    ],
)  # fmt: skip
def test_when_the_last_one_leaves(
    due: dict[int, int], limits: list[str], late: int, expected: dict[int, tuple[int, str]]
) -> None:
    assert {
        number: (minute.waiting, f"{minute.last_at:%d %H:%M:%S}" if minute.last_at else "never")
        for number, minute in outflow(due, *limits, late=late).items()
    } == expected


@pytest.mark.parametrize("seed", range(3))
def test_it_is_near_what_sliding_logs_give_message_by_message(seed: int) -> None:
    roll = random.Random(seed)  # noqa: S311 - not for secrets
    limits = roll.choice([["5/second"], ["40/10 seconds"], ["3/second", "900/20 minutes"]])
    due = {number: roll.randrange(600) for number in range(0, 40, 3)}
    parsed: list[Any] = [parse_limit(limit) for limit in limits]
    longest = max(limit.length_ms for limit in parsed)
    logs: list[deque[int]] = [deque(maxlen=limit.count) for limit in parsed]
    loaded, at = outflow(due, *limits), 0
    for number, count in due.items():
        at = max(at, number * 60_000)
        for _ in range(count):
            for limit, log in zip(parsed, logs, strict=True):
                if len(log) == limit.count:
                    at = max(at, log[0] + limit.length_ms)
            for log in logs:
                log.append(at)
        if count:
            last_at = loaded[number].last_at
            assert last_at is not None
            off = (last_at - NINE) // timedelta(milliseconds=1) - at
            assert abs(off) <= 60_000 + min(longest, 60_000), (limits, number)


def test_minutes_are_counted_by_channel_and_overbooked_ones_marked(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(
        quotas="1000/second",
        channels={
            "sms": {"transport": "memory", "limits": ["1/second"]},
            "mail": {"transport": "memory"},
        },
    )
    start = house.dispatcher.load().start
    at = start + 10 * MINUTE
    house.moved.set_wall(start)
    _book(house, "sms", 140, at)
    _book(house, "sms", 1, at + MINUTE + 30 * SECOND)
    _book(house, "sms", 60, at + HOUR)
    _book(house, "mail", 5, at)
    _book(house, "mail", 1, start + 26 * HOUR)

    load = house.dispatcher.load()
    assert (load.end - load.start, load.complete) == (DAY, True)
    assert load.counted_until == load.end
    channels = {channel.channel: channel for channel in load.channels}
    assert {name: channel.limits for name, channel in channels.items()} == {
        "mail": (), "sms": ("1/second",),
    }  # fmt: skip
    shown = [(minute.at - at, minute.due, minute.waiting, minute.overbooked)
             for minute in channels["sms"].minutes]  # fmt: skip
    assert shown == [
        (0 * MINUTE, 140, 0, True), (MINUTE, 1, 80, True), (HOUR, 60, 0, False),
    ]  # fmt: skip
    assert channels["sms"].minutes[0].last_at == at + 140 * SECOND
    assert [(minute.due, minute.overbooked) for minute in channels["mail"].minutes] == [(5, False)]
    week = house.dispatcher.load(within=7 * DAY)
    assert sum(minute.due for channel in week.channels for minute in channel.minutes) == 207

    with patch.object(listing, "_COUNTED", 7):
        assert house.dispatcher.load() == load, "read in parts, though many share an instant"
    monkeypatch.setattr(listing, "MOST_COUNTED", 150)
    load = house.dispatcher.load()
    assert not load.complete
    assert load.start < load.counted_until < at + HOUR


def _book(house: House, channel: str, count: int, at: datetime) -> None:
    drafts = [
        Draft(channel=channel, recipient=f"r{number}", body={}, send_at=at)
        for number in range(count)
    ]
    assert Counter(type(answer).__name__ for answer in house.dispatcher.submit_many(drafts)) == {
        "Message": count
    }


@pytest.mark.parametrize("within", [timedelta(0), 30 * SECOND, 8 * DAY, "1 day"])
def test_a_length_that_cannot_be_is_refused(house: House, within: Any) -> None:
    with pytest.raises(InvalidValue):
        house.dispatcher.load(within=within)
