"""A transport judges a draft when it is submitted: what it could never send is refused then."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import InvalidDraft, InvalidValue
from tests.support.house import House
from tests.support.house_fixtures import Build

SECRET = "hunter2-ada"  # noqa: S105 - looked for where it must not be
GOOD: dict[str, Any] = {
    "channel": "sms", "recipient": "4711", "body": {"text": "hello"},
    "send_in": timedelta(hours=1),
}  # fmt: skip


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


class Instance:
    """Its check would need an instance."""

    def check(self, recipient: str, body: Mapping[str, Any]) -> None:
        raise AssertionError(recipient, body)


@pytest.fixture
def picky(build: Build) -> House:
    transports = {
        "sms": f"{__name__}:Numbers",
        "elsewhere": "no_such_module_here:Transport",
        "unclear": f"{__name__}:Instance",
    }
    channels = {name: {"transport": path} for name, path in transports.items()}
    return build(channels=channels, quotas="100/minute")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"recipient": "ada"}, "recipient: letters"),
        ({"body": {"html": "x"}}, "body.text: not given"),
        ({"body": {"text": SECRET}}, "the check of its transport raised KeyError"),
    ],
)
def test_a_draft_that_its_transport_refuses_leaves_nothing(
    picky: House, caplog: pytest.LogCaptureFixture, change: dict[str, Any], refusal: str
) -> None:
    """A check that fails refuses, too, and tells nobody why."""
    before = picky.snapshot()
    with pytest.raises(InvalidDraft, match=refusal) as refused:
        picky.dispatcher.submit(**GOOD | change)
    assert picky.snapshot() == before
    assert SECRET not in f"{refused.value}{caplog.text}"
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_another_body_is_judged_like_the_first(picky: House) -> None:
    message = picky.dispatcher.submit(**GOOD)
    with pytest.raises(InvalidDraft, match=r"body\.text"):
        picky.dispatcher.update(message.id, body={"html": "x"})
    assert picky.again(message).body == {"text": "hello"}
    assert picky.dispatcher.update(message.id, body={"text": "new"}).body == {"text": "new"}


@pytest.mark.parametrize("channel", ["elsewhere", "unclear"])
def test_a_transport_that_is_not_installed_here_is_not_asked(picky: House, channel: str) -> None:
    message = picky.dispatcher.submit(**GOOD | {"channel": channel, "recipient": "ada"})
    assert picky.dispatcher.update(message.id, body={}).body == {}
