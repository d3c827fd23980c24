"""A provider that writes down, outside the system, what reaches it; a seed decides what it says.

And the transports that ship, with a note of each send: that it begins, and what it is called. What
comes of it their receivers write down, who know it by its id, attempt and process.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dispatcher.errors import PerhapsSent, PermanentFailure, TemporaryFailure
from dispatcher.message import Message
from dispatcher.transports.smtp import SmtpTransport
from dispatcher.transports.webhook import WebhookTransport
from tests.soak.contents import digest_of
from tests.support.history import Recorder
from tests.support.ledger import a_send

ATTEMPT, PROCESS = "X-Attempt", "x-process"
_QUICK, _SLOW, _TOO_SLOW, _BUSY, _BROKEN = 0.82, 0.88, 0.885, 0.93, 0.96
"""Shares of what is accepted at once, after a while, too late; refused for now; answered oddly.

The rest is refused for good.
"""


def begin(recorder: Recorder, message: Message) -> dict[str, Any]:
    """Write down that a message is sent; return what names this send."""
    digest = digest_of(message.channel, message.recipient, message.body)
    recorder.write("begin", **a_send(message, digest=digest))
    return {"id": str(message.id), "attempt": message.attempt_count, "pid": os.getpid()}


class DelayHook:
    """Writes down, in the folder of the run, which delays are told."""

    def __init__(self) -> None:
        self._recorder = Recorder("delays.jsonl")

    def on_delayed(self, message: Message) -> None:
        self._recorder.write("delayed", id=str(message.id), limit=message.delayed_by)


class Provider:
    def __init__(self, path: str, seed: int) -> None:
        self._recorder = Recorder(path)
        self._seed = seed

    def send(self, message: Message) -> str:
        given = begin(self._recorder, message)
        chance = random.Random(  # noqa: S311 - a repeatable choice, no secret
            f"{self._seed} {message.body.get('tag')} {message.attempt_count}"
        )
        fate = chance.random()
        if fate < _TOO_SLOW:
            seconds = (
                chance.uniform(0, 0.004)
                if fate < _QUICK
                else chance.uniform(0.05, 0.5) if fate < _SLOW else chance.uniform(1.2, 2.0)
            )  # fmt: skip
            threading.Event().wait(seconds)
            self._recorder.write("accept", **given)
            return f"provider:{message.id}"
        if fate < _BUSY:
            self._recorder.write("decline", **given, how="temporary")
            wait = timedelta(seconds=0.3) if chance.random() < 0.5 else None
            closes = wait is not None and chance.random() < 0.1
            raise TemporaryFailure("busy", wait, closes_channel=closes)
        if fate < _BROKEN:
            self._recorder.write("decline", **given, how="broken")
            raise OSError("the provider speaks in tongues")
        self._recorder.write("decline", **given, how="permanent")
        raise PermanentFailure("no such address")


class Email(SmtpTransport):
    """Sends by SMTP. Each mail has a header that tells the attempt and the process."""

    def __init__(self, *, path: str, timeout: float, **options: Any) -> None:
        super().__init__(timeout=timeout, **options)
        self._recorder = Recorder(path)

    def send(self, message: Message) -> str | None:
        headers = {ATTEMPT: f"{message.attempt_count} {os.getpid()}"}
        with _noted(self._recorder, message):
            return super().send(replace(message, body={**message.body, "headers": headers}))


class Webhook(WebhookTransport):
    """Sends by HTTP. Each request has a header that tells the process."""

    def __init__(self, *, path: str, timeout: float, **options: Any) -> None:
        super().__init__(timeout=timeout, headers={PROCESS: str(os.getpid())}, **options)
        self._recorder = Recorder(path)

    def send(self, message: Message) -> str | None:
        with _noted(self._recorder, message):
            return super().send(message)


@contextmanager
def _noted(recorder: Recorder, message: Message) -> Iterator[None]:
    send = begin(recorder, message)
    how = "broken"
    try:
        yield
        how = "sent"
    except PermanentFailure:
        how = "permanent"
        raise
    except TemporaryFailure:
        how = "temporary"
        raise
    except PerhapsSent:
        how = "unknown"
        raise
    finally:
        recorder.write("called", **send, how=how)
