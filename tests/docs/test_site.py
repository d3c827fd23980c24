"""The built site in Chromium: it fits a screen of 1280 px, and its interactive page answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from tests.support.browser import Tab, chromium, served

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
SCREEN = {"width": 1280, "height": 800}
_STICKS_OUT = """() => {
  const found = [];
  const page = document.scrollingElement.scrollWidth;
  if (page > 1280) found.push(`the page is ${page} px wide`);
  for (const each of document.querySelectorAll(
      '.md-content pre, .md-content pre > code, .md-content table, .md-content svg,'
      + '.md-content img, .md-typeset__scrollwrap')) {
    const box = each.getBoundingClientRect();
    const column = each.closest('.md-content').getBoundingClientRect();
    const scrolls = each.scrollWidth > each.clientWidth + 1
      && each.matches('pre, code, .md-typeset__scrollwrap');
    if (box.width && (box.right > column.right + 1 || scrolls)) {
      found.push(`${each.tagName}: ${each.textContent.trim().slice(0, 60)}`);
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    files = StaticFiles(directory=site, html=True)
    with served(Starlette(routes=[Mount("/", files)])) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def tab(browser: Browser, address: str) -> Iterator[Tab]:
    with browser.new_context(viewport=SCREEN) as context:  # type: ignore[arg-type]  # a TypedDict
        yield Tab(context.new_page(), address)


def test_no_page_scrolls_sideways_or_loads_from_other_hosts(tab: Tab, site: Path) -> None:
    pages = [str(each.relative_to(site)) for each in sorted(site.rglob("*.html"))]
    assert len(pages) > 20
    hosts: set[str] = set()
    tab.page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    wide = {each: tab.go(f"/{each}").evaluate(_STICKS_OUT) for each in pages}
    assert {each: found for each, found in wide.items() if found} == {}
    assert hosts == {tab.address.split("/")[2]}
    assert tab.errors == []


def verdict(page: Page) -> str:
    return page.locator("#pg-verdict").inner_text()


def click_at(page: Page, share: float) -> None:
    """Click into the plot, so far from its left edge to its right one."""
    slider = page.locator("#pg-asked").bounding_box()
    chart = page.locator("#pg-chart svg").bounding_box()
    assert slider
    assert chart
    left, width = slider["x"] + 8, slider["width"] - 16
    page.mouse.click(left + share * width, chart["y"] + chart["height"] / 2)


def test_why_refused_answers_clicks_and_keys(tab: Tab) -> None:
    page = tab.go("/why-refused.html")
    assert "10:40 is refused by 2/hour" in verdict(page)
    assert "10:00, 10:20 and 10:40 would be 3 messages within 40 minutes" in verdict(page)
    assert page.locator(".pg-ring").count() == 2, "the messages in the way"
    click_at(page, 0.9)  # 13:00 of 08:30 to 13:30
    assert "13:00 is booked" in verdict(page)
    click_at(page, 0.3)
    assert "10:00 is refused by 2/hour" in verdict(page)
    assert page.locator(".pg-dot").count() == 4, "a refusal books nothing"
    page.locator("#pg-shift").press("Enter")
    assert "11:00 is booked" in verdict(page)
    page.get_by_label("Cancel 10:20").press("Enter")
    assert "10:20 is cancelled" in verdict(page)
    page.get_by_label("Time to ask for").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "08:35 fits" in verdict(page)
    page.locator("#pg-book").press("Enter")
    assert page.locator(".pg-dot").count() == 5
    page.locator("#pg-quotas").fill("1/3 hours, nonsense")
    assert "cannot read “nonsense”" in page.locator("#pg-problem").inner_text()
    page.locator("#pg-quotas").fill("1/3 hours")
    page.locator("#pg-quiet").fill("08:00-09:00")
    assert "08:35 is refused by quiet hours" in verdict(page)
    assert tab.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_why_refused_is_readable_by_all(browser: Browser, address: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
    with context:
        tab = Tab(context.new_page(), address)
        page = tab.go("/why-refused.html")
        for scene in page.locator("#pg-scene option").all_inner_texts():
            page.locator("#pg-scene").select_option(scene)
            assert tab.violations() == [], scene
