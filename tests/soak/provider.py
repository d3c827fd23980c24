"""A provider that writes down, outside the system, what reaches it; a seed decides what it says."""

from __future__ import annotations

import os
import random
import threading
from datetime import timedelta
from typing import Any

from dispatcher.errors import PermanentFailure, TemporaryFailure
from dispatcher.message import Message
from dispatcher.times.send_time import to_ms
from tests.soak.recorder import Recorder, digest_of

_QUICK, _SLOW, _TOO_SLOW, _BUSY, _BROKEN = 0.82, 0.88, 0.885, 0.93, 0.96
"""Shares of what is accepted at once, after a while, too late; refused for now; answered oddly.

The rest is refused for good.
"""


def begin(recorder: Recorder, message: Message) -> dict[str, Any]:
    """Write down that a message is sent; return what names this send."""
    given = {"id": str(message.id), "attempt": message.attempt_count, "pid": os.getpid()}
    recorder.write(
        "begin",
        **given,
        scope=message.scope,
        channel=message.channel,
        digest=digest_of(message.channel, message.recipient, message.body),
        send_at_ms=to_ms(message.send_at),
    )
    return given


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
