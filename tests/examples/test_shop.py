"""The shop: what it submits, and the page that it leaves open."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from dispatcher.times.clock import SystemClock
from examples.shop import SETTINGS, Shop
from tests.support.environment import child_environment
from tests.support.house import House, house_on
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workplace import inhabitants


@pytest.fixture
def house(redis_server: RedisServer, sqlite_url: str) -> Iterator[House]:
    """Give a house with the settings of the shop."""
    with house_on(redis_server, sqlite_url, clock=SystemClock(), **SETTINGS) as house:
        yield house


def test_it_fills_the_next_day_on_each_channel(house: House) -> None:
    Shop(house.dispatcher).open()
    messages = [*house.dispatcher.select()]
    assert {each.channel for each in messages} == {"email", "sms", "push"}
    assert {each.scopes["tenant"] for each in messages} == {"bakery", "bookshop"}
    assert len([each for each in messages if each.campaign == "advent"]) > 200


@pytest.mark.long
def test_its_page_opens_and_it_leaves_nothing_behind(folder: Path) -> None:
    said = folder / "said"
    with said.open("w") as out:
        running = subprocess.Popen(
            [sys.executable, "-m", "examples.shop"], cwd=folder,
            env={**child_environment(), "TMPDIR": str(folder)}, stdout=out, stderr=out,
        )  # fmt: skip
        try:
            found = wait_until(lambda: re.search(r"page: (http://[^/]*)/", said.read_text()))
            assert found is not None
            with urlopen(found[1], timeout=60) as page:  # noqa: S310 - ours
                assert page.status == 200
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0, said.read_text()
    assert [*folder.iterdir()] == [said]
    assert not inhabitants(folder)
