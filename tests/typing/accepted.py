"""Right calls: a checker that refuses one of them fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any, assert_type
from uuid import UUID

from dispatcher import Channel, Dispatcher, Draft, Message
from tests.typing.bodies import (
    Code,
    CodeBody,
    Either,
    Email,
    EmailBody,
    LongEmailBody,
    Push,
    PushBody,
    SmsBody,
)

SOON = timedelta(minutes=1)
EMAIL = EmailBody(subject="Papers", text="Bring your papers.")


def typed_submits(dispatcher: Dispatcher) -> None:
    message = dispatcher.submit(Email, recipient="ada", body=EMAIL, send_in=SOON)
    assert_type(message, Message)
    dispatcher.submit(channel=Email, recipient="ada", body=EMAIL, send_in=SOON)
    more = LongEmailBody(subject="Papers", text="Bring", html="<p>Bring</p>")
    dispatcher.submit(Email, recipient="ada", body=more, send_in=SOON)
    dispatcher.submit(Push, recipient="ada", body=PushBody(title="Papers", on=date(2026, 12, 24)))
    dispatcher.submit(Code, recipient="ada", body=CodeBody("4711"), send_in=SOON)
    dispatcher.submit(Either, recipient="ada", body=SmsBody(text="Bring"), send_in=SOON)
    dispatcher.submit(Email, recipient="ada", template="papers", data={"name": "Ada"})


def plain_submits(dispatcher: Dispatcher, body: Mapping[str, Any], unknown: Any) -> None:
    dispatcher.submit(channel="sms", recipient="ada", body={"text": "Bring", "n": 1}, send_in=SOON)
    dispatcher.submit("sms", recipient="ada", body=body, send_in=SOON)
    dispatcher.submit("sms", recipient="ada", template="papers", send_in=SOON)
    dispatcher.submit("email", recipient="ada", body=EMAIL)  # right where the settings name a type
    dispatcher.submit(unknown, recipient="ada", body=unknown)


async def awaited_submits(dispatcher: Dispatcher) -> None:
    message = await dispatcher.asubmit(Email, recipient="ada", body=EMAIL, send_in=SOON)
    assert_type(message, Message)
    await dispatcher.asubmit("sms", recipient="ada", body={"text": "Bring"}, send_in=SOON)
    await dispatcher.asubmit_many([Draft(channel=Email, recipient="ada", body=EMAIL)])


def many(dispatcher: Dispatcher, names: list[str]) -> Iterator[Draft]:
    typed = [Draft(channel=Email, recipient=each, body=EMAIL) for each in names]
    plain = [Draft(channel="sms", recipient=each, body={"text": "Bring"}) for each in names]
    every: list[Draft] = [*typed, *plain, Draft(channel=Code, recipient="a", body=CodeBody("1"))]
    dispatcher.submit_many(every)
    dispatcher.plan(Draft(channel=Email, recipient=each, body=EMAIL) for each in names)
    for name in names:
        yield Draft(channel=Email, recipient=name, body=EMAIL)


def update(dispatcher: Dispatcher, message_id: UUID) -> None:
    dispatcher.update(message_id, body=EMAIL)
    dispatcher.update(message_id, body={"text": "Bring"})


def takes(channel: Channel[SmsBody]) -> None:
    """Any channel that carries such bodies will do."""


takes(Either)
