"""Limits and decisions as plain values: what they take, what they say, how they are written."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
import redis
import redis.asyncio

from dispatcher.errors import InvalidValue
from dispatcher.limiters import (
    GCRA,
    Algorithm,
    AsyncLimiter,
    Concurrency,
    CoolDown,
    CounterPerKey,
    FixedWindow,
    Limiter,
    Limits,
    Request,
    SlidingCounter,
    SlidingList,
    SlidingLog,
    parse,
)
from dispatcher.redis.keys import LimiterKeys

MINUTE = timedelta(minutes=1)
CLIENT = redis.Redis()  # nothing connects before something is sent


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("100/second", SlidingList(100, timedelta(seconds=1))),
        ("2/30 seconds", SlidingList(2, timedelta(seconds=30))),
        ("5/day in Asia/Shanghai", FixedWindow(5, "day", align="Asia/Shanghai")),
        ("3000/months in UTC", FixedWindow(3_000, "month", align="UTC")),
        ("50/second burst 200", GCRA(50, timedelta(seconds=1), max_burst=200)),
        (" 1 / minute  burst  0 ", GCRA(1, MINUTE)),
        ("5/s", SlidingList(5, timedelta(seconds=1))),
        ("7 per 2 h", SlidingList(7, timedelta(hours=2))),
        ("5/min in UTC", FixedWindow(5, MINUTE, align="UTC")),
        ("5/15 minutes in UTC", FixedWindow(5, 15 * MINUTE, align="UTC")),
        ("9/10s in Asia/Kolkata", FixedWindow(9, timedelta(seconds=10), align="Asia/Kolkata")),
        ("5/2 day in UTC", FixedWindow(5, timedelta(days=2), align="UTC")),
        ("5/365 day in UTC", FixedWindow(5, timedelta(days=365), align="UTC")),
        ("5/year in UTC", FixedWindow(5, "year", align="UTC")),
        (
            "10/s; 5 per day in UTC;2/min burst 3",
            Limits([SlidingList(10, timedelta(seconds=1)), FixedWindow(5, "day", align="UTC"),
                    GCRA(2, MINUTE, max_burst=3)]),
        ),
        ("1/s,2/h|3/d", Limits([parse("1/second"), parse("2/hour; 3/day")])),
    ],
)  # fmt: skip
def test_a_limit_is_read_from_a_string(text: str, limit: Algorithm | Limits) -> None:
    found = parse(text)
    assert found == limit
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "5", "5/", "5/fortnight", "0/second", "5/month", "5/2 months in UTC", "5/day in Mars",
     "5/m", "5/2 years in UTC", "5/53 weeks in UTC", "5per s", "5/s;", ";5/s", "5/s per s",
     "5/day in", "5/second burst", "5/second burst -1", "5/day in UTC burst 3", None, 5,
     ["5/s"]],
)  # fmt: skip
def test_a_malformed_limit_is_refused(text: Any) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse(text)
    assert refused.value.accepted


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedWindow(0, MINUTE),
        lambda: FixedWindow(cast(int, True), MINUTE),
        lambda: FixedWindow(cast(int, 1.5), MINUTE),
        lambda: FixedWindow(10_000_001, MINUTE),
        lambda: FixedWindow(1, timedelta(0)),
        lambda: FixedWindow(1, timedelta(microseconds=10_500)),
        lambda: FixedWindow(1, timedelta(days=367)),
        lambda: FixedWindow(1, "month"),
        lambda: FixedWindow(1, timedelta(milliseconds=1_500), align="UTC"),
        lambda: FixedWindow(1, timedelta(days=367), align="UTC"),
        lambda: FixedWindow(1, "fortnight", align="UTC"),
        lambda: FixedWindow(1, "day", align="localtime"),
        lambda: FixedWindow(1, "day", align="Mars"),
        lambda: FixedWindow(1, MINUTE, name="a:b"),
        lambda: FixedWindow(1, MINUTE, name="a=b"),
        lambda: GCRA(1, MINUTE, max_burst=-1),
        lambda: GCRA(7, timedelta(days=366), max_burst=1_000_000),
        lambda: SlidingCounter(10_000_000, timedelta(days=366)),
        lambda: Concurrency(0),
        lambda: Concurrency(1, hold=timedelta(days=2)),
        lambda: CoolDown(name="{}"),
        lambda: Limits([]),
        lambda: Limits(cast(Any, ["5/minute"])),
    ],
)
def test_a_limit_that_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue) as refused:
        make()
    assert refused.value.field
    assert refused.value.accepted


def on(**more: Any) -> Limiter:
    limits = [FixedWindow(5, MINUTE), Concurrency(3), CoolDown()]
    return Limits(limits).on(CLIENT, **more)


LARGE = SlidingLog(20_000, MINUTE).on(CLIENT)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: on().acquire(""), "key"),
        (lambda: on().acquire("x" * 1_025), "key"),
        (lambda: on().acquire("é" * 513), "key"),
        (lambda: on().acquire("\ud800"), "key"),
        (lambda: on().acquire(cast(Any, 5)), "keys"),
        (lambda: on().acquire(cast(Any, b"ada")), "keys"),
        (lambda: on().acquire(["ada"]), "keys"),
        (lambda: on().acquire(["ada", "", "ben"]), "key"),
        (lambda: on().acquire("ada", -1), "n"),
        (lambda: on().acquire("ada", 1 << 53), "n"),
        (lambda: on().acquire("ada", cast(int, 1.0)), "n"),
        (lambda: on().acquire("ada", cast(int, True)), "n"),
        (lambda: LARGE.acquire("ada", 1_001), "n"),
        (lambda: LARGE.acquire("ada", 20_000), "n"),
        (lambda: LARGE.acquire_up_to("ada", 20_001), "n"),
        (lambda: LARGE.acquire_each([Request("ada", 1_001)]), "n"),
        (lambda: on().acquire_up_to("ada", -1), "n"),
        (lambda: on().peek("ada", -1), "n"),
        (lambda: on().acquire("ada", permit=""), "permit"),
        (lambda: on().acquire("ada", permit="", wait=True), "permit"),
        (lambda: on().acquire("ada", permit="a\0"), "permit"),
        (lambda: on().acquire("ada", permit=cast(Any, b"a")), "permit"),
        (lambda: on().acquire("ada", permit="a\ud800"), "permit"),
        (lambda: on().acquire("ada", permit="x" * 256), "permit"),
        (lambda: on().give_back("ada", "\udfff"), "permit"),
        (lambda: on().acquire("ada", timeout=1), "timeout"),
        (lambda: on().acquire("ada", wait=True, timeout=-1), "timeout"),
        (lambda: on().acquire("ada", wait=True, timeout=float("nan")), "timeout"),
        (lambda: on().give_back("ada", ""), "permit"),
        (lambda: on().close("ada"), "until"),
        (lambda: on().close("ada", timedelta(0)), "length"),
        (lambda: on().close("ada", until=datetime.max.replace(tzinfo=UTC)), "until"),
        (lambda: on().acquire_each([Request("ada"), Request("ada", -1)]), "n"),
        (lambda: on().acquire_each(cast(Any, None)), "requests"),
        (lambda: on().acquire_each(cast(Any, "ada")), "requests"),
        (lambda: on().acquire_each([Request("ada"), cast(Any, "ben")]), "requests"),
        (lambda: on().acquire_each([Request("ada", limits=(3,))]), "limits"),
        (lambda: on().acquire_each([Request("ada", limits=(0, 0))]), "limits"),
        (lambda: on(prefix="a:b"), "prefix"),
        (lambda: on(tag=""), "tag"),
        (lambda: on(on_error="ignore"), "on_error"),
        (lambda: on(remember=timedelta(0)), "remember"),
        (lambda: FixedWindow(1, MINUTE).on(cast(Any, "redis://")), "client"),
        (lambda: FixedWindow(1, MINUTE).on(CLIENT.pipeline()), "client"),
        (lambda: FixedWindow(1, MINUTE).on(redis.asyncio.Redis().pipeline()), "client"),
        (lambda: Limits([FixedWindow(5, MINUTE)] * 2).on(CLIENT).acquire("ada"), "limits"),
    ],
)
def test_bad_arguments_are_refused_before_any_call(call: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        call()
    assert refused.value.field == field


def test_limits_are_values() -> None:
    every = [
        FixedWindow(5, "day", align="UTC"), SlidingLog(5, MINUTE), SlidingList(5, MINUTE),
        CounterPerKey(5, MINUTE), SlidingCounter(5, MINUTE), GCRA(5, MINUTE, max_burst=2),
        Concurrency(5), CoolDown(),
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(every)) == every  # noqa: S301 - our own bytes
    assert len({*every, *every}) == len(every)
    assert len({each.label for each in every}) == len(every)


@pytest.mark.parametrize(
    "make",
    [FixedWindow, SlidingLog, SlidingList, CounterPerKey, SlidingCounter, GCRA,
     partial(FixedWindow, align="Europe/Berlin")],
)  # fmt: skip
def test_a_unit_is_the_length_that_it_stands_for(make: Callable[..., Algorithm]) -> None:
    for unit, length in (("second", 1), ("minute", 60), ("hour", 3_600), ("week", 604_800)):
        assert make(1, unit) == make(1, timedelta(seconds=length))
        assert make(1, unit).label == make(1, timedelta(seconds=length)).label


def test_both_limiters_have_the_same_methods() -> None:
    def methods(of: type) -> dict[str, list[tuple[str, object]]]:
        return {
            name: [(each.name, each.default) for each in inspect.signature(f).parameters.values()]
            for name, f in vars(of).items()
            if not name.startswith("_")
        }

    assert methods(Limiter) == methods(AsyncLimiter)


def test_no_two_keys_of_callers_share_a_key_in_redis() -> None:
    names = [
        LimiterKeys(prefix, tag).state(name, key)
        for prefix in ("p", "p.q")
        for tag in (None, "t", "u")
        for name in ("n", "m")
        for key in ("k", "t", "t}:n", "t}:n:k", "p@t", "@t}:n:k", ":k", "k}:n", "{k}")
    ]
    assert len(set(names)) == len(names)


def test_the_library_needs_no_settings_and_no_database() -> None:
    code = (
        "import redis; from dispatcher.limiters import FixedWindow;"
        "print(FixedWindow(5, 'minute'), type(FixedWindow(5, 'minute').on(redis.Redis())).__name__)"
    )
    wrong = dict.fromkeys(("DISPATCHER_DATABASE_URL", "DISPATCHER_BROKER_URL"), "nonsense")
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), **wrong},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "5/minute Limiter"
