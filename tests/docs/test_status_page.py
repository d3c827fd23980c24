"""docs/transports.md, status webhooks: its settings load, and it shows what is told."""

from __future__ import annotations

import json
import re
import tomllib
from types import SimpleNamespace
from typing import Any, cast

from dispatcher import Settings
from dispatcher.message import Status
from dispatcher.store.notifications import Reason, body_of
from dispatcher.store.schema import NOTIFIED_STATUSES
from dispatcher.testing import a_message
from dispatcher.transports import load
from dispatcher.transports.webhook import WebhookTransport
from tests.docs.pages import blocks, page

PAGE = page("docs/transports.md").split("\n## Status webhooks\n")[1].split("\n## ")[0]


def test_the_settings_of_the_page_load() -> None:
    [block] = blocks(PAGE, "toml")
    settings = Settings.load(**tomllib.loads(block))
    channel = settings.channels[settings.status_channel]
    assert isinstance(load("status", channel, settings), WebhookTransport)


def test_the_page_shows_what_is_told() -> None:
    [block] = blocks(PAGE, "json")
    shown = json.loads(block)
    message = a_message()
    values = {name: getattr(message, name) for name in message.__dataclass_fields__}
    row = cast("Any", SimpleNamespace(**values, now=message.created_at))
    told = cast("Any", body_of(row, None, tells_errors=False))
    assert (list(told), list(told["data"])) == (list(shown), list(shown["data"]))
    assert "recipient" not in told["data"]


def test_the_page_names_each_status_that_is_told() -> None:
    [named] = re.findall(r"`message\.` and the status: (.*?)\.", PAGE)
    assert re.findall(r"`(\w+)`", named) == [each.value for each in NOTIFIED_STATUSES]
    assert set(Status) - set(NOTIFIED_STATUSES) == {Status.SCHEDULED, Status.SENDING}


def test_the_page_explains_every_reason() -> None:
    [table] = re.findall(r"\| status \| `reason` .*?\n\n", PAGE, re.DOTALL)
    named = re.findall(r"^\|[^|]*\| `(\w+)` \|", table, re.MULTILINE)
    assert named == ["reason", *Reason]
