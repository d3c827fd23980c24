"""Transports that are the end of the process they run in, or of its work."""

from __future__ import annotations

import os
import signal
import threading

from dispatcher import Dispatcher
from dispatcher.message import Message
from tests.support.ledger import Event, Ledger


class Poisoned(Ledger):
    """A ledger that a message with ``poison`` in its body kills, as a segmentation fault does."""

    def send(self, message: Message) -> str:
        if message.body.get("poison"):
            self._write("begin", message)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().send(message)


def stop_at_first_send(dispatcher: Dispatcher, channel: str) -> None:
    """Let a worker be told to stop once its first send has begun, and is written down."""
    parts = dispatcher._app
    transport = parts.transports[channel]
    assert isinstance(transport, Ledger)
    write, is_told = transport._write, threading.Event()

    def stopping(event: Event, message: Message) -> None:
        write(event, message)
        if not is_told.is_set():
            is_told.set()
            parts.stop_sending()

    transport._write = stopping  # type: ignore[method-assign]  # a double
