"""The page on a house: as a client sees it, and in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Browser

from dispatcher.web import Access, Caller, Loopback, Right, page
from dispatcher.web.pages import cached_figures
from tests.support.browser import Tab, chromium, served
from tests.support.house import House

Visit = Callable[..., TestClient]


@pytest.fixture
def visit(house: House) -> Iterator[Visit]:
    """Give a maker of clients on this machine, who have these rights, all by default."""
    made: list[TestClient] = []

    def make(
        *rights: Right, of: House = house, access: Access | None = None, **caller: object
    ) -> TestClient:
        given = Caller(name="ops", rights=frozenset(rights or Right), **caller)  # type: ignore[arg-type]  # passed on
        client = TestClient(
            page(of.dispatcher, access=access or (lambda _: given)),
            base_url="http://localhost",
            client=("127.0.0.1", 50_000),
            headers={"Sec-Fetch-Site": "same-origin"},
            follow_redirects=False,
        )
        made.append(client)
        return client

    yield make
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let visits wait for the first figure also on a machine that is busy."""
    monkeypatch.setattr(cached_figures, "_FIRST_WAIT_SECONDS", 30.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def opened_tab(house: House, browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Give a maker of tabs on the served page; takes an application, or rights."""
    with ExitStack() as stack:

        def make(
            app: object = None,
            *,
            rights: Iterable[Right] = Right,
            scheme: str = "light",
            java_script: bool = True,
        ) -> Tab:
            served_app = app or page(house.dispatcher, access=Loopback(name="ops", rights=rights))
            address = stack.enter_context(served(served_app))
            context = browser.new_context(
                color_scheme=scheme,  # type: ignore[arg-type]  # light or dark
                java_script_enabled=java_script,
            )
            stack.callback(context.close)
            return Tab(context.new_page(), address)

        yield make
