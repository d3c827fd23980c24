"""Rows of messages in PostgreSQL's binary format for COPY.

Source of the format: PostgreSQL's documentation of COPY, "Binary Format"; of a value of each type:
its ``..._send`` function. Numbers are big-endian, an instant is microseconds since 2000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from struct import Struct
from typing import NamedTuple, get_args

from dispatcher.message import Message, OnUnknown, dump_json
from dispatcher.store.instants import to_length_ms
from dispatcher.store.messages import told_at_first

COLUMNS = (
    "id", "send_at", "next_attempt_at", "enqueue_at", "created_at", "max_attempts",
    "attempt_count", "claim_token", "reserved", "status", "channel", "recipient", "scope", "body",
    "on_unknown", "enqueued_at", "expires_at", "idempotency_key", "fingerprint", "scopes", "zone",
    "quiet_hours", "expire_after", "asked_at", "trace", "status_url", "told",
)  # fmt: skip
"""The columns of a new message in the order in which they are written; the others are NULL."""

_ROWS_AT_ONCE = 250
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_NULLS = _NULL * 11
_NEW = Struct(">ih ii i? i9s").pack(2, 0, 4, 0, 1, True, 9, b"scheduled")
"""What is the same in every new row: nothing was tried, nobody claimed it, it has its place."""
_START = Struct(f">h i16s iq iq iq iq ih {len(_NEW)}s").pack
_LENGTH = Struct(">i").pack
_NUMBER = Struct(">iq").pack
_NO_TEXTS = (None,) * 5
_NOTHING_ELSE = (None,) * 4
_ON_UNKNOWN = {word: _LENGTH(len(word)) + word.encode() for word in get_args(OnUnknown)}
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Addition(NamedTuple):
    """A message to store, when the sweep is to hand it over, its fingerprint, its body as JSON.

    ``status_url`` is told what becomes of it.
    """

    message: Message
    enqueue_at: datetime
    fingerprint: str | None
    body_json: str
    status_url: str | None = None


def parts(additions: Iterable[Addition]) -> Iterator[bytes]:
    """Yield what COPY reads, some rows at a time."""
    rows = map(_row, additions)
    yield _HEAD
    while some := b"".join(islice(rows, _ROWS_AT_ONCE)):
        yield some
    yield _TAIL


def _row(addition: Addition) -> bytes:
    message, enqueue_at, fingerprint, body_json, status_url = addition
    send_at, enqueued_at = _instant(message.send_at), message.enqueued_at
    start = _START(
        len(COLUMNS), 16, message.id.bytes, 8, send_at, 8, send_at, 8, _instant(enqueue_at),
        8, _instant(message.created_at), 2, message.max_attempts, _NEW,
    )  # fmt: skip
    channel, body = message.channel.encode(), body_json.encode()
    recipient = scope = message.recipient.encode()
    if message.scope != message.recipient:
        scope = message.scope.encode()
    return b"".join(
        (
            start,
            _LENGTH(len(channel)), channel,
            _LENGTH(len(recipient)), recipient,
            _LENGTH(len(scope)), scope,
            _LENGTH(len(body)), body,
            _ON_UNKNOWN[message.on_unknown],
            _NULL if enqueued_at is None else _NUMBER(8, _instant(enqueued_at)),
            _optional(message, fingerprint, status_url),
        )
    )  # fmt: skip


def _optional(message: Message, fingerprint: str | None, status_url: str | None) -> bytes:
    """Return the columns that most messages leave empty."""
    expires_at = message.expires_at
    texts = (
        message.idempotency_key,
        fingerprint,
        dump_json(message.scopes) if message.scopes else None,
        message.zone,
        message.quiet_hours,
    )
    asked_at, trace = message.asked_at, message.trace
    if texts == _NO_TEXTS and (expires_at, asked_at, trace, status_url) == _NOTHING_ELSE:
        return _NULLS
    written = [_NUMBER(8, _instant(expires_at)) if expires_at else _NULL]
    written += map(_text, texts)
    length = message.expire_after
    written.append(_NULL if length is None else _NUMBER(8, to_length_ms(length)))
    written.append(_NULL if asked_at is None else _NUMBER(8, _instant(asked_at)))
    written += map(_text, (trace, status_url, told_at_first(status_url)))
    return b"".join(written)


def _text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    value = text.encode()
    return _LENGTH(len(value)) + value


def _instant(instant: datetime) -> int:
    return (instant - _FIRST) // _MICROSECOND
