"""Drafts, messages, attempts, and their states."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from dispatcher.errors import DispatcherError, InvalidDraft, QuotaExceeded, TooLate, kind_of, plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from dispatcher.body_types import AnyBody, BodyOfChannel, Channel

Body = Mapping[str, Any]
OnConflict = Literal["reject", "shift"]
OnUnknown = Literal["retry", "hold"]

MAX_RECIPIENT, MAX_URL = 255, 2_048
_LONGEST_SCHEME = 16
MAX_CAMPAIGN, MAX_EVENT = 64, 128
MAX_PRIORITY = 100
"""The largest; the smallest is its negative."""
dump_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
"""Return compact JSON; NaN and infinities raise ValueError."""
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_STEP, _LOW = (1 << 48) - 1, (1 << 62) - 1
_CONTAINERS = (dict, list, tuple, Mapping)
_PLAIN_TYPES = frozenset({str, type(None), dict, datetime, timedelta, int})
"""Types of which no value is a text of a subclass."""
_last_id = 0
"""The last id of this process, without the bits that say its version."""


class Status(StrEnum):
    """The status of a message. docs/guarantees.md draws the transitions."""

    SCHEDULED = "scheduled"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    HELD = "held"

    @property
    def is_final(self) -> bool:
        """Whether a message of this status gets no more attempts.

        A final status does not change, but ``failed`` becomes ``sent`` if the send had succeeded.
        """
        return self not in (Status.SCHEDULED, Status.SENDING, Status.HELD)


STATUSES = tuple(sorted(Status, key=lambda status: status.is_final))
"""All statuses, the ones that may still change first."""


class Outcome(StrEnum):
    """The outcome of one attempt."""

    SENT = "sent"
    TEMPORARY = "temporary"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


def make_texts_plain(request: DataclassInstance) -> None:
    names = request.__dataclass_fields__
    if _PLAIN_TYPES.issuperset(map(type, map(getattr, repeat(request), names))):
        return
    for name in names:
        value = getattr(request, name)
        if value is not None and type(value) is not str and isinstance(value, str):
            object.__setattr__(request, name, plain(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The unchecked request for a message. The fields are those of ``Dispatcher.submit``."""

    channel: str | Channel[Any]
    recipient: str
    body: AnyBody | None = field(default=None, repr=False)
    template: str | None = None
    data: Mapping[str, Any] | None = field(default=None, repr=False)
    send_at: datetime | str | None = None
    send_in: timedelta | None = None
    zone: str | None = None
    fold: int | None = None
    scope: str | None = None
    idempotency_key: str | None = None
    expires_at: datetime | str | None = None
    on_conflict: OnConflict = "reject"
    latest: datetime | str | None = None
    scopes: Mapping[str, str] | None = None
    quiet_hours: str | None = None
    send_window: str | None = None
    on_unknown: OnUnknown | None = None
    expire_after: timedelta | None = None
    status_url: str | None = field(default=None, repr=False)
    campaign: str | None = None
    priority: int | None = None
    quotas: Literal["none"] | None = None
    event: str | None = None
    offset: timedelta | str | None = None
    event_at: datetime | str | None = None

    if TYPE_CHECKING:  # so that a checker compares the body with the type of the channel

        def __init__(
            self,
            *,
            channel: str | Channel[BodyOfChannel],
            recipient: str,
            body: BodyOfChannel | None = None,
            template: str | None = None,
            data: Mapping[str, Any] | None = None,
            send_at: datetime | str | None = None,
            send_in: timedelta | None = None,
            zone: str | None = None,
            fold: int | None = None,
            scope: str | None = None,
            idempotency_key: str | None = None,
            expires_at: datetime | str | None = None,
            on_conflict: OnConflict = "reject",
            latest: datetime | str | None = None,
            scopes: Mapping[str, str] | None = None,
            quiet_hours: str | None = None,
            send_window: str | None = None,
            on_unknown: OnUnknown | None = None,
            expire_after: timedelta | None = None,
            status_url: str | None = None,
            campaign: str | None = None,
            priority: int | None = None,
            quotas: Literal["none"] | None = None,
            event: str | None = None,
            offset: timedelta | str | None = None,
            event_at: datetime | str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        make_texts_plain(self)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refused draft of a batch, and the error. ``number`` is its index, from 0."""

    number: int
    draft: Draft
    error: DispatcherError

    @property
    def reason(self) -> str:
        """The kind of error, and the quota where it is one: ``QuotaExceeded 1/minute``."""
        return reason_of(self.error)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a bulk submit or of a plan. ``total`` is None while it is unknown.

    Of the ``accepted`` drafts, ``known`` were accepted before, or share their idempotency key with
    an earlier draft; ``shifted`` have a later send time than asked for.
    """

    accepted: int
    refused: int
    total: int | None
    known: int = 0
    shifted: int = 0

    @property
    def done(self) -> int:
        """How many drafts have been answered."""
        return self.accepted + self.refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result that drafts would have if they were submitted now.

    ``accepted``, ``known`` and ``shifted`` count drafts as in :class:`Progress`. ``first_send_at``
    and ``last_send_at`` are the earliest and the latest time of the new messages, None when there
    are none. ``promised`` counts these by the minute of their time, and ``asked`` the drafts by the
    minute asked for, also those that a quota or quiet hours refuse.
    """

    accepted: int
    known: int
    shifted: int
    first_send_at: datetime | None
    last_send_at: datetime | None
    rejections: tuple[Rejection, ...] = field(repr=False)
    asked: Mapping[datetime, int] = field(default_factory=dict, repr=False)
    promised: Mapping[datetime, int] = field(default_factory=dict, repr=False)

    @property
    def by_reason(self) -> Mapping[str, int]:
        """How many drafts would be refused for each reason, the most frequent first."""
        return dict(Counter(rejection.reason for rejection in self.rejections).most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One accepted message as it is stored. All instants are aware UTC.

    ``send_at`` is the promised time; ``next_attempt_at`` is when the next attempt is due and moves
    with retries and snoozes. ``attempt_count`` counts attempts, not snoozes. ``last_error`` is the
    error of the last failed attempt. ``scopes`` are the further scopes it counts against, by kind;
    ``zone`` and ``quiet_hours`` are its own, None where those of the settings apply.
    ``on_unknown`` says what follows an attempt with an unknown outcome. With ``expire_after`` a
    reschedule moves ``expires_at`` along. ``asked_at`` is the time asked for, where a shift
    changed ``send_at``, else None. ``trace`` is the W3C traceparent of the span of the submit, None
    without tracing. ``campaign`` is a label by which messages are found together. Where a limit is
    short, a larger ``priority`` goes first. ``delayed_by`` names the limit that has delayed it for
    longer than ``tell_delay_after``.

    ``event`` is what it reminds of. ``wish`` is what was asked for, in terms that stay right when
    the rules of the zone or the event change: a local time (``2026-10-25T02:30:00.000``, with
    ``;fold=1`` where it is the second of its day) or the offset from the event (``-1 day``). It is
    None where an instant was asked for.

    ``enqueued_at`` is when the message was last enqueued: by the submitter's clock (like
    ``created_at``) where the submit did it, else by the database's. It is None before that, and
    while the message is to be enqueued again after a failure. It is written before the publish: a
    process that dies in between has not enqueued the message.
    """

    id: UUID
    channel: str
    recipient: str
    scope: str
    body: Body = field(repr=False)
    send_at: datetime
    next_attempt_at: datetime
    expires_at: datetime | None
    status: Status
    attempt_count: int
    max_attempts: int
    idempotency_key: str | None
    created_at: datetime
    finished_at: datetime | None
    last_error: str | None = field(repr=False)
    scopes: Mapping[str, str] = field(default_factory=dict)
    zone: str | None = None
    quiet_hours: str | None = None
    on_unknown: OnUnknown = "retry"
    expire_after: timedelta | None = None
    asked_at: datetime | None = None
    trace: str | None = None
    enqueued_at: datetime | None = None
    campaign: str | None = None
    priority: int = 0
    delayed_by: str | None = None
    event: str | None = None
    wish: str | None = None


def is_unchanged(before: Message, now: Message) -> bool:
    """Whether only enqueuing has changed a message. Raises InvalidDraft where it is no Message."""
    if not isinstance(before, Message):
        raise InvalidDraft("if_unchanged", kind_of(before), "a Message, as it was read")
    return replace(before, enqueued_at=now.enqueued_at) == now


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to send a message. ``outcome`` is None while it is under way."""

    message_id: UUID
    token: int
    started_at: datetime
    finished_at: datetime | None
    outcome: Outcome | None
    error: str | None = field(repr=False)
    receipt: str | None


def reason_of(error: DispatcherError) -> str:
    if isinstance(error, TooLate):
        return f"already {error.status}"
    kind = type(error).__name__
    return f"{kind} {error.quota}" if isinstance(error, QuotaExceeded) else kind


def new_id() -> UUID:
    """Return a fresh id: UUID version 7 (RFC 9562), by the time of this process in ms.

    Those of one thread ascend. The random part has 74 bits; a later id of the same millisecond, or
    after the clock went back, is the last one and up to 2**48 more (method 2 of the RFC).
    """
    return new_ids(1)[0]


def new_ids(count: int) -> list[UUID]:
    """Return fresh ids in ascending order, each as :func:`new_id` makes it."""
    global _last_id  # noqa: PLW0603 - without a lock, which a fork could leave locked
    random = os.urandom(16 * count)
    began = time.time_ns() // 1_000_000 << 74
    ids = []
    for start in range(0, 16 * count, 16):
        drawn = int.from_bytes(random[start : start + 16])
        now = max(began | drawn >> 54, _last_id + 1 + (drawn & _STEP))
        _last_id = now
        version = now >> 74 << 80 | 0x7 << 76 | (now >> 62 & 0xFFF) << 64
        ids.append(UUID(int=version | 0b10 << 62 | now & _LOW))
    return ids


def check_text(name: str, value: object, *, longest: int = MAX_RECIPIENT) -> str:
    """Return ``value`` if it is a clean single line of 1 to ``longest`` characters, as ``str``.

    Refused are control and formatting characters (also line separators and bidi controls), lone
    surrogates, and white space at either end. Raises InvalidDraft.
    """
    if (
        type(value) is str
        and 1 <= len(value) <= longest
        and value.isascii()
        and value.isprintable()
        and value[0] != " " != value[-1]
    ):
        return value
    accepted = f"1 to {longest} printable characters without white space at the ends"
    if not isinstance(value, str):
        raise InvalidDraft(name, kind_of(value), accepted)
    value = plain(value)
    if not 1 <= len(value) <= longest:
        raise InvalidDraft(name, f"{len(value)} characters", accepted)
    for character in value:
        if unicodedata.category(character) in _UNPRINTABLE:
            raise InvalidDraft(name, f"the character U+{ord(character):04X}", accepted)
    if value != value.strip():
        raise InvalidDraft(name, "white space at an end", accepted)
    return value


def check_recipient(value: object, *, name: str = "recipient") -> str:
    """Return what check_text does, or an ASCII URL: PostgreSQL's index takes ``MAX_URL`` bytes."""
    if isinstance(value, str) and len(value) > MAX_RECIPIENT and "://" in value[:_LONGEST_SCHEME]:
        if not value.isascii():
            raise InvalidDraft(
                name, "a long URL that is not ASCII", "a URL that is percent-encoded"
            )
        return check_text(name, value, longest=MAX_URL)
    return check_text(name, value)


def scope_name(recipient: str) -> str:
    """Return the name of a recipient's scope: of a long URL its beginning, and a digest of it."""
    if len(recipient) <= MAX_RECIPIENT:
        return recipient
    digest = hashlib.sha256(recipient.encode()).hexdigest()
    return f"{recipient[: MAX_RECIPIENT - len(digest) - 1]}~{digest}"


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn the collector of cycles off, and on again at the end if it was on.

    In a program that has loaded much it would scan all of that for each batch. All
    threads share it: a batch that ends turns it on for others, which costs time only.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_json(name: str, text: str) -> Any:
    try:
        with without_collector():  # it would go through the lists of a text again and again
            return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDraft(name, json_problem(error), "a JSON object") from None


def json_problem(error: BaseException | None) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if type(error) is ValueError:  # of int(); the other errors have classes of their own
        return "has a number that is too long"
    return "is not JSON"


def check_body(
    body: object, *, max_bytes: int, max_depth: int, field: str = "body"
) -> tuple[Body, str]:
    """Return ``body`` and its compact JSON. Raises InvalidDraft, which calls it ``field``.

    That JSON has at most ``max_bytes`` in UTF-8, and ``max_depth`` levels, itself included.
    """
    accepted = f"a JSON object of at most {max_bytes} bytes and {max_depth} levels"
    if not isinstance(body, Mapping):
        raise InvalidDraft(field, kind_of(body), accepted)
    clean = _copied(body, field, accepted, most=max_bytes, depth=max_depth)
    try:
        text = dump_json(clean)
    except ValueError:
        raise InvalidDraft(field, "a number too long to write", accepted) from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise InvalidDraft(field, f"{size} bytes", accepted)
    return clean, text


def fingerprint(**asked: object) -> str:
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


_OBEYED = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible_text(text: str) -> str:
    """Return text whose control and bidi characters are escaped as in JSON, for terminals."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def storable_text(value: object) -> str:
    """Return ``value`` as text that every database accepts, cut to 500 characters."""
    try:
        text = str.__str__(value) if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - the code of a transport's error may do anything
        text = f"{kind_of(value)} that cannot be written"
    text = text[:500].encode("utf-8", "replace").decode()
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _copied(body: Mapping[Any, object], name: str, accepted: str, *, most: int, depth: int) -> Body:
    """Copy a body into plain JSON values, at most ``most`` of them: each takes at least a byte."""
    copy: dict[str, Any] = {}
    containers: list[tuple[Any, Any, str, int]] = [(body, copy, name, depth)]
    while containers:
        source, target, path, levels = containers.pop()
        if levels == 0:
            raise InvalidDraft(name, "too many levels", accepted)
        is_object = isinstance(source, dict | Mapping)
        parts: Iterable[tuple[Any, Any]] = source.items() if is_object else enumerate(source)
        for key, value in parts:
            most -= 1
            if most <= 0:
                raise InvalidDraft(name, "too many values", accepted)
            if is_object and not (type(key) is str and key.isascii() and "\0" not in key):
                key = _json_key(key, path, accepted)  # noqa: PLW2901 - the same, as plain text
            part = value
            if not (type(value) is str and value.isascii() and "\0" not in value):
                place = f"{path}.{key[:40]}" if is_object else f"{path}[{key}]"
                if isinstance(value, _CONTAINERS):
                    part = {} if isinstance(value, Mapping) else []
                    containers.append((value, part, place, levels - 1))
                else:
                    part = _json_scalar(value, place, accepted)
            if is_object:
                target[key] = part
            else:
                target.append(part)
    return copy


def _json_key(key: object, path: str, accepted: str) -> str:
    if not isinstance(key, str):
        raise InvalidDraft(path, f"a key that is {kind_of(key)}", accepted)
    return _json_text(key, path, accepted)


def _json_scalar(value: object, place: str, accepted: str) -> str | float | None:
    if isinstance(value, str):
        return _json_text(value, place, accepted)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):  # also a member of an IntEnum, which a template would name
        return int.__int__(value)
    if not isinstance(value, float):
        raise InvalidDraft(place, f"{kind_of(value)}, which JSON does not know", accepted)
    number = float.__float__(value)
    if not math.isfinite(number):
        raise InvalidDraft(place, f"the number {number}", accepted)
    return number


def _json_text(value: str, place: str, accepted: str) -> str:
    text = plain(value)
    if "\0" in text:
        raise InvalidDraft(place, "holds a NUL character", accepted)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidDraft(place, "holds a lone surrogate", accepted) from None
    return text
