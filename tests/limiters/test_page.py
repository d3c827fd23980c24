"""The code on docs/limiters.md does what the page says, and its picture is the one drawn."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

from dispatcher.limiters import State
from docs.pictures.draw_limiters import PICTURE, decisions, limits, svg
from tests.support.limiters import Clocked, exported_limits
from tests.support.servers import RedisServer

PAGE = Path(__file__).parents[2] / "docs/limiters.md"


def test_the_code_of_the_page_runs(redis_server: RedisServer) -> None:
    names: dict[str, Any] = {
        "__name__": "page", "redis_url": redis_server.url, "broker_url": "memory://",
    }  # fmt: skip
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(code, PAGE.name, "exec", dont_inherit=True), names)  # noqa: S102 - our own page
    assert names["greet"]("ben") == "hello ben"
    assert [name.allowed for name in names["decisions"]] == [True, True]
    letters, posted = deque(str(number) for number in range(1_001)), list[str]()
    names["post"] = posted.append
    assert names["send_some"](letters) is State.REACHED
    assert (len(posted), len(letters)) == (1_000, 1)
    assert names["send_some"](letters) is State.REFUSED


def test_every_limit_has_a_row_and_a_paragraph_by_the_clock() -> None:
    classes = {limit.__name__ for limit in exported_limits()}
    table = PAGE.read_text().split("## Choosing a limiter")[1].split("\n\n")[1]
    assert classes - set(re.findall(r"`(\w+)", table)) == set()
    assert {type(limit).__name__ for limit in limits().values()} == classes


def test_the_picture_is_the_one_that_the_script_draws(moved: Clocked) -> None:
    assert PICTURE.read_text(encoding="utf-8") == svg(decisions(moved))
