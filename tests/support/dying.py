"""Transports that are the end of the process they run in, or of its work."""

from __future__ import annotations

import os
import signal
import threading

from dispatcher import Dispatcher
from dispatcher.message import Message
from tests.support.ledger import Ledger


class Poisoned(Ledger):
    """A ledger that a message with ``poison`` in its body kills, as a segmentation fault does."""

    def send(self, message: Message) -> str:
        if message.body.get("poison"):
            self._write("begin", message)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().send(message)


def stop_at_first_hand_over(dispatcher: Dispatcher, channel: str) -> None:
    """Let a worker be told to stop while it hands its first message over."""
    parts = dispatcher._parts
    transport = parts.transports[channel]
    assert isinstance(transport, Ledger)
    send, is_told = transport.send, threading.Event()

    def stopping(message: Message) -> str:
        if not is_told.is_set():
            is_told.set()
            parts.delivery.stop()
        return send(message)

    transport.send = stopping  # type: ignore[method-assign]  # a double
