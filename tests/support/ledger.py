"""A transport that writes down, outside the system, when each send begins and ends."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from dispatcher.message import Message
from dispatcher.times.send_time import to_ms

Event = Literal["begin", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a ledger. ``at_us`` are microseconds since 1970 by the host's clock."""

    event: Event
    id: UUID
    scope: str
    at_us: int
    attempt: int
    send_at_ms: int


class Ledger:
    """Appends two lines per send to ``path``, which many processes may share.

    A message whose body has ``seconds`` takes that long in between, so that a kill can hit inside.
    A line is one write in append mode: a killed process leaves whole lines only. Where the clock of
    a process may be wrong, ``began_ns`` says when the host's monotonic clock began.
    """

    def __init__(self, path: str, began_ns: int | None = None) -> None:
        self._path = path
        self._began_ns = began_ns

    def send(self, message: Message) -> str:
        self._write("begin", message)
        seconds = message.body.get("seconds", 0)
        if seconds:
            threading.Event().wait(seconds)
        self._write("end", message)
        return f"ledger:{message.id}"

    def _write(self, event: Event, message: Message) -> None:
        fields = {
            "event": event,
            "id": str(message.id),
            "scope": message.scope,
            "attempt": message.attempt_count,
            "send_at_ms": to_ms(message.send_at),
        }
        target = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fields["at_us"] = self._now_ns() // 1_000
            os.write(target, json.dumps(fields).encode() + b"\n")
        finally:
            os.close(target)

    def _now_ns(self) -> int:
        if self._began_ns is None:
            return time.time_ns()
        return self._began_ns + time.monotonic_ns()


def began_ns() -> int:
    """Return when the monotonic clock began, by the wall clock: their shortest distance of many."""
    return min(-time.monotonic_ns() + time.time_ns() for _ in range(1_000))


def sent(lines: Iterable[Line]) -> Iterator[dict[str, Any]]:
    """Yield what a ledger tells as lines of a history."""
    for line in lines:
        yield {
            "kind": "begin" if line.event == "begin" else "accept",
            "at": line.at_us,
            "id": str(line.id),
            "attempt": line.attempt,
            "pid": 0,
            "scope": line.scope,
            "channel": "",
            "digest": "",
            "send_at_ms": line.send_at_ms,
        }


def read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        fields = json.loads(text)
        lines.append(Line(**(fields | {"id": UUID(fields["id"])})))
    return lines
