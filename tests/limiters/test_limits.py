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
from tests.support.limiters import ALL, COUNTED, MINUTE, MS

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


WINDOWS: list[tuple[Any, ...]] = [
    *((count, MINUTE) for count in (0, True, 1.5, 10_000_001)),
    *((1, timedelta(microseconds=us)) for us in (0, 10_500)), (1, timedelta(days=367)),
    (1, "month"), (1, MINUTE, "a:b"), (1, MINUTE, "a=b"),
    *((1, period, None, "UTC") for period in (1_500 * MS, timedelta(days=367), "fortnight")),
    *((1, "day", None, zone) for zone in ("localtime", "Mars")),
]  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        *(partial(FixedWindow, *window) for window in WINDOWS),
        partial(GCRA, 1, MINUTE, max_burst=-1),
        partial(GCRA, 7, timedelta(days=366), max_burst=1_000_000),
        partial(SlidingCounter, 10_000_000, timedelta(days=366)),
        partial(Concurrency, 0),
        partial(Concurrency, 1, hold=timedelta(days=2)),
        partial(CoolDown, name="{}"),
        partial(Limits, []),
        partial(Limits, cast(Any, ["5/minute"])),
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


ON, ONE = on(), FixedWindow(1, MINUTE)
GROUP: Any = ON.acquire_each


@pytest.mark.parametrize(
    ("call", "field"),
    [
        *((partial(ON.acquire, key), "key")
          for key in ("", "x" * 1_025, "é" * 513, "\ud800", ["ada", "", "ben"])),
        *((partial(ON.acquire, cast(Any, keys)), "keys") for keys in (5, b"ada", ["ada"])),
        *((partial(ON.acquire, "ada", cast(int, n)), "n") for n in (-1, 1 << 53, 1.0, True)),
        *((partial(LARGE.acquire, "ada", n), "n") for n in (1_001, 20_000)),
        (partial(LARGE.acquire_up_to, "ada", 20_001), "n"),
        (partial(LARGE.acquire_each, [Request("ada", 1_001)]), "n"),
        (partial(ON.acquire_up_to, "ada", -1), "n"),
        (partial(ON.peek, "ada", -1), "n"),
        *((partial(ON.acquire, "ada", permit=cast(str, permit)), "permit")
          for permit in ("", "a\0", b"a", "a\ud800", "x" * 256)),
        (partial(ON.acquire, "ada", permit="", wait=True), "permit"),
        *((partial(ON.give_back, "ada", permit), "permit") for permit in ("", "\udfff")),
        (partial(ON.acquire, "ada", timeout=1), "timeout"),
        *((partial(ON.acquire, "ada", wait=True, timeout=seconds), "timeout")
          for seconds in (-1, float("nan"))),
        (partial(ON.close, "ada"), "until"),
        (partial(ON.close, "ada", timedelta(0)), "length"),
        (partial(ON.close, "ada", until=datetime.max.replace(tzinfo=UTC)), "until"),
        (partial(GROUP, [Request("ada"), Request("ada", -1)]), "n"),
        *((partial(GROUP, group), "requests") for group in (None, "ada", [Request("ada"), "ben"])),
        *((partial(GROUP, [Request("ada", limits=limits)]), "limits") for limits in ((3,), (0, 0))),
        (partial(on, prefix="a:b"), "prefix"),
        (partial(on, tag=""), "tag"),
        (partial(on, on_error="ignore"), "on_error"),
        (partial(on, remember=timedelta(0)), "remember"),
        *((partial(ONE.on, cast(Any, client)), "client")
          for client in ("redis://", CLIENT.pipeline(), redis.asyncio.Redis().pipeline())),
        (partial(Limits([ONE] * 2).on(CLIENT).acquire, "ada"), "limits"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_before_any_call(call: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        call()
    assert refused.value.field == field


def test_limits_are_values() -> None:
    every = [*(make(5) for make in ALL.values()), CoolDown()]
    assert pickle.loads(pickle.dumps(every)) == every  # noqa: S301 - our own bytes
    assert len({*every, *every}) == len(every)
    assert len({limit.label for limit in every}) == len(every)


PER_LENGTH = {name: make for name, make in COUNTED.items() if make(1, MINUTE).length_ms}


@pytest.mark.parametrize("make", PER_LENGTH.values(), ids=PER_LENGTH)
def test_a_unit_is_the_length_that_it_stands_for(make: Callable[..., Algorithm]) -> None:
    for unit, length in (("second", 1), ("minute", 60), ("hour", 3_600), ("week", 604_800)):
        assert make(1, unit) == make(1, timedelta(seconds=length))
        assert make(1, unit).label == make(1, timedelta(seconds=length)).label


def test_both_limiters_have_the_same_methods() -> None:
    def methods(of: type) -> dict[str, list[tuple[str, object]]]:
        return {
            name: [(word.name, word.default) for word in inspect.signature(f).parameters.values()]
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
    checked = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), **wrong},
        capture_output=True,
        text=True,
        check=True,
    )
    assert checked.stdout.strip() == "5/minute Limiter"
