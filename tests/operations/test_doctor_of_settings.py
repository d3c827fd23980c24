"""``doctor`` finds what the settings name and what is not there: servers, code, templates."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import BaseModel

from dispatcher import Message, PermanentFailure, Settings
from dispatcher.operations.checks import CHECKS, Finding, Level
from tests.support.examining import ERROR, OK, WARNING, doctor_for
from tests.support.mail import CLOSE, HANG, PASSWORD, USER, MailServer, ScriptedServer, certified
from tests.support.nodes import free_port

NAMES = [name for name in CHECKS if name.startswith("settings.")]
LOGIN = f"{USER}:{quote(PASSWORD, safe='')}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder of this test's: the doctor makes and removes that of the channel ``file``."""
    monkeypatch.chdir(tmp_path)


def judged(name: str, level: Level, *says: str, hooks: Any = "", **channels: Any) -> Finding:
    """Check what is found of settings, without a look at Redis and the database."""
    with doctor_for(Settings(hooks=hooks, channels=channels)) as doctor:
        every = {finding.check: finding for finding in doctor.find(NAMES)}
    assert PASSWORD not in str(every)
    assert "hunter2" not in str(every)
    assert all(finding.remedy for finding in every.values() if finding.level in (WARNING, ERROR))
    finding = every[f"settings.{name}"]
    assert finding.level is level, finding
    for words in says:
        assert words in f"{finding.found} remedy: {finding.remedy}"
    return finding


def email(url: str, **options: Any) -> dict[str, Any]:
    return {"transport": "smtp", "options": {"url": url, "from": "mail@shop.example", **options}}


def test_a_mail_server_that_takes_or_refuses_the_log_in(tmp_path: Path) -> None:
    context, ca_file = certified(tmp_path)
    with MailServer(security="starttls", context=context, auth=True) as server:
        channels = {
            name: email(f"smtp+starttls://{who}@localhost:{server.port}", ca_file=ca_file)
            for name, who in (("good", LOGIN), ("bad", f"{USER}:hunter2"))
        }
        finding = judged("servers", OK, ": good", good=channels["good"])
        assert finding.remedy is None
        assert (server.connections, server.taken) == (1, [])
        says = ("bad: localhost:", "to the credentials", "user and password")
        finding = judged("servers", ERROR, *says, **channels)
    assert "good" not in finding.found


def test_a_mail_server_that_is_away() -> None:
    channel = email(f"smtp://127.0.0.1:{free_port()}")
    judged("servers", ERROR, "no message gets through: email: 127.0.0.1:", email=channel)


@pytest.mark.parametrize(
    ("word", "answer"),
    [("connection", HANG), ("connection", "421 4.3.2 full"), ("EHLO", CLOSE), ("NOOP", HANG),
     ("NOOP", "454 4.7.0 later")],
)  # fmt: skip
def test_a_mail_server_that_says_no_or_nothing(
    monkeypatch: pytest.MonkeyPatch, word: str, answer: str
) -> None:
    monkeypatch.setattr("dispatcher.transports.smtp._PROBE_SECONDS", 0.2)
    with ScriptedServer({word: answer, "HELO": answer}) as server:
        began = time.monotonic()
        judged("servers", ERROR, email=email(f"smtp://127.0.0.1:{server.port}"))
        assert time.monotonic() - began < 9, "the usual limit is that of the transport"
        assert server.got == []


class Pigeon:
    """A transport with a probe."""

    closed = 0

    def __init__(self, *, fails: str = "") -> None:
        self._fails = fails

    def send(self, message: Message) -> None: ...

    def probe(self) -> None:
        if self._fails == "odd":
            raise ValueError("canary")
        if self._fails:
            raise PermanentFailure(self._fails)

    def close(self) -> None:
        type(self).closed += 1


