"""A set of limits on one Redis: keys, arguments and replies of its scripts, and its answers."""

from __future__ import annotations

import hashlib
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from redis.crc import key_slot

from dispatcher.errors import InvalidValue, LimitersUnavailable, kind_of, plain, quoted
from dispatcher.redis.errors import is_pool_full
from dispatcher.redis.keys import LimiterKeys
from dispatcher.redis.scripts import composed
from dispatcher.times.clock import MILLISECOND, Clock
from dispatcher.times.send_time import from_ms, to_ms

if TYPE_CHECKING:
    from dispatcher.limiters.algorithms import Algorithm

OnError = Literal["raise", "unknown", "allow"]
Keys: TypeAlias = str | Sequence[str]
"""One key for all limits, or one for each of them, in order."""
Reply: TypeAlias = Sequence[Any]
Words: TypeAlias = Sequence[str | int | bytes]

_MOST_KEPT_AT_ONCE = 1_000
"""The most permits of one call where each is an entry of its own, so that no script runs long.

They are taken all or none, by one script, so they cannot be split (benchmarks/RESULTS.md).
"""
_MOST = (1 << 53) - 1
"""Scripts count exactly up to here."""
_LONGEST_REMEMBERED_MS = 86_400_000
_LONGEST_WORDS_ARE_KEPT_MS = 10_000
_LONGEST_ID = 255
_LONGEST_KEY = 1_024
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ID = re.compile(rf"[^\0\ud800-\udfff]{{1,{_LONGEST_ID}}}")
_NO_WAIT = timedelta(0)


class State(StrEnum):
    """How a limiter answered."""

    ALLOWED = "allowed"
    REACHED = "reached"
    """Allowed, and nothing more is left: a batch may pause here."""
    REFUSED = "refused"
    OVERSIZED = "oversized"
    """Refused for good: a limit never gives so many permits at once."""
    UNKNOWN = "unknown"
    """Redis could not be asked. Allowed only where ``on_error`` says so."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One limit that refused.

    ``limit`` is its text: ``5/minute``, with a name ``login (5/minute)``, and of several that read
    alike ``5/minute (limit 2 of 3)``. ``index`` is its position among the limits, from 0.
    ``retry_after`` is how long it alone makes the caller wait; ``timedelta.max`` where it never
    gives so many permits at once.
    """

    limit: str
    index: int
    retry_after: timedelta


class Decision(NamedTuple):
    """A limiter's answer. True in a condition exactly when ``allowed``.

    Of several limits, ``limit``, ``remaining`` and ``reset_at`` are those of the one that
    decides: the one that makes the caller wait longest, or the one with the least room left.
    """

    allowed: bool
    """Whether it may go now."""
    state: State
    """How the limiter answered."""
    limit: int
    """How many permits the deciding limit gives at most; 0 where it counts nothing."""
    remaining: int
    """How many more it would give now."""
    retry_after: timedelta
    """How long to wait before asking again; zero when allowed.

    Exact if no other caller asks meanwhile.
    ``timedelta.max`` when the state is ``oversized``: waiting does not help.
    """
    reset_at: datetime
    """When no permit that was taken counts any more, by the server's clock, aware UTC."""
    granted: int = 0
    """How many permits were taken."""
    permit: str = ""
    """The id of the permits; ``give_back`` takes it."""
    refusals: tuple[Refusal, ...] = ()
    """All limits that refused, the longest wait first; empty unless refused."""
    position: int = 0
    """The position of the deciding limit among the limits, from 0."""

    @property
    def refused_by(self) -> str | None:
        """The limit that makes the caller wait longest, as text; None unless refused."""
        return self.refusals[0].limit if self.refusals else None

    def __bool__(self) -> bool:
        return self.allowed


@dataclass(frozen=True, slots=True)
class Request:
    """One of a group of requests: ``n`` permits for ``keys``, from some of the limits.

    ``limits`` says which, by their indexes from 0; None means all. ``keys`` is one key for all of
    these, or one for each. ``permit`` is an id of the caller's own; asked for again under the same
    id, the permits are granted again and not counted twice.
    """

    keys: Keys
    n: int = 1
    permit: str | None = None
    limits: tuple[int, ...] | None = None


