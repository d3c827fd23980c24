"""A person at the admin of the example shop, in a real Chromium."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from playwright.sync_api import expect

from dispatcher import Status
from tests.django.conftest import Project
from tests.django.test_atomic import submit
from tests.support import browser

pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("django_url", ["sqlite"], indirect=True),
]
LIST = "/admin/dispatcher/message/"


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass


@contextmanager
def served(project: Project) -> Iterator[str]:
    """Serve the shop with the admin's style sheets."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
    server.set_app(StaticFilesHandler(project.shop.application))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def member(name: str, *permissions: str) -> None:
    """Make a member of the staff. Not while Chromium runs: its client has a loop in this thread."""
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415 - after the set-up

    one = User.objects.create_user(name, password="secret", is_staff=True)  # noqa: S106 - none
    one.user_permissions.set(Permission.objects.filter(codename__in=permissions))


def logged_in(tab: Any, name: str) -> Any:
    tab.page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    page = tab.go("/admin/")
    page.fill("#id_username", name)
    page.fill("#id_password", "secret")
    page.click("input[type=submit]")
    return page


def test_a_person_finds_cancels_and_suppresses(project: Project) -> None:
    message = submit(project)
    other = submit(project, "grace@example.org", channel="email")
    member(
        "ops", "view_message", "view_body", "cancel_message", "view_suppression", "add_suppression"
    )
    with served(project) as address, browser.chromium() as chromium:
        tab = browser.Tab(chromium.new_page(), address)
        page = logged_in(tab, "ops")
        page.click("text=Messages")
        expect(page.locator("#result_list tbody tr")).to_have_count(2)
        page.fill("#id_recipient", "ada@example.org")
        page.click("#filters input[type=submit]")
        expect(page.locator("#result_list tbody tr")).to_have_count(1)
        page.click(f"text={message.id}")
        expect(page.locator("#fields")).to_contain_text("ada@example.org")
        assert page.locator("form#move").count() == 0
        button = page.locator("form#cancel input[type=submit]")
        expect(button).to_be_hidden()  # it asks first
        page.locator("summary", has_text="Cancel").press("Enter")
        button.press("Enter")
        expect(page.locator(".messagelist")).to_contain_text("was cancelled")
        assert page.locator("form#cancel").count() == 0
        tab.go(LIST)
        page.click(".object-tools >> text=Suppressions")
        page.fill("#suppress input[name=recipient]", "grace@example.org")
        page.click("#suppress input[type=submit]")
        expect(page.locator(".messagelist")).to_contain_text("1 messages were cancelled")
        assert "grace@example.org" in page.inner_text("#result_list")
        assert tab.errors == []
    for each in (message, other):
        assert project.dispatcher.get(each.id).status is Status.CANCELLED


def test_a_person_without_the_right_sees_no_recipient(project: Project) -> None:
    message = submit(project)
    member("guest", "view_message")
    with served(project) as address, browser.chromium() as chromium:
        tab = browser.Tab(chromium.new_page(), address)
        page = logged_in(tab, "guest")
        page.click("text=Messages")
        expect(page.locator("#id_recipient")).to_have_count(0)
        page.click(f"text={message.id}")
        expect(page.locator("#fields")).to_be_visible()
        assert not re.search(r"\bada\b", page.content())
        assert page.locator("form[method=post] >> text=Cancel").count() == 0
        assert tab.errors == []
