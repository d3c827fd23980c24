"""The shop: what it submits, and the page that it leaves open."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatcher.times.clock import SystemClock
from examples.shop import SETTINGS, Shop
from tests.support.browser import Tab, chromium
from tests.support.environment import child_environment
from tests.support.house import House, house_on
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workplace import inhabitants, workplace


@pytest.fixture
def folder() -> Iterator[Path]:
    with workplace() as path:
        yield path


@pytest.fixture
def house(redis_server: RedisServer, sqlite_template: Path, tmp_path: Path) -> Iterator[House]:
    """Give a house with the settings of the shop."""
    path = tmp_path / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    url = f"sqlite:///{path}"
    with house_on(redis_server, url, clock=SystemClock(), **SETTINGS) as house:
        yield house


def test_it_fills_the_next_day_on_each_channel(house: House) -> None:
    Shop(house.dispatcher).open()
    messages = [*house.dispatcher.select()]
    assert {each.channel for each in messages} == {"email", "sms", "push"}
    assert {each.scopes["tenant"] for each in messages} == {"bakery", "bookshop"}
    assert len([each for each in messages if each.campaign == "advent"]) > 200


@pytest.mark.long
def test_its_page_tells_what_happens(folder: Path) -> None:
    """Its page alone tells why a message is refused, and when it could go.

    It has three channels, a campaign that overbooks a minute, two tenants, and a provider that
    fails.
    """
    said = folder / "said"
    with chromium() as browser, said.open("w") as out:
        running = subprocess.Popen(
            [sys.executable, "-m", "examples.shop"], cwd=folder,
            env={**child_environment(), "TMPDIR": str(folder)}, stdout=out, stderr=out,
        )  # fmt: skip
        try:
            found = wait_until(lambda: re.search(r"page: (http://[^/]*)/", said.read_text()))
            assert found is not None
            tab = Tab(browser.new_page(), found[1])
            page = tab.go("/messages?status=scheduled&channel=email")
            row = page.locator("tbody tr").last
            recipient = row.locator("td").nth(3).inner_text()
            promised = row.locator("time").first.get_attribute("datetime") or ""
            page = tab.go("/")
            page.get_by_label("Recipient").fill(recipient)
            page.get_by_role("textbox", name="At 10:40").fill(promised)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="is refused").wait_for()
            told = page.locator(".verdict").inner_text()
            assert "It would break the quota" in told
            assert "It could go at" in told
            channels = tab.go("/").locator("table").first.locator("th[scope=row]")
            assert channels.all_inner_texts() == ["email", "push", "sms"]
            load = tab.go("/load?within=day&channel=email").locator("section").inner_text()
            assert "1 minute is overbooked" in load
            booked = tab.go("/campaigns?campaign=advent").locator("section td a")
            assert sum(int(each) for each in booked.all_inner_texts()) > 0
            ids = {
                tenant: set(
                    tab.go(f"/messages?count.tenant={tenant}").locator("code").all_inner_texts()
                )
                for tenant in ("bakery", "bookshop")
            }
            assert all(ids.values())
            assert not ids["bakery"] & ids["bookshop"]
            tab.go(wait_until(lambda: story_of_a_failure(tab), 300, every=1))
            told = tab.page.locator(".steps").inner_text()
            assert re.search(
                "temporary.* 503 the provider is overloaded|unknown.* the line broke", told
            )
            assert tab.errors == []
            tab.page.context.close()
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0, said.read_text()
    assert [*folder.iterdir()] == [said]
    assert not inhabitants(folder)


def story_of_a_failure(tab: Tab) -> str:
    """Return the path of the story of a message that the provider of ``sms`` did not take at once.

    Such a message is held, waits for a further attempt, or was sent by one.
    """
    now = datetime.now(UTC)
    for wanted in (
        "status=held",
        f"status=scheduled&until={now:%Y-%m-%dT%H:%M:%SZ}",
        "status=sent",
    ):
        page = tab.go(f"/messages?channel=sms&{wanted}")
        is_sent = wanted == "status=sent"
        rows = page.locator("tbody tr").filter(has_text="2 of 3" if is_sent else "1 of 3")
        if rows.count():
            return rows.first.get_by_role("link").get_attribute("href") or ""
    return ""
