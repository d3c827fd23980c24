"""Wrong calls: a checker that accepts one of them fails, because its comment is not needed."""

from __future__ import annotations

from datetime import date, timedelta

from dispatcher import Channel, Dispatcher, Draft
from tests.typing.bodies import Code, Email, EmailBody, Push, PushBody, SmsBody

SOON = timedelta(minutes=1)
SMS = SmsBody(text="Bring your papers.")
WRONG = {"subject": "Papers", "text": 4711}


def typed_submits(dispatcher: Dispatcher) -> None:
    dispatcher.submit(Email, recipient="ada", body=SMS)  # type: ignore[misc] # SmsBody
    dispatcher.submit(Email, recipient="ada", body=WRONG)  # type: ignore[misc] # a dict
    dispatcher.submit(Email, recipient="ada", body={"subject": "Papers", "text": "Bring"})  # type: ignore[misc] # a dict
    dispatcher.submit(Email, recipient="ada", body=EmailBody(subject="Papers"))  # type: ignore[call-arg] # no text
    dispatcher.submit(Push, recipient="ada", body=PushBody(title="Papers", on="tomorrow"))  # type: ignore[typeddict-item] # a str for a date
    dispatcher.submit(Push, recipient="ada", body={"titel": "Papers", "on": date(2026, 12, 24)})  # type: ignore[misc] # no key titel
    dispatcher.submit(Code, recipient="ada", body=SMS)  # type: ignore[misc] # SmsBody
    dispatcher.submit(Email, recipient="ada", body="Bring your papers.")  # type: ignore[arg-type] # a str
    dispatcher.submit(Email, recipient="ada", body=4711)  # type: ignore[arg-type] # an int
    dispatcher.submit(Email, "ada", body=EmailBody(subject="Papers", text="Bring"))  # type: ignore[call-arg] # by name only


def plain_submits(dispatcher: Dispatcher) -> None:
    dispatcher.submit("sms", recipient="ada", body="Bring your papers.")  # type: ignore[arg-type] # a str
    dispatcher.submit("sms", recipient="ada", body=4711)  # type: ignore[arg-type] # an int
    dispatcher.submit("sms", recipient="ada", body={"text": "Bring"}, send_in=60)  # type: ignore[arg-type] # no length


async def awaited_submits(dispatcher: Dispatcher) -> None:
    await dispatcher.asubmit(Email, recipient="ada", body=SMS)  # type: ignore[misc] # SmsBody
    await dispatcher.asubmit("sms", recipient="ada", body=4711)  # type: ignore[arg-type] # an int


def drafts(dispatcher: Dispatcher) -> list[Draft]:
    dispatcher.submit_many([Draft(channel=Email, recipient="ada", body=SMS)])  # type: ignore[misc] # SmsBody
    dispatcher.plan(Draft(channel=Email, recipient=each, body=SMS) for each in ("ada", "ben"))  # type: ignore[misc] # SmsBody
    Draft(channel="sms", recipient="ada", body=4711)  # type: ignore[arg-type] # an int
    return [Draft(channel=Code, recipient="ada", body=SMS)]  # type: ignore[misc] # SmsBody


def declarations() -> None:
    Channel[int]("number")  # type: ignore[type-var] # no object
    Channel[EmailBody](4711)  # type: ignore[arg-type] # no name


def takes(channel: Channel[EmailBody | SmsBody]) -> None:
    """Only a channel that carries both will do."""


takes(Email)  # type: ignore[arg-type] # no SmsBody
