"""docs/transports.md: what it shows works as it stands there."""

from __future__ import annotations

import inspect
import json
import re
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher import InvalidDraft, Settings
from dispatcher.message import Status
from dispatcher.store.notifications import Reason, body_of
from dispatcher.store.schema import NOTIFIED_STATUSES
from dispatcher.testing import TransportSuite, a_message
from dispatcher.transports import Checks, load, mail, smtp
from dispatcher.transports.base import SHIPPED
from dispatcher.transports.smtp import SmtpTransport
from dispatcher.transports.webhook import WebhookTransport, receiver_secret
from tests.docs.pages import blocks, page
from tests.support.http_receiver import Handler, Receiver
from tests.transports.test_names import install

PAGE = page("docs/transports.md")
TRANSPORTS = {name: resolve_name(path) for name, (path, _) in SHIPPED.items()}
SECTIONS = {
    name.capitalize(): transport
    for name, transport in TRANSPORTS.items()
    if f"\n## {name.capitalize()}\n" in PAGE
}
NOT_OPTIONS = {"self", "timeout", "clock", "resolver"}


def shown(language: str, beginning: str) -> str:
    [block] = [each for each in blocks(PAGE, language) if each.startswith(beginning)]
    return block


def took(handler: Handler) -> None:
    handler.reply(200, {"Receipt": f"pushed to {handler.received.headers.get('to')}"})


@pytest.fixture
def receiver(receiver: Receiver) -> Receiver:
    receiver.answer = took
    return receiver


def address(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}"


def keys(receiver: Receiver) -> list[str]:
    return [each.headers["idempotency-key"] for each in receiver.received]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "shop"
    package.mkdir(parents=True)
    (package / "push.py").write_text(shown("python", "# shop/push.py"))
    monkeypatch.syspath_prepend(str(package.parent))
    for name in ("shop", "shop.push"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return package.parent


def test_its_tests_pass(
    shop: Path, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown("python", "# tests/test_push.py")
    assert "http://127.0.0.1:8025" in text
    space: dict[str, Any] = {}
    exec(text.replace("http://127.0.0.1:8025", address(receiver)), space)  # noqa: S102 - our page
    suite = space["TestPush"]
    assert issubclass(suite, TransportSuite)
    suite.run()
    assert len(keys(receiver)) > 40


def test_it_is_found_where_its_distribution_is_installed(shop: Path, receiver: Receiver) -> None:
    project = tomllib.loads(shown("toml", "# pyproject.toml"))["project"]
    [(name, place)] = project["entry-points"]["dispatcher.transports"].items()
    install(shop, "shop", f"{name} = {place}")
    channels = {"push": {"transport": name, "options": {
        "address": address(receiver), "token": "a token",
    }}}  # fmt: skip
    settings = Settings.load(channels=channels, transport_timeout=7)
    transport: Any = load("push", settings.channels["push"], settings)
    assert transport.timeout == 7
    assert transport.send(a_message()) == "pushed to ada"
    with pytest.raises(InvalidDraft, match="the text to push"):
        Checks(settings.channels)("push", "ada", {"txt": "hello"})


def test_its_settings_are_read_and_a_secret_may_come_from_the_environment(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dispatcher.toml").write_text(shown("toml", "[channels.email]"))
    monkeypatch.chdir(tmp_path)
    settings = Settings.load()
    assert "mail.shop.example:465" in repr(load("email", settings.channels["email"], settings))
    push: Any = load("push", settings.channels["push"], settings)
    assert push.address == "https://push.example/send"
    secret = "smtp+starttls://shop:other@relay.shop.example"  # noqa: S105 - an example
    monkeypatch.setenv("DISPATCHER_CHANNELS__EMAIL__OPTIONS__URL", secret)
    settings = Settings.load()
    assert "relay.shop.example:587" in repr(load("email", settings.channels["email"], settings))
    assert settings.channels["email"].options["from"] == "Shop <mail@shop.example>"


def test_its_email_can_be_sent() -> None:
    text = shown("python", "dispatcher.submit(").replace("JVBERi0…", "JVBERi0=")
    asked: dict[str, Any] = {}

    class Front:
        """Takes what the page submits."""

        def submit(self, **given: Any) -> None:
            asked.update(given)

    space = {"dispatcher": Front(), "timedelta": lambda hours: hours}
    exec(text, space)  # noqa: S102 - our page
    SmtpTransport.check(asked["recipient"], asked["body"])


def test_it_names_every_transport_option_and_word_of_a_body() -> None:
    words = [*TRANSPORTS, *mail._KEYS, *mail._ATTACHED]
    words += [option for transport in TRANSPORTS.values() for option in options_of(transport)]
    words += [f"{scheme}://" for scheme in smtp._SCHEMES]
    assert [each for each in words if f"`{each}`" not in PAGE] == []


def options_of(transport: type) -> set[str]:
    return {
        name.removesuffix("_") for name in inspect.signature(transport).parameters
    } - NOT_OPTIONS


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
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == options_of(transport)


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


def test_the_settings_of_status_webhooks_load() -> None:
    [block] = blocks(section("Status webhooks"), "toml")
    settings = Settings.load(**tomllib.loads(block))
    channel = settings.channels[settings.status_channel]
    assert isinstance(load("status", channel, settings), WebhookTransport)


def test_the_page_shows_what_is_told_of_a_status() -> None:
    [block] = blocks(section("Status webhooks"), "json")
    shown = json.loads(block)
    message = a_message()
    values = {name: getattr(message, name) for name in message.__dataclass_fields__}
    row = cast("Any", SimpleNamespace(**values, now=message.created_at))
    told = cast("Any", body_of(row, None, tells_errors=False))
    assert (list(told), list(told["data"])) == (list(shown), list(shown["data"]))
    assert "recipient" not in told["data"]


def test_the_page_names_each_status_that_is_told() -> None:
    [named] = re.findall(r"`message\.` and the status: (.*?)\.", section("Status webhooks"))
    assert re.findall(r"`(\w+)`", named) == [each.value for each in NOTIFIED_STATUSES]
    assert set(Status) - set(NOTIFIED_STATUSES) == {Status.SCHEDULED, Status.SENDING}


def test_the_page_explains_every_reason() -> None:
    [table] = re.findall(r"\| status \| `reason` .*?\n\n", section("Status webhooks"), re.DOTALL)
    named = re.findall(r"^\|[^|]*\| `(\w+)` \|", table, re.MULTILINE)
    assert named == ["reason", *Reason]
