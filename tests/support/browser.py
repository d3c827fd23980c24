"""A real Chromium, and a server for what it looks at."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, ElementHandle, Page, sync_playwright

from tests.support.requiring import missing
from tests.support.waiting import DEADLINE, wait_until

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_SANDBOX = ["--no-sandbox"]
"""Chromium has none where root starts it, as in a container. It sees the tests' pages alone."""

_DEADLINE_MS = 3 * DEADLINE * 1_000
"""For a test that hangs: no verdict depends on the speed of the machine."""

_RULES = {"rules": {"target-size": {"enabled": True}}}
"""The rule of WCAG 2.2 AA that axe leaves out by default."""


def path_of_chromium() -> str:
    """Return the program of Chromium. Skips where there is none, unless it is required."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        missing("chromium", "no Chromium: apt-get install chromium")
    return program


@contextmanager
def chromium() -> Iterator[Browser]:
    path = path_of_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_SANDBOX)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(app: Any) -> Iterator[str]:
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Tab:
    """A tab of Chromium on a served application. It keeps every error of the console."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.errors: list[str] = []
        page.set_default_timeout(_DEADLINE_MS)
        page.emulate_media(reduced_motion="reduce")  # axe would measure colours on their way
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.address}{path}", wait_until="load")
        return self.page

    def violations(self) -> list[str]:
        found = Axe().run(self.page, options=_RULES).response["violations"]
        return [
            f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for violation in found
            for node in violation["nodes"]
        ]

    def walk(self) -> Iterator[ElementHandle]:
        """Press Tab through the page; yield each element that has the focus, once."""
        self.page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
        self.page.evaluate("window.walked = []")
        while True:
            self.page.keyboard.press("Tab")
            focused = self.page.evaluate_handle("document.activeElement").as_element()
            assert focused is not None
            if not focused.evaluate("e => e !== document.body && !walked.includes(e)"):
                return
            focused.evaluate("e => walked.push(e)")
            yield focused

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)