class LimitSet:
    """A set of limits on one Redis: their arguments and keys, and how replies are read."""

    def __init__(
        self,
        parts: Sequence[Algorithm],
        *,
        prefix: str,
        tag: str | None,
        on_error: OnError,
        remember: timedelta | None,
        clock: Clock,
        cluster: bool,
    ) -> None:
        on_error = plain(on_error)
        if not isinstance(on_error, str) or on_error not in {"raise", "unknown", "allow"}:
            raise InvalidValue("on_error", quoted(on_error), "'raise', 'unknown' or 'allow'")
        self._kept_words: tuple[int | None, Words] = (None, ())
        self.parts = tuple(parts)
        self.aligned = any(part.aligned for part in parts)
        self._mosts = [part.most for part in parts]
        self._labels = [part.label for part in parts]
        prefix = checked_name(prefix, "prefix")
        tag = None if tag is None else checked_name(tag, "tag")
        self._names = LimiterKeys(prefix, tag)
        self._cluster = cluster
        self._distinct = len(set(self._labels)) == len(self._labels)
        self._digest = hashlib.sha256("+".join(self._labels).encode()).hexdigest()[:16]
        self.on_error = on_error
        self.span = 0
        if remember is not None:
            span = length_ms(remember, "remember", least=1_000, most=_LONGEST_REMEMBERED_MS)
            self.span = 0 if all(part.knows_permits for part in parts) else span
        self.clock = clock
        self.shift_ms = 0
        """By how much the server's clock is ahead, as far as that is known."""
        self._kinds = tuple(sorted({part.kind for part in parts}))
        self._all = range(len(parts))
        lengths = [part.length_ms for part in parts if part.aligned]
        self._words_kept_ms = min([_LONGEST_WORDS_ARE_KEPT_MS, *lengths])
        self._texts = texts_of(self.parts)
        holds = [part.hold_ms for part in parts if part.hold_ms]
        self.renew_every = min(holds, default=0) / 3_000
        """How often holds should be renewed, in seconds; 0 where permits are no holds."""

    def keys_of(self, keys: Keys, limits: Sequence[int] | None = None) -> Sequence[str]:
        """Return the caller's key for each of those limits. Raises InvalidValue."""
        number = len(self._labels) if limits is None else len(limits)
        if isinstance(keys, str):
            separate: Sequence[str] = (_checked_key(keys),) * number
        elif isinstance(keys, Sequence) and not isinstance(keys, bytes) and len(keys) == number:
            separate = [*map(_checked_key, keys)]
        else:
            raise InvalidValue("keys", quoted(keys), f"one text, or {number} of them in a sequence")
        if not self._distinct and len({*self.state_names(separate, limits)}) < number:
            problem = "two limits of one key have the same kind, count and length"
            raise InvalidValue("limits", problem, "another name= for each")
        tags = {self._names.hash_tag(key) for key in separate} if self._cluster else set()
        if len({key_slot(tag.encode()) for tag in tags}) > 1:
            problem = "lie in several slots of the cluster"
            raise InvalidValue("keys", problem, "one key, or limiters with a tag")
        return separate

    def state_names(self, keys: Sequence[str], limits: Sequence[int] | None = None) -> list[str]:
        labels = self._labels if limits is None else [self._labels[index] for index in limits]
        name = self._names.state
        return [name(label, key) for label, key in zip(labels, keys, strict=True)]

    def key_names(self, keys: Keys) -> list[str]:
        separate = self.keys_of(keys)
        return [*self.permit_names(separate[0]), *self.state_names(separate)]

    def permit_names(self, key: str) -> tuple[str, str]:
        """Return the names of the remembered permits of calls whose first key that is."""
        return self._names.permits(self._digest, key)

    def check_group(self, groups: Sequence[Sequence[str]]) -> None:
        """Raise InvalidValue unless one script may take permits for all of these keys."""
        if self._names.tag is None and len({key for keys in groups for key in keys}) > 1:
            accepted = "one key, or limiters with a tag"
            raise InvalidValue("requests", "name several keys", accepted)

    def text(self, script: str) -> str:
        return composed(f"limiters/{script}", self._kinds)

    def server_ms(self) -> int:
        """Return the server's time as far as that is known; 0 where it does not matter."""
        return to_ms(self.clock.now()) + self.shift_ms if self.aligned else 0

    def words(self, now_ms: int) -> Words:
        # Words of a limit in a zone name the coming windows, too: they hold for the shortest one.
        turn = now_ms // self._words_kept_ms
        if self._kept_words[0] != turn:
            self._kept_words = (turn, self.words_of(now_ms, [(part, 0) for part in self.parts]))
        return self._kept_words[1]

    def words_of(self, now_ms: int, limits: Iterable[tuple[Algorithm, int]]) -> Words:
        """Return what the scripts read of these limits, each given with its ``further``."""
        words: list[str | int | bytes] = []
        for part, further in limits:
            words += (part.kind, *part.words(now_ms, further))
        return words

    def decision(
        self, now_ms: int, reply: Reply, permit: str, chosen: Sequence[int] | None = None
    ) -> Decision:
        """Return the decision that a reply tells of one request.

        ``permit`` is empty where none were asked for, ``chosen`` are the limits of the request.
        """
        granted, wait, index, left, whole, *refused = reply
        chosen = self._all if chosen is None else chosen
        position = chosen[index - 1] if chosen else 0
        most = self._mosts[position] if chosen else 0
        state = State.ALLOWED
        if wait:
            state = State.OVERSIZED if wait < 0 else State.REFUSED
        elif left == 0 and most and permit:
            state = State.REACHED
        refusals = [
            Refusal(self._texts[chosen[number - 1]], chosen[number - 1], _length(ms))
            for number, ms in zip(refused[::2], refused[1::2], strict=True)
        ]
        return Decision(
            allowed=wait == 0,
            state=state,
            limit=most,
            remaining=left,
            retry_after=_length(wait),
            reset_at=from_ms(now_ms + whole),
            granted=granted,
            permit="" if wait else permit,
            refusals=tuple(sorted(refusals, key=attrgetter("retry_after"), reverse=True)),
            position=position,
        )

    def unknown(self, error: LimitersUnavailable, permit: str) -> Decision:
        """Answer for a Redis that does not answer; raise the error where that is the policy."""
        if self.on_error == "raise" or is_pool_full(error):
            raise error
        return Decision(
            allowed=self.on_error == "allow",
            state=State.UNKNOWN,
            limit=min((most for most in self._mosts if most), default=0),
            remaining=0,
            retry_after=_NO_WAIT,
            reset_at=self.clock.now(),
            permit=permit,
        )


