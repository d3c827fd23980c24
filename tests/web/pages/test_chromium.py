"""The page in a real Chromium: accessible, without errors, and usable by keyboard."""

from __future__ import annotations

import re
from typing import Literal

import pytest

from dispatcher.message import new_id
from dispatcher.web.pages import PAGES
from tests.support.browser import Tab
from tests.support.house import FAR, House
from tests.web.conftest import ON_SQLITE
from tests.web.pages.conftest import HOUR, hold, paths

pytestmark = ON_SQLITE

SCHEMES: tuple[Literal["dark", "light"], ...] = ("light", "dark")
UPLOAD = "/campaigns/uploads/{token}"
EVERY = {page.path for page in PAGES if page.method == "GET"} - {UPLOAD}
ALL = {*EVERY, "findings", "plan", "error"}
FEW = {"/calendar", "/messages", "plan"}
"""What axe looks at."""
FILLED = {
    "/messages": "tbody tr",
    "/held": "tbody tr",
    "/campaigns": "section table",
    "/load": ".chart",
    "/top": "tbody tr",
    "/refusals": "tbody tr",
    "/suppressions": "tbody tr",
    "/pauses": "tbody tr",
    "/quotas": "tbody tr",
}
"""What each page has when there is something on it."""


def plan_a_file(tab: Tab) -> None:
    rows = "".join(f"{name},hello,{FAR + HOUR}\n" for name in ("gus", "hal", "gus"))
    content = f"recipient,text,send_at\n{rows}".encode()
    page = tab.go("/campaigns")
    page.locator("#file").set_input_files(
        {"name": "sale.csv", "mimeType": "text/csv", "buffer": content}
    )
    page.get_by_label("Campaign", exact=True).fill("sale")
    page.get_by_role("combobox", name="Channel").select_option("memory")
    page.get_by_role("button", name="Plan it").click()
    page.get_by_role("heading", name="sale: the plan").wait_for()


@pytest.mark.parametrize("examined", [FEW, pytest.param(ALL, marks=pytest.mark.long)])
def test_no_page_has_a_barrier_or_an_error(house: House, tab: Tab, examined: set[str]) -> None:
    addresses = paths(house)
    assert addresses.keys() == EVERY, "each page has an address here"

    def check(name: str) -> None:
        for scheme in SCHEMES if examined == ALL else SCHEMES[:1]:
            tab.page.emulate_media(color_scheme=scheme)
            assert name not in examined or tab.violations() == [], (name, scheme)

    for name, path in addresses.items():
        tab.go(path)
        assert tab.page.locator(FILLED.get(name, "h1")).count() > 0, f"{path} is empty"
        check(name)
        tab.page.set_viewport_size({"width": 390, "height": 800})  # of a telephone
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        tab.page.set_viewport_size({"width": 1_280, "height": 720})
    tab.page.get_by_role("button", name="Examine now").click()
    tab.page.get_by_role("heading", name="Findings").wait_for()
    check("findings")
    plan_a_file(tab)
    check("plan")
    tab.page.get_by_role("button", name="Book 2 messages").click()
    tab.page.get_by_role("heading", name="sale: booked").wait_for()
    assert tab.errors == []
    for path in ("/no-such-page", f"/messages/{new_id()}"):
        tab.go(path)
        tab.page.get_by_role("heading", name="Not found").wait_for()
        check("error")


_CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, [tabindex='0'], summary"
_HAS_FOCUS = """each => {
    const {outlineStyle, outlineWidth} = getComputedStyle(each);
    const dot = each.closest("svg a")?.querySelector("circle");
    return dot
        ? getComputedStyle(dot).strokeWidth === "4px"
        : outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
}"""
_IS_SEEN = """each => {
    const box = each.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight
        && box.right > 0 && box.left < innerWidth;
}"""


@pytest.mark.long
def test_every_control_is_reached_by_keyboard(house: House, tab: Tab) -> None:
    """A control gets the focus, shows it and lies in view; what it does then is the browser's."""
    for path in paths(house).values():
        expected = tab.go(path).locator(_CONTROLS).filter(visible=True).count()
        names = list[str]()
        for control in tab.walk():
            names.append(f"{path} {control.evaluate('each => each.outerHTML.slice(0, 120)')}")
            assert control.evaluate(_HAS_FOCUS), f"no visible focus: {names[-1]}"
            assert control.evaluate(_IS_SEEN), f"out of view: {names[-1]}"
        assert len(names) == expected, names


def test_numbers_change_without_a_reload(house: House, tab: Tab) -> None:
    held = tab.go("/").locator('[data-number="all.held"]')
    assert held.all_inner_texts() == ["0"]
    tab.page.evaluate("window.isTheSame = true")
    hold(house)
    held.filter(has_text=re.compile("^1$")).wait_for()
    assert tab.page.evaluate("window.isTheSame")
    assert tab.errors == []
