"""A transport that writes down, outside the system, when each send begins and ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from dispatcher import Dispatcher
from dispatcher.message import Message
from dispatcher.times.send_time import to_ms
from tests.support.history import Recorder, now_us


def a_send(message: Message, **more: Any) -> dict[str, Any]:
    """Return what a line of a history says of the send of a message."""
    usual = {
        "id": str(message.id),
        "attempt": message.attempt_count,
        "pid": os.getpid(),
        "scope": message.scope,
        "channel": message.channel,
        "scopes": dict(message.scopes),
        "digest": "",
        "send_at_ms": to_ms(message.send_at),
    }
    return usual | more


class Ledger:
    """Appends two lines of a history per send to ``path``, which many processes may share.

    A message whose body has ``seconds`` takes that long in between, so that a kill can hit inside.
    One with ``poison`` kills its process, as a segmentation fault does. Where the clock of a
    process may be wrong, ``began_ns`` says when the host's monotonic clock began.
    """

    def __init__(self, path: str, began_ns: int | None = None) -> None:
        self._recorder = Recorder(path)
        self._began_ns = began_ns

    def send(self, message: Message) -> str:
        self._write("begin", message)
        if message.body.get("poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        seconds = message.body.get("seconds", 0)
        if seconds:
            threading.Event().wait(seconds)
        self._write("accept", message)
        return f"ledger:{message.id}"

    def _write(self, kind: str, message: Message) -> None:
        at = now_us()
        if self._began_ns is not None:
            at = (self._began_ns + time.monotonic_ns()) // 1_000
        self._recorder.write(kind, **a_send(message, at=at))


def began_ns() -> int:
    """Return when the monotonic clock began, by the wall clock: their shortest distance of many."""
    return min(-time.monotonic_ns() + time.time_ns() for _ in range(1_000))


def stop_at_first_send(dispatcher: Dispatcher, channel: str) -> None:
    """Let a worker be told to stop once its first send has begun, and is written down."""
    parts = dispatcher._app
    transport = parts.transports[channel]
    assert isinstance(transport, Ledger)
    write, is_told = transport._write, threading.Event()

    def stopping(kind: str, message: Message) -> None:
        write(kind, message)
        if not is_told.is_set():
            is_told.set()
            parts.stop_sending()

    transport._write = stopping  # type: ignore[method-assign]  # a double