@pytest.mark.parametrize(
    ("fails", "level", "says"),
    [
        ("", OK, "takes the log-in: post"),
        ("it is asleep", ERROR, "post: it is asleep"),
        ("odd", ERROR, "post: ValueError"),
    ],
)
def test_a_transport_of_the_users_is_asked(fails: str, level: Level, says: str) -> None:
    before = Pigeon.closed
    post = {"transport": f"{__name__}:Pigeon", "options": {"fails": fails} if fails else {}}
    assert "canary" not in judged("servers", level, says, post=post).found
    assert Pigeon.closed == before + 1


class Egg(Pigeon):
    """A transport that cannot be made, for a reason of its own."""

    def __init__(self) -> None:
        raise RuntimeError("canary")


@pytest.mark.parametrize(
    ("channel", "told"),
    [
        ({"transport": "smtp"}, "email: channels.email.options"),
        (
            {"transport": "webhook", "options": {"timeout": "no option of its"}},
            "transport_timeout instead",
        ),
        ({"transport": f"{__name__}:Egg"}, "email: RuntimeError remedy"),
    ],
)
def test_a_transport_that_a_worker_cannot_make_is_an_error(
    channel: dict[str, object], told: str
) -> None:
    assert judged("transports", ERROR, told, email=channel).stops_worker


class Hooks:
    def on_sent(self, message: Message) -> None: ...


@pytest.mark.parametrize(
    ("hooks", "level", "says"),
    [
        ("", OK, "there are no hooks"),
        (f"{__name__}:Hooks", OK, "can be loaded"),
        ("no.such.module:Hooks", ERROR, "cannot load 'no.such.module:Hooks' (ModuleNotFoundError)"),
        (f"{__name__}:Pigeon", ERROR, "has no hook"),
    ],
)
def test_hooks_that_cannot_be_loaded(hooks: str, level: Level, says: str) -> None:
    assert bool(judged("hooks", level, says, hooks=hooks).remedy) == (level is ERROR)


def spell(text: str) -> str:
    return text


def test_templates_that_do_not_compile(tmp_path: Path) -> None:
    sound = {"hello": {"text": "Hello {{ name }}"}}
    memory = {"transport": "memory", "templates": sound}
    judged("templates", OK, "each of 1 compiles", memory=memory)
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "bye.text").write_text("Bye {% if name %}")
    broken = {
        "memory": {"transport": "memory", "templates": sound | {"hi": {"text": "{{ name"}}},
        "other": {"transport": "memory", "templates_dir": str(folder)},
        "third": {"transport": "memory", "templates_dir": str(tmp_path / "none")},
    }
    places = ("channels.memory.templates.hi.text", f"{folder}/bye.text", "channels.third")
    assert "hello" not in judged("templates", ERROR, *places, **broken).found


class Body(BaseModel):
    text: str


class WithoutSchema(BaseModel):
    called: Callable[[], int]


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("recipients", "no.such.module:spell", "cannot load '{}' (ModuleNotFoundError)"),
        ("recipients", f"{__name__}:missing", "cannot load '{}' (AttributeError)"),
        ("recipients", f"{__name__}:LOGIN", "'{}' is no function"),
        ("body", f"{__name__}:missing", "cannot load '{}' (AttributeError)"),
        (
            "body",
            f"{__name__}:WithoutSchema",
            "WithoutSchema has no JSON Schema (PydanticInvalidForJsonSchema)",
        ),
    ],
)
def test_a_rule_for_recipients_or_a_type_of_bodies_that_cannot_be_used(
    setting: str, value: str, says: str
) -> None:
    check, what, good = {
        "recipients": ("recipients", "spelling rules", ("email", f"{__name__}:spell")),
        "body": ("bodies", "body types", (f"{__name__}:Body", f"{__name__}:Body")),
    }[setting]
    memory = {"transport": "memory"}
    judged(check, OK, f"there are no {what}", memory=memory)
    sound = {f"good-{number}": memory | {setting: value} for number, value in enumerate(good)}
    judged(check, OK, f"the {what} of 2 channels can be loaded", **sound)
    told = f": channels.sms.{setting}: {says.format(value)} remedy: "
    assert not judged(check, ERROR, told, **sound, sms=memory | {setting: value}).stops_worker
