"""A transport judges a draft when it is submitted: what it could never send is refused then."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import InvalidDraft, InvalidValue, Message
from tests.support.house import House
from tests.support.house_fixtures import Build

SECRET = "hunter2-ada"  # noqa: S105 - looked for where it must not be
HOUR = timedelta(hours=1)


class Numbers:
    """Sends to numbers only. It cannot be made: what submits must not try."""

    def __init__(self) -> None:
        raise AssertionError("made in a process that only submits")

    @classmethod
    def check(cls, recipient: str, body: Mapping[str, Any]) -> None:
        if not recipient.isdigit():
            raise InvalidValue("recipient", "letters", "digits")
        if "text" not in body:
            raise InvalidDraft("body.text", "not given", "a text")
        if body["text"] == SECRET:
            raise KeyError(SECRET)

    def send(self, message: Message) -> str | None:
        raise AssertionError(message)


class Instance:
    """Its check would need an instance."""

    def check(self, recipient: str, body: Mapping[str, Any]) -> None:
        raise AssertionError(recipient, body)

    def send(self, message: Message) -> str | None:
        raise AssertionError(message)


def asked(recipient: str = "4711", body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    body = {"text": "hello"} if body is None else body
    return {"channel": "sms", "recipient": recipient, "body": body, "send_in": HOUR}


CHANNELS = {
    "sms": {"transport": f"{__name__}:Numbers"},
    "elsewhere": {"transport": "no_such_module_here:Transport"},
    "unclear": {"transport": f"{__name__}:Instance"},
}


@pytest.fixture
def picky(build: Build) -> House:
    return build(channels=CHANNELS, quotas="100/minute")


@pytest.mark.parametrize(
    ("recipient", "body", "field"),
    [("ada", None, "recipient"), ("4711", {"html": "x"}, "body.text")],
)
def test_a_draft_that_its_transport_refuses_leaves_nothing(
    picky: House, recipient: str, body: Any, field: str
) -> None:
    before = picky.snapshot()
    with pytest.raises(InvalidDraft) as caught:
        picky.dispatcher.submit(**asked(recipient, body))
    assert caught.value.field == field
    assert picky.snapshot() == before


def test_another_body_is_judged_like_the_first(picky: House) -> None:
    message = picky.dispatcher.submit(**asked())
    with pytest.raises(InvalidDraft) as caught:
        picky.dispatcher.update(message.id, body={"html": "x"})
    assert caught.value.field == "body.text"
    assert picky.again(message).body == {"text": "hello"}
    assert picky.dispatcher.update(message.id, body={"text": "new"}).body == {"text": "new"}


def test_a_check_that_fails_refuses_and_tells_nobody_why(
    picky: House, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidDraft, match="the check of its transport raised KeyError") as caught:
        picky.dispatcher.submit(**asked(body={"text": SECRET}))
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
    assert SECRET not in caplog.text


@pytest.mark.parametrize("channel", ["elsewhere", "unclear"])
def test_a_transport_that_is_not_installed_here_is_not_asked(picky: House, channel: str) -> None:
    message = picky.dispatcher.submit(**asked("ada") | {"channel": channel})
    assert picky.dispatcher.update(message.id, body={}).body == {}
