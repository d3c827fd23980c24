"""docs/transports.md on webhooks and Apprise: the settings load, and no option is left out."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from typing import Any

import pytest

from dispatcher import Settings
from dispatcher.testing import a_message
from dispatcher.transports import load
from dispatcher.transports.apprise import AppriseTransport
from dispatcher.transports.webhook import WebhookTransport, receiver_secret
from tests.docs.pages import blocks
from tests.docs.test_transport_page import PAGE

SECTIONS = {"Webhook": WebhookTransport, "Apprise": AppriseTransport}
NOT_OPTIONS = {"self", "timeout", "clock", "resolver"}


def section(name: str) -> str:
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", SECTIONS)
def test_the_settings_of_the_page_make_transports(name: str) -> None:
    shown = blocks(section(name), "toml")
    assert shown
    for block in shown:
        settings = Settings.load(default_channels=False, **tomllib.loads(block))
        for each, channel in settings.channels.items():
            assert isinstance(load(each, channel, settings), SECTIONS[name])


@pytest.mark.parametrize(("name", "transport"), SECTIONS.items())
def test_the_page_has_every_option(name: str, transport: type) -> None:
    table = section(name).split("| option | means |")[1].split("\n\n")[0]
    parameters = inspect.signature(transport).parameters.keys() - NOT_OPTIONS
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == parameters


def test_the_payload_of_the_page_is_what_is_posted() -> None:
    [block] = blocks(section("Webhook"), "json")
    shown = json.loads(block)
    content = WebhookTransport()._content(a_message())
    assert list(json.loads(content)) == list(shown)
    assert json.loads(content)["version"] == shown["version"]


def test_the_key_of_a_receiver_is_made_as_the_page_says() -> None:
    [made] = [
        block for block in blocks(section("Webhook"), "python") if "def receiver_secret" in block
    ]
    given: dict[str, Any] = {}
    exec(made, given)  # noqa: S102 - our own page
    secret, url = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "https://shop.example/hook?a=1"
    assert given["receiver_secret"](secret, url) == receiver_secret(secret, url)
