"""The page in a real Chromium: accessible, without errors, and usable by keyboard."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from dispatcher import Status
from dispatcher.web import page_and_api
from dispatcher.web.access import add_key
from dispatcher.web.pages.navigation import PAGES
from tests.support.browser import Tab, served
from tests.support.house import FAR, House
from tests.web.pages.test_actions import hold

HOUR = timedelta(hours=1)
Open = Callable[..., Tab]
UPLOAD = "/campaigns/uploads/{token}"  # test_campaigns.py
EVERY = {each.path for each in PAGES if each.method == "GET"} - {"/live", UPLOAD, f"{UPLOAD}/live"}


def paths(house: House) -> dict[str, str]:
    """Return an address of each page, with something on it."""
    message = house.submit(send_at=FAR + HOUR)
    house.dispatcher.suppress("eve")
    house.dispatcher.pause("recipient", "eve")
    return {
        "/": "/",
        "/calendar": f"/calendar?recipient=ada&channel=memory&at={FAR + HOUR:%Y-%m-%dT%H:%M}",
        "/messages": "/messages",
        "/messages/bulk": "/messages/bulk?do=reschedule",
        "/messages/{message_id}": f"/messages/{message.id}",
        "/held": "/held",
        "/campaigns": "/campaigns?campaign=summer",
        "/load": "/load",
        "/refusals": "/refusals?what_if=2/minute",
        "/suppressions": "/suppressions",
        "/pauses": "/pauses",
        "/doctor": "/doctor",
    }


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_no_page_has_a_barrier_or_an_error(house: House, opened_tab: Open, scheme: str) -> None:
    tab = opened_tab(scheme=scheme)
    addresses = paths(house)
    assert addresses.keys() == EVERY, "each page has an address here"
    for path in addresses.values():
        tab.go(path)
        assert tab.violations() == [], path
    tab.page.get_by_role("button", name="Examine now").click()
    tab.page.get_by_role("heading", name="Findings").wait_for()
    assert tab.violations() == []
    assert tab.errors == []


def test_a_refusal_is_explained_by_the_page_alone(house: House, opened_tab: Open) -> None:
    message = house.submit(send_at=FAR + HOUR)
    tab = opened_tab()
    at = tab.go("/").get_by_role("textbox", name="At 10:40")
    tab.page.get_by_label("Recipient").fill("ada")
    at.fill("2100-01-01T12:00")
    at.press("Enter")
    tab.page.get_by_role("heading", name="No: Fri 01 Jan 2100 12:00:00 is refused").wait_for()
    assert "1/minute of ada" in tab.page.locator(".verdict").inner_text()
    assert "Fri 01 Jan 2100 12:01:00, 1 minute later" in tab.page.locator(".verdict").inner_text()
    tab.page.locator(".verdict a").click()
    tab.page.get_by_role("heading", name=str(message.id)).wait_for()
    assert tab.errors == []


def test_a_booking_in_the_picture_is_reached_by_keyboard(house: House, opened_tab: Open) -> None:
    message = house.submit(send_at=FAR + HOUR)
    tab = opened_tab()
    page = tab.go("/calendar?recipient=ada&channel=memory")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('svg') !== null"):
            break
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=str(message.id)).wait_for()


def test_numbers_change_without_a_reload(house: House, opened_tab: Open) -> None:
    tab = opened_tab()
    due = tab.go("/").locator('[data-number="all.held"]')
    assert due.inner_text() == "0"
    now = tab.page.locator('[data-number="now"]')
    before = now.inner_text()
    tab.page.wait_for_function(
        "before => document.querySelector('[data-number=now]').textContent !== before", arg=before
    )
    assert tab.errors == []


@pytest.mark.long
def test_signing_in_and_out(house: House, opened_tab: Open) -> None:
    _, token = add_key(house.parts.api_keys, "shop")
    tab = opened_tab(page_and_api(house.dispatcher))
    page = tab.go("/messages")
    assert tab.violations() == []
    page.get_by_label("Key").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Messages").wait_for()
    assert page.url.endswith("/messages")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    assert tab.errors == []


@pytest.mark.long
def test_a_form_of_another_site_does_nothing(house: House, opened_tab: Open) -> None:
    """The other site is another port of this machine under another name."""
    tab = opened_tab()
    form = (
        f'<form method="post" action="{tab.address}/doctor"><button>Win a prize</button></form>'
    ).encode()

    async def other(scope: dict[str, object], receive: object, send: object) -> None:
        from starlette.responses import HTMLResponse  # noqa: PLC0415 - only here

        await HTMLResponse(form)(scope, receive, send)  # type: ignore[arg-type]  # plain ASGI

    with served(other) as address:
        tab.page.goto(address.replace("127.0.0.1", "localhost"))
        with tab.page.expect_response("**/doctor") as answered:
            tab.page.get_by_role("button").click()
    assert answered.value.status == 403


def test_a_person_moves_and_cancels_a_message(house: House, opened_tab: Open) -> None:
    message = house.submit(send_at=FAR + HOUR)
    tab = opened_tab()
    page = tab.go(f"/messages/{message.id}")
    page.get_by_label("Move to").fill("2100-01-01 18:00")
    page.keyboard.press("Enter")
    page.get_by_text("Done: moved.").wait_for()
    assert house.again(message).send_at == FAR + 7 * HOUR
    page.get_by_role("button", name="Cancel the message").click()
    page.get_by_text("Done: cancelled.").wait_for()
    assert house.again(message).status is Status.CANCELLED
    assert (tab.violations(), tab.errors) == ([], [])


@pytest.mark.long
def test_a_person_releases_and_drops_held_messages(house: House, opened_tab: Open) -> None:
    first, second = (hold(house, house.submit(each, send_at=FAR)) for each in ("ada", "ben"))
    tab = opened_tab()
    page = tab.go("/held")
    assert tab.violations() == []
    page.get_by_role("button", name=f"Release {first.id}").click()
    page.get_by_text("Done: released").wait_for()
    tab.go("/held").get_by_role("link", name=f"Drop {second.id}").click()
    assert tab.violations() == []
    page.get_by_label("Reason").fill("the provider has it")
    page.get_by_role("button", name="Drop").click()
    page.get_by_text("Done: dropped").wait_for()
    assert house.again(first).status is Status.SCHEDULED
    assert house.again(second).status is Status.FAILED
    assert tab.errors == []


@pytest.mark.long
def test_a_person_cancels_all_that_match(house: House, opened_tab: Open) -> None:
    meant = [house.submit(each, send_at=FAR + HOUR) for each in ("ada", "ben")]
    tab = opened_tab()
    page = tab.go("/messages")
    page.get_by_label("Status").select_option("scheduled")
    page.get_by_role("button", name="List").click()
    page.get_by_role("link", name="cancel", exact=True).click()
    assert tab.violations() == []
    page.get_by_role("button", name="Cancel 2 messages").click()
    page.get_by_role("heading", name="Cancel: 2 of 2 done").wait_for()
    assert (tab.violations(), tab.errors) == ([], [])
    assert {house.again(each).status for each in meant} == {Status.CANCELLED}


@pytest.mark.long
def test_every_page_is_used_without_scripts(house: House, opened_tab: Open) -> None:
    tab = opened_tab(java_script=False)
    for path in paths(house).values():
        assert tab.go(path).get_by_role("heading", level=1).count() == 1
    tab.go("/").get_by_role("textbox", name="Recipient").fill("ada")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.get_by_role("heading", name="The same as a table").wait_for()


def test_the_first_page_is_small(house: House, opened_tab: Open) -> None:
    for number in range(60):
        house.submit(f"person-{number}@example.org", send_at=FAR + HOUR)
    tab = opened_tab()
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Network.enable")
    for path in ("/", "/messages", "/calendar?recipient=ada&channel=memory&view=week"):
        read = list[int]()
        session.send("Network.clearBrowserCache")
        session.on("Network.loadingFinished", lambda e, to=read: to.append(e["encodedDataLength"]))
        tab.go(path)
        assert len(read) >= 2
        assert sum(read) <= 60_000, path
