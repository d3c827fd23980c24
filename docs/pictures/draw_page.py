"""Takes the screenshots of the page: docs/pictures/page-*.png.

Run ``python -m docs.pictures.draw_page``: it plays ``examples/shop.py`` on real servers, and
looks at it with Chromium.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from dispatcher import Dispatcher, Status
from dispatcher.embedded import environment
from dispatcher.message import Message
from dispatcher.web import Loopback, Right, page
from dispatcher.web.pages import beside
from examples import shop
from tests.support.browser import chromium
from tests.support.waiting import wait_until

FOLDER = Path(__file__).parent
_WIDTH, _HEIGHT = 1_180, 980
_SENT = 12


def main() -> None:
    """Take them."""
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-page-") as folder,
        environment(folder, **shop.SETTINGS) as settings,
        Dispatcher(settings) as dispatcher,
        beside(page(dispatcher, access=Loopback(name="ada", rights=Right))) as address,
    ):
        shop.Shop(dispatcher).open()
        wait_until(lambda: dispatcher.count(status=Status.SENT) > _SENT, 200, every=1)
        waiting = list(dispatcher.select(status=Status.SCHEDULED, channel="email"))
        [(busiest, _)] = Counter(message.recipient for message in waiting).most_common(1)
        refused = next(_refused(message) for message in waiting if message.recipient == busiest)
        _take(address, "light", {"calendar": f"calendar?{refused}", "load": "load?channel=email"})
        _take(address, "dark", {"overview": ""})


def _refused(message: Message) -> str:
    """Return the question whether another message could go 20 seconds after this one."""
    at = (message.send_at + timedelta(seconds=20)).astimezone(ZoneInfo(shop.ZONE))
    return urlencode({"recipient": message.recipient, "channel": "email", "view": "day",
                      "at": f"{at:%Y-%m-%dT%H:%M:%S}"})  # fmt: skip


def _take(address: str, scheme: Literal["light", "dark"], paths: dict[str, str]) -> None:
    with chromium() as browser:
        tab = browser.new_page(color_scheme=scheme, viewport={"width": _WIDTH, "height": _HEIGHT})
        for name, path in paths.items():
            tab.goto(f"{address}{path}")
            tab.screenshot(path=FOLDER / f"page-{name}-{scheme}.png")


if __name__ == "__main__":
    main()
