"""Calls with an ``Idempotency-Key``: repeated, they are answered as the first time.

A call acts and stores its answer; a repeated one gets the stored bytes. The process may die between
any two steps, and two calls with one key may be under way at once.

The answer to a submit is stored in the transaction of its message (:func:`submit_once`). A submit
whose message was accepted before, by a line of a batch or for a key with other rights, is repeated
under the message's own idempotency key. What may be done twice is done before its answer is stored
(:func:`once`). A change first notes when it came and the version of the message that it is about
to change, and is made only to that version (:func:`change_once`). A message shows a change if it
has every value that the call asks for; lengths of time count from the first call:

=============================  ==========================================================
the message, to a later call   answer
=============================  ==========================================================
is as it was noted             the change is made; of two such calls one makes it
shows the change               200 with the message as it now is
has another status             what a new call gets: 409
was changed otherwise          412; a cancellation is made all the same
=============================  ==========================================================

A refused call has had no effect, and its key is free again. If another call with the key may have
acted, because it noted the change first or came between, the first refused repeat after a minute
frees the key. Where the outcome of a change is not known, its note stays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, NoReturn
from uuid import UUID

from starlette.responses import Response

from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    MessageChanged,
    OutcomeUnknown,
    QuotaExceeded,
    StoreUnavailable,
)
from dispatcher.faults import fault
from dispatcher.message import Message, Status, check_text
from dispatcher.store import Movable, NewReply, Replies, Reply
from dispatcher.submission import ReplyOf
from dispatcher.submission.moves import is_in_its_own_way
from dispatcher.times.send_time import from_ms, to_ms
from dispatcher.web.problems import Refused

LONGEST_KEY = 190
_MEDIA_TYPE = "application/json"
_REPLAYED = {"Idempotency-Replayed": "true"}
_TRIES = 10
_LONGEST_CALL = timedelta(minutes=1)
"""A call that noted a change longer ago than this and has no answer is dead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call: a status, a body as JSON, and headers; the message it speaks of."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: UUID | None = None

    def response(self) -> Response:
        """Return it to be sent."""
        return Response(self.body, self.status, headers=dict(self.headers), media_type=_MEDIA_TYPE)


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """A call with an idempotency key: the caller and its rights, the key, and all it asks for."""

    caller: str
    key: str
    content: str

    @property
    def id(self) -> str:
        """The name of its answer in the store."""
        return hashlib.sha256(f"{self.caller}\0{self.key}".encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The digest of what it asks for."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()


_VERSION = re.compile(r"([0-9]{1,20}-){4}[a-z]+")


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
        """Return the version of a message."""
        message = found.message
        at_ms = round(message.next_attempt_at.timestamp() * 1_000)
        counts = (message.attempt_count, message.max_attempts)
        return cls(found.token, *counts, at_ms, message.status)

    @classmethod
    def read(cls, text: str) -> Version:
        """Return the version with that text. Raises ValueError."""
        if _VERSION.fullmatch(text) is None:  # int() takes other digits, signs and blanks, too
            raise ValueError("no version")
        token, count, most, at_ms, status = text.split("-")
        return cls(int(token), int(count), int(most), int(at_ms), Status(status))

    def is_edited_since(self, before: Version) -> bool:
        """Whether the message was changed since then, or sent; that it was snoozed is no change."""
        return replace(before, next_attempt_ms=self.next_attempt_ms) != self

    def __str__(self) -> str:
        """Return it as text."""
        numbers = (self.move_token, self.attempt_count, self.max_attempts, self.next_attempt_ms)
        return "-".join((*map(str, numbers), self.status.value))


class FirstCall(NamedTuple):
    """What the first call with an idempotency key notes: the version that it saw, and its time."""

    version: Version
    at: datetime

    @classmethod
    def read(cls, text: str) -> FirstCall:
        """Return the note with that text."""
        version, _, at_ms = text.partition("@")
        return cls(Version.read(version), from_ms(int(at_ms or 0)))  # an older one has no time

    def __str__(self) -> str:
        """Return it as text."""
        return f"{self.version}@{to_ms(self.at)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a message, asked for ``at`` a time.

    ``make`` makes it, and raises MessageChanged where it gets a message that is not as it was;
    lengths of time count from the instant that it gets. ``is_made`` returns whether a message shows
    the change; ``answer`` is that of a message. ``if_match`` is the header, None without one.
    ``in_any_case``: whatever else has changed, it is made.
    """

    at: datetime
    read: Callable[[], Movable]
    make: Callable[[Message | None, datetime], Message]
    is_made: Callable[[FirstCall, Movable], bool]
    answer: Callable[[Movable], Answer]
    if_match: str | None
    in_any_case: bool = False


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


def once(replies: Replies, call: KeyedCall | None, act: Callable[[], Answer]) -> Response:
    """Answer a call by ``act``, which may be repeated, or as it was answered before.

    A ``call`` of None has no key. Raises Refused where the key was used for another call.
    """
    if call is None:
        return act().response()
    if (replayed := _found(replies.find(call.id), call)) is not None:
        return replayed
    return _finish(replies, call, act(), begun=False)


def submit_once(
    replies: Replies,
    call: KeyedCall | None,
    act: Callable[[ReplyOf | None], Message],
    answer: Callable[[Message], Answer],
    is_unsent: Callable[[UUID], bool],
) -> Response:
    """Submit a message by ``act`` and answer the call, or answer it as before.

    A ``call`` of None has no key; the key of a message that ``is_unsent`` is free. ``act`` stores
    the answer, which ``answer`` makes of the message, in the transaction of a new message.
    Raises Refused where the key was used for another call.
    """
    if call is None:
        return answer(act(None)).response()
    note = replies.find(call.id)
    if note is not None and note.message_id is not None and is_unsent(note.message_id):
        replies.drop(call.id, note.message_id)
        note = None
    if (replayed := _found(note, call)) is not None:
        return replayed
    made: tuple[Message, Answer] | None = None

    def reply_of(message: Message) -> NewReply:
        nonlocal made
        made = message, answer(message)
        return replies.new(
            call.id,
            fingerprint=call.fingerprint,
            status=made[1].status,
            headers=dict(made[1].headers),
            body=made[1].body,
        )

    message = act(reply_of)
    if made is not None and made[0] is message:
        return _stored(made[1])
    # It was submitted before.
    return _finish(replies, call, answer(message), begun=False, is_repeat=True)


def change_once(replies: Replies, call: KeyedCall | None, change: Change) -> Response:
    """Change a message and answer the call, or answer it as before.

    A ``call`` of None has no key. Raises as :func:`once` does, and MessageChanged where the
    ``if_match`` does not name the version.
    """
    if call is None:
        return _changed(change).response()
    is_alone = False
    act: Callable[[], Answer]
    for _ in range(_TRIES):
        now = change.read()
        note = _begin(replies, call, str(FirstCall(Version.of(now), change.at)))
        if not note.is_new:
            now = change.read()  # what was noted may be newer than what was read
        version = Version.of(now)
        is_alone |= note.is_new
        if note.status is not None:
            return _replay(note)
        first = FirstCall.read(note.seen) if note.seen else FirstCall(version, change.at)
        if not version.is_edited_since(first.version):
            act = partial(_guarded, change, now, first.at)
        elif change.is_made(first, now):
            return _finish(replies, call, change.answer(now), is_repeat=True)
        elif change.in_any_case or version.status is not first.version.status:
            act = partial(_guarded, change, now, first.at)
        else:
            act = partial(_refuse, now)
        try:
            return _finish(replies, call, _act(replies, call, act, is_alone=is_alone))
        except _Overtaken:
            is_alone = False  # perhaps by a call with the same key
    raise StoreUnavailable("other calls kept changing the message", remedy="try again")


class _Overtaken(Exception):
    """Another change came between reading the message and changing it."""


def _changed(change: Change) -> Answer:
    """Make a change without an idempotency key."""
    if change.if_match is None:
        change.make(None, change.at)
        return change.answer(change.read())
    for _ in range(_TRIES):
        try:
            return _guarded(change, change.read(), change.at)
        except _Overtaken:
            continue  # by If-Match it is judged anew
    raise StoreUnavailable("other calls kept changing the message", remedy="try again")


def _guarded(change: Change, now: Movable, at: datetime) -> Answer:
    """Make a change to this version only."""
    if change.if_match is not None and not _matches(change.if_match, now):
        raise MessageChanged(now.message.id)
    try:
        change.make(now.message, at)
    except MessageChanged:
        raise _Overtaken from None
    except QuotaExceeded as error:
        if is_in_its_own_way(now.message.id, error):  # by a twin, which may have stopped
            reason = "another move of the message holds a time there"
            raise StoreUnavailable(reason, remedy="try again") from None
        raise
    return change.answer(change.read())


def _refuse(now: Movable) -> NoReturn:
    raise MessageChanged(now.message.id)


def etag_of(found: Movable) -> str:
    """Return the entity tag of a message."""
    return f'"{Version.of(found)}"'


def _matches(if_match: str, now: Movable) -> bool:
    tags = {each.strip() for each in if_match.split(",")}
    return "*" in tags or etag_of(now) in tags


def _found(note: Reply | None, call: KeyedCall) -> Response | None:
    """Return the stored answer of a call, None without one: then it acts."""
    if note is not None:
        _check_same(note, call)
        if note.status is not None:
            return _replay(note)
    fault("api.before_act")
    return None


def _begin(replies: Replies, call: KeyedCall, seen: str | None) -> Reply:
    note = replies.begin(call.id, fingerprint=call.fingerprint, seen=seen)
    _check_same(note, call)
    if note.status is None:
        fault("api.after_begin")
    return note


def _check_same(note: Reply, call: KeyedCall) -> None:
    if note.fingerprint != call.fingerprint:
        raise Refused(422, "idempotency-conflict", "the key was used before, for another call")


def _act(replies: Replies, call: KeyedCall, act: Callable[[], Answer], *, is_alone: bool) -> Answer:
    """Act; forget the call if it is refused.

    If an earlier call with this key may be under way, its note stays: without it, that call's
    change would look like another caller's.
    """
    try:
        return act()
    except OutcomeUnknown:
        raise
    except (DispatcherError, Refused) as error:
        if not isinstance(error, StoreUnavailable) or error.refused:
            older_than = timedelta(0) if is_alone else _LONGEST_CALL
            replies.forget(call.id, fingerprint=call.fingerprint, older_than=older_than)
        raise


def _finish(
    replies: Replies,
    call: KeyedCall,
    answer: Answer,
    *,
    begun: bool = True,
    is_repeat: bool = False,
) -> Response:
    """Store the answer, and return the one that is stored.

    It is marked as repeated where another call had the effect (``is_repeat``), or, for what may be
    done twice, where another call stored its answer first.
    """
    fault("api.after_act")
    stored = replies.finish(
        call.id,
        fingerprint=call.fingerprint,
        status=answer.status,
        headers=dict(answer.headers),
        body=answer.body,
        message_id=answer.message_id,
        begun=begun,
    )
    headers = dict(stored.headers)
    if is_repeat or not (begun or stored.is_new):
        headers |= _REPLAYED
    return _stored(Answer(stored.status or answer.status, stored.body or "", headers))


def _stored(answer: Answer) -> Response:
    """Return an answer that is stored, to be sent."""
    fault("api.after_finish")
    return answer.response()


def _replay(reply: Reply) -> Response:
    headers = {**reply.headers, **_REPLAYED}
    return Answer(reply.status or 200, reply.body or "", headers).response()
