"""The page on a house: as a client sees it, and in Chromium."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Browser

from dispatcher import Message, PerhapsSent, QuietHours, QuotaExceeded, Status
from dispatcher.web import Access, Caller, Loopback, Right, bounds, page
from dispatcher.web.pages import PAGES
from tests.support.browser import Tab, chromium, served
from tests.support.house import FAR, House, hour_ago

HOUR = timedelta(hours=1)
PATHS = sorted({page.path for page in PAGES if page.method == "GET" and "{" not in page.path})
"""Of each page that is there once, the path."""
Visit = Callable[..., TestClient]


@contextmanager
def at_present(house: House) -> Iterator[None]:
    """Let the clock of a house be an hour slow for a while: what is submitted now is due."""
    before = house.clock.now()
    house.moved.set_wall(hour_ago().now())
    try:
        yield
    finally:
        house.moved.set_wall(before)


def hold(house: House, recipient: str = "ada") -> Message:
    """Return a message that is held: the provider had it and did not answer."""
    with at_present(house):
        message = house.submit(recipient, on_unknown="hold")
        house.fail_sends(PerhapsSent("the line broke after the final dot"))
        house.deliver(message)
    message = house.again(message)
    assert message.status is Status.HELD
    return message


def paths(house: House) -> dict[str, str]:
    """Return an address of each page, with something on it."""
    message = house.submit(send_at=FAR + HOUR, campaign="summer")
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=FAR + HOUR)
    with pytest.raises(QuietHours):
        house.submit("bob", send_at=FAR + HOUR, quiet_hours="12:00-14:00")
    with at_present(house):
        house.submit("dan", send_in=3 * HOUR)
    hold(house, "cyd")
    house.dispatcher.suppress("eve")
    house.dispatcher.pause("recipient", "eve")
    house.dispatcher.set_quotas("recipient", "eve", "9/day")
    return {
        "/": "/",
        "/calendar": f"/calendar?recipient=ada&channel=memory&at={FAR + HOUR:%Y-%m-%dT%H:%M}",
        "/messages": "/messages",
        "/messages/bulk": "/messages/bulk?do=reschedule",
        "/messages/{message_id}": f"/messages/{message.id}",
        "/held": "/held",
        "/campaigns": "/campaigns?campaign=summer",
        "/load": "/load",
        "/top": "/top",
        "/refusals": "/refusals?quota=1/minute",
        "/suppressions": "/suppressions",
        "/pauses": "/pauses",
        "/quotas": "/quotas",
        "/doctor": "/doctor",
    }


@pytest.fixture
def visit(house: House) -> Iterator[Visit]:
    """Give a maker of clients on this machine, who have these rights, all by default."""
    made: list[TestClient] = []

    def make(
        *rights: Right, of: House = house, access: Access | None = None, **caller: object
    ) -> TestClient:
        visitor = Caller(name="ops", rights=frozenset(rights or Right), **caller)  # type: ignore[arg-type]  # passed on
        client = TestClient(
            page(of.dispatcher, access=access or (lambda _: visitor)),
            base_url="http://localhost",
            client=("127.0.0.1", 50_000),
            headers={"Sec-Fetch-Site": "same-origin"},
            follow_redirects=False,
        )
        made.append(client)
        return client

    yield make
    for browser in made:
        browser.close()


@pytest.fixture
def actions() -> Iterator[list[str]]:
    """Give the actions that the page logs, and no other line, at any level of the run."""
    log, texts = logging.getLogger("dispatcher.web.pages"), list[str]()
    handler, before = logging.Handler(), log.level
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield texts
    log.removeHandler(handler)
    log.setLevel(before)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let visits wait for the first figure also on a machine that is busy."""
    monkeypatch.setattr(bounds, "_FIRST_WAIT_SECONDS", 30.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(house: House, browser: Browser) -> Iterator[Tab]:
    app = page(house.dispatcher, access=Loopback(name="ops", rights=Right))
    with served(app) as address, browser.new_context(color_scheme="light") as context:
        yield Tab(context.new_page(), address)
