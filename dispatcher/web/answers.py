"""Answers as JSON, idempotency keys in headers, and the versions of messages.

A repeated submit finds its message by its idempotency key. A change ends in the same state when it
is repeated; with ``If-Match`` it is made to one version of a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from starlette.responses import Response

from dispatcher.errors import InvalidDraft, MessageChanged, StoreUnavailable
from dispatcher.message import Message, Status, check_text
from dispatcher.store import Movable
from dispatcher.web.models import Out

LONGEST_KEY = 190
_MEDIA_TYPE = "application/json"
_TRIES = 10
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


def key_of(header: str | None) -> str | None:
    """Return the key of an ``Idempotency-Key`` header, bare or quoted. Raises InvalidDraft.

    Clients send other characters than ASCII in different encodings.
    """
    if header is None:
        return None
    if not header.isascii():
        raise InvalidDraft("Idempotency-Key", "has characters that are not ASCII", "ASCII text")
    quoted = len(header) > 1 and header[0] == header[-1] == '"'
    return check_text("Idempotency-Key", header[1:-1] if quoted else header, longest=LONGEST_KEY)


def change_if(
    if_match: str | None, read: Callable[[], Movable], make: Callable[[Message | None], object]
) -> Movable:
    """Make a change to the version that an ``If-Match`` header names; return the message then.

    ``make`` gets the message unless which it changes nothing, None without a header. Raises
    MessageChanged where the message has another version.
    """
    if if_match is None:
        make(None)
        return read()
    for _ in range(_TRIES):
        movable = read()
        tags = {tag.strip() for tag in if_match.split(",")}
        if tags.isdisjoint(("*", etag_of(movable))):
            raise MessageChanged(movable.message.id)
        try:
            make(movable.message)
        except MessageChanged:
            continue  # judged anew by the header
        return read()
    raise StoreUnavailable("other calls kept changing the message", remedy="try again")
