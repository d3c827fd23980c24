"""Templates on every way in: what is stored is what was rendered, and no refusal leaves a trace."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import (
    IdempotencyConflict,
    InvalidDraft,
    InvalidSettings,
    MessageNotFound,
    TooLate,
    UnknownChannel,
)
from dispatcher.message import new_id
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

LATER = FAR + timedelta(hours=1)


def channels(text: str = "Hello {{ name }}") -> dict[str, Any]:
    return {"memory": {"transport": "memory", "templates": {"hello": {"text": text}}}}


@pytest.fixture
def house(build: Build) -> House:
    return build(channels=channels())


def asked(recipient: str = "ada", **data: Any) -> dict[str, Any]:
    return {
        "channel": "memory", "recipient": recipient, "template": "hello", "data": data,
        "send_at": LATER,
    }  # fmt: skip


def test_a_rendered_body_is_stored_and_stays(house: House, build: Build) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    assert message.body == {"text": "Hello Ada"}
    later = build(channels=channels("Goodbye {{ name }}"))
    assert later.again(message).body == {"text": "Hello Ada"}


def test_a_repeated_submit_gets_its_message_though_the_template_has_changed(
    house: House, build: Build
) -> None:
    again = asked(name="Ada") | {"idempotency_key": "k"}
    message = house.dispatcher.submit(**again)
    later = build(channels=channels("Goodbye {{ name }}"))
    assert later.dispatcher.submit(**again) == message
    with pytest.raises(IdempotencyConflict):
        later.dispatcher.submit(**again | {"data": {"name": "Ben"}})


@pytest.mark.every_database
def test_an_update_renders_it_for_what_is_stored(house: House, build: Build) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    updated = house.dispatcher.update(message.id, template="hello", data={"name": "Ben"})
    assert updated.body == {"text": "Hello Ben"}
    assert updated == house.again(message)
    later = build(channels=channels("Goodbye {{ name }}"), opened=False)
    updated = later.dispatcher.update(message.id, template="hello", data={"name": "Ben"})
    assert updated.body == {"text": "Goodbye Ben"}
    assert updated.send_at == message.send_at


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"template": "hello"}, "data"),
        ({"template": "bye", "data": {"name": "Ada"}}, "template"),
        ({"template": "hello", "data": {"name": "Ada"}, "body": {"text": "x"}}, "template"),
        ({"template": "hello", "data": {"name": "x" * 70_000}}, "data"),
        ({"template": "hello", "data": "Ada"}, "data"),
        ({"data": {"name": "Ada"}}, "data"),
        ({"body": {"text": "x"}, "data": {"name": "Ada"}}, "data"),
        ({}, "body"),
    ],
)
def test_an_update_is_refused_as_a_submit_is(
    house: House, given: dict[str, Any], field: str
) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    before = house.snapshot()
    with pytest.raises(InvalidDraft) as refused:
        house.dispatcher.update(message.id, **given)
    assert refused.value.field == field
    asked_for: dict[str, Any] = {"channel": "memory", "recipient": "ben", "send_at": LATER}
    with pytest.raises(InvalidDraft) as alike:
        house.dispatcher.submit(**asked_for, **given)
    assert str(refused.value) == str(alike.value)
    assert house.snapshot() == before


def test_an_update_by_a_template_that_cannot_be_used(house: House, build: Build) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    broken = build(channels=channels("Hello {{ name"), opened=False)
    with pytest.raises(InvalidSettings):
        broken.dispatcher.update(message.id, template="hello", data={"name": "Ada"})
    strange = build(channels={"other": {"transport": "memory"}}, opened=False)
    with pytest.raises(UnknownChannel):
        strange.dispatcher.update(message.id, template="hello", data={"name": "Ada"})
    house.dispatcher.cancel(message.id)
    with pytest.raises(TooLate):
        house.dispatcher.update(message.id, template="hello", data={"name": "Ben"})
    with pytest.raises(MessageNotFound):
        house.dispatcher.update(new_id(), template="hello", data={"name": "Ada"})
