"""The transports that ship, with a note of each send: that it begins, and what it is called.

What comes of it their receivers write down. They know it by its id, attempt and process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dispatcher.errors import PerhapsSent, PermanentFailure, TemporaryFailure
from dispatcher.message import Message
from dispatcher.transports.smtp import SmtpTransport
from dispatcher.transports.webhook import WebhookTransport
from tests.soak.provider import begin
from tests.soak.recorder import Recorder

ATTEMPT, PROCESS = "X-Attempt", "x-process"


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
    given = begin(recorder, message)
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
        recorder.write("called", **given, how=how)
