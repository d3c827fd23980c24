"""Histories are written down line by line, by many threads and processes at once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.history import now_us

_BEGIN = '{"kind": "'


def digest_of(channel: str, recipient: str, body: Mapping[str, Any]) -> str:
    text = json.dumps([channel, recipient, body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Recorder:
    """Appends JSON objects to a file that others may append to.

    A line is one write in append mode. Linux may end the write of a killed process at the end of a
    page of memory: then its line is torn, and :func:`read` leaves it out.
    """

    def __init__(self, path: Path | str) -> None:
        self._target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line; ``at`` is now unless it is given."""
        line = {"kind": kind, "at": now_us()} | fields
        os.write(self._target, json.dumps(line, default=str).encode() + b"\n")

    def close(self) -> None:
        os.close(self._target)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history, in the order in which they were written, but for torn ones."""
    if not path.exists():
        return []
    return [line for text in path.read_text().split("\n") for line in _whole(text)]


def _whole(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(text)] if text else []
    except json.JSONDecodeError:
        _, begin, rest = text[1:].rpartition(_BEGIN)  # the next writer went on in the torn line
        return _whole(begin + rest) if begin else []