def _length(wait_ms: int) -> timedelta:
    return timedelta.max if wait_ms < 0 else wait_ms * MILLISECOND


def texts_of(parts: Sequence[Algorithm]) -> list[str]:
    """Return the texts of limits that are asked together: no two alike."""
    plain = [str(part) if part.name is None else f"{part.name} ({part})" for part in parts]
    return [
        text if plain.count(text) == 1 else f"{text} (limit {number} of {len(parts)})"
        for number, text in enumerate(plain, start=1)
    ]


def new_id() -> str:
    return urlsafe_b64encode(os.urandom(9)).decode()  # 12 letters: every permit is stored with one


def checked(permit: str) -> str:
    if not isinstance(permit, str) or not _ID.fullmatch(permit):
        accepted = f"1 to {_LONGEST_ID} characters, without NUL and lone surrogates"
        raise InvalidValue("permit", quoted(permit), accepted)
    return plain(permit)


def check_permits(n: int, parts: Sequence[Algorithm], *, whole: bool = True) -> None:
    """Raise InvalidValue unless ``n`` permits can be asked for at once.

    More than a limit ever gives can be asked for, and is refused. ``whole``: all or none.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= _MOST:
        raise InvalidValue("n", f"{quoted(n)} permits", f"a whole number from 0 to {_MOST}")
    if n <= _MOST_KEPT_AT_ONCE or not any(part.keeps_each for part in parts):
        return
    most = min((part.most for part in parts if part.most), default=n)
    if most > _MOST_KEPT_AT_ONCE and (n <= most or not whole):
        accepted = f"at most {_MOST_KEPT_AT_ONCE} at once of a limit that keeps each of its permits"
        raise InvalidValue("n", f"{n} permits", accepted)


def length_ms(
    value: object, field: str, *, least: int, most: int, accepted: str | None = None
) -> int:
    is_whole = isinstance(value, timedelta) and not value % MILLISECOND
    ms = value // MILLISECOND if isinstance(value, timedelta) else 0
    if not is_whole or not least <= ms <= most:
        usual = f"a timedelta of {least} to {most} ms, without parts of a ms"
        raise InvalidValue(field, quoted(value), accepted or usual)
    return ms


def checked_name(text: str, field: str) -> str:
    """Return a text that can be part of the names of keys. Raises InvalidValue."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise InvalidValue(field, quoted(text), "1 to 64 letters, digits and any of _.-")
    return plain(text)


def _checked_key(key: str) -> str:
    accepted = f"a text of 1 to {_LONGEST_KEY} bytes in UTF-8"
    if not isinstance(key, str):
        raise InvalidValue("key", kind_of(key), accepted)
    key = plain(key)
    if not 1 <= len(key.encode(errors="replace")) <= _LONGEST_KEY:
        raise InvalidValue("key", f"{len(key)} characters", accepted)
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidValue("key", "holds a lone surrogate", accepted) from None
    return key
