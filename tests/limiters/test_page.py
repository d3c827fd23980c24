"""The code on docs/limiters.md does what the page says, and its picture is the one drawn."""

from __future__ import annotations

import os
import re
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from dispatcher.limiters import FixedWindow, Request, SlidingList, SlidingLog, State
from dispatcher.limiters.algorithms import CountPerLength
from docs.pictures.draw_limiters import PICTURE, decisions, limits, svg
from tests.support.limiters import Clocked, exported_limits
from tests.support.servers import REDIS, RedisServer

PAGE = Path(__file__).parents[2] / "docs/limiters.md"
_runs = count()  # Celery knows a task by its module's name


@pytest.fixture
def names(redis_server: RedisServer) -> dict[str, Any]:
    """Run all code of the page; give its names."""
    return run_page(redis_server.url)


def run_page(redis_url: str, broker_url: str = "memory://") -> dict[str, Any]:
    found: dict[str, Any] = {
        "__name__": f"page {next(_runs)}", "redis_url": redis_url, "broker_url": broker_url,
    }  # fmt: skip
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(code, PAGE.name, "exec", dont_inherit=True), found)  # noqa: S102 - our own page
    return found


def test_the_code_of_the_page_runs(names: dict[str, Any]) -> None:
    assert names["greet"]("ben") == "hello ben"
    assert [each.allowed for each in names["decisions"]] == [True, True]


@pytest.mark.parametrize(
    ("limit", "permits", "told"),
    [
        (SlidingList(9_000, "hour"), 8_000, "N times, (11) bytes each"),
        (SlidingLog(9_000, "hour"), 100, "(25) bytes each, beyond 128"),
        (SlidingLog(9_000, "hour"), 8_000, "beyond 128 of them (110)"),
        (FixedWindow(9_000, "hour"), 500, "It costs (20) bytes for each permit"),
        (FixedWindow(9_000, "hour"), 1_000, "(85) for a key that takes more than 512"),
    ],
)
def test_a_permit_weighs_what_the_page_says(
    limit: CountPerLength, permits: int, told: str, moved: Clocked
) -> None:
    """Redis itself tells the bytes of the one key that grows; how tables grow makes a tenth."""
    limiter = limit.on(moved)
    for _ in range(0, permits, 100):
        limiter.acquire_each([Request("ada")] * 100)
    keys = [
        key
        for key in cast("list[bytes]", moved.keys("{limits:ada}*"))
        if (b":permits:" in key) == isinstance(limit, FixedWindow)
    ]
    [size] = [cast(int, moved.memory_usage(key, samples=0)) for key in keys]
    found = re.search(told, PAGE.read_text())
    assert found is not None
    weighs, least = int(found[1]), 0.4 if os.environ.get(REDIS) else 0.88  # newer ones pack closer
    assert least * weighs < size / permits < 1.12 * weighs


def test_a_batch_pauses_when_its_limit_is_reached(own_redis: RedisServer) -> None:
    names = run_page(own_redis.url)
    letters, posted = deque(str(number) for number in range(1_002)), list[str]()
    names["post"] = posted.append
    assert names["send_some"](deque(["first"])) is State.ALLOWED
    assert names["send_some"](letters) is State.REACHED
    assert (len(posted), len(letters)) == (1_000, 3)
    assert names["send_some"](letters) is State.REFUSED
    own_redis.stop()
    assert names["send_some"](letters) is State.UNKNOWN
    assert (len(posted), len(letters)) == (1_000, 3), "nothing is sent without a permit"


def test_every_limit_has_a_row_and_a_paragraph_by_the_clock() -> None:
    classes = {each.__name__ for each in exported_limits()}
    table = PAGE.read_text().split("## Choosing a limiter")[1].split("\n\n")[1]
    assert classes - set(re.findall(r"`(\w+)", table)) == set()
    assert {type(each).__name__ for each in limits().values()} == classes


def test_the_picture_is_the_one_that_the_script_draws(moved: Clocked) -> None:
    assert PICTURE.read_text(encoding="utf-8") == svg(decisions(moved))
