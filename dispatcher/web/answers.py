"""Answers as JSON, and the versions of messages, which ``ETag`` and the page's forms name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from starlette.responses import Response

from dispatcher.message import Status
from dispatcher.store import Movable
from dispatcher.web.models import Out

_MEDIA_TYPE = "application/json"
_VERSION = re.compile(r"([0-9]{1,20}-){4}[a-z]+")


def answer(body: Out, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body.text(), status, headers=headers, media_type=_MEDIA_TYPE)


@dataclass(frozen=True, slots=True)
class Version:
    """The parts of a message that its changes change. Its text is the message's ``ETag``."""

    move_token: int
    attempt_count: int
    max_attempts: int
    next_attempt_ms: int
    status: Status

    @classmethod
    def of(cls, found: Movable) -> Version:
        message = found.message
        at_ms = round(message.next_attempt_at.timestamp() * 1_000)
        counts = (message.attempt_count, message.max_attempts)
        return cls(found.token, *counts, at_ms, message.status)

    @classmethod
    def read(cls, text: str) -> Version:
        if _VERSION.fullmatch(text) is None:  # int() takes other digits, signs and blanks, too
            raise ValueError("no version")
        token, count, most, at_ms, status = text.split("-")
        return cls(int(token), int(count), int(most), int(at_ms), Status(status))

    def is_edited_since(self, before: Version) -> bool:
        """Tell whether it was changed since then, or sent; that it was snoozed is no change."""
        return replace(before, next_attempt_ms=self.next_attempt_ms) != self

    def __str__(self) -> str:
        numbers = (self.move_token, self.attempt_count, self.max_attempts, self.next_attempt_ms)
        return "-".join((*map(str, numbers), self.status.value))


def etag_of(found: Movable) -> str:
    return f'"{Version.of(found)}"'
