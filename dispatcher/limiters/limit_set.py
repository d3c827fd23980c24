"""A set of limits on one Redis: the arguments of its scripts and their replies. Sends nothing.

Every operation is a generator of steps: it yields a :class:`Call` or a :class:`Pause`, is sent the
reply, and returns the answer. The limiters for ``redis`` and for ``redis.asyncio`` run the same
steps. ``operations.py`` has the operations for one key, ``groups.py`` that for a group.
"""

from __future__ import annotations

import math
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias, TypeVar

from dispatcher.errors import InvalidValue, LimitersUnavailable, quoted
from dispatcher.limiters.addresses import Addresses
from dispatcher.limiters.base import Part, length_ms
from dispatcher.limiters.decision import MILLISECOND, NEVER, Decision, Refusal, State
from dispatcher.redis.scripts import composed
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import to_ms

T = TypeVar("T")
OnFault = Literal["raise", "unknown"]

_LONGEST_REMEMBERED_MS = 86_400_000
_LONGEST_ID = 255
_TRIES = 3
_LONGEST_WORDS_ARE_KEPT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Call:
    """One script, its keys and its arguments."""

    script: str
    keys: Sequence[str]
    args: Sequence[str | int | bytes]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds."""

    seconds: float


Reply: TypeAlias = Sequence[int]
Steps: TypeAlias = Generator[Call | Pause, Reply, T]
Words: TypeAlias = Sequence[str | int | bytes]


class LimitSet:
    """A set of limits on one Redis: their arguments and keys, and how replies are read."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        prefix: str,
        tag: str | None,
        on_fault: OnFault,
        remember: timedelta | None,
        clock: Clock,
        cluster: bool,
    ) -> None:
        if not isinstance(on_fault, str) or on_fault not in {"raise", "unknown"}:
            raise InvalidValue("on_fault", quoted(on_fault), "'raise' or 'unknown'")
        self.parts = tuple(parts)
        self.addresses = Addresses(parts, prefix=prefix, tag=tag, cluster=cluster)
        self._on_fault = on_fault
        self.span = 0
        if remember is not None:
            span = length_ms(remember, "remember", least=1_000, most=_LONGEST_REMEMBERED_MS)
            self.span = 0 if all(each.knows_permits for each in parts) else span
        self.clock = clock
        self._shift_ms = 0  # by how much the server's clock is ahead, as far as that is known
        self._kinds = tuple(sorted({each.kind for each in parts}))
        self.aligned = any(each.aligned for each in parts)
        lengths = [each.length_ms for each in parts if each.aligned]
        self._words_kept_ms = min([_LONGEST_WORDS_ARE_KEPT_MS, *lengths])
        self._kept_words: tuple[int | None, Words] = (None, ())
        self._fixed_words: Words = () if self.aligned else self.words_of(0, parts)
        self._mosts = [each.most for each in parts]
        self._most = min((most for most in self._mosts if most), default=0)
        self._texts = _texts(self.parts)

    def text(self, script: str) -> str:
        """Return the text of a script for these limits."""
        return composed(f"limiters/{script}", self._kinds)

    def ask(self, call: Callable[[int], Call]) -> Steps[Reply]:
        """Ask, and ask again with other calendar periods where the server's time needs them."""
        for _ in range(_TRIES):
            now_ms = self.server_ms()
            reply = yield call(now_ms)
            if len(reply) > 1:
                return reply
            self._shift_ms += reply[0] - now_ms
        raise LimitersUnavailable("the clock of Redis or of this machine keeps jumping")

    def server_ms(self) -> int:
        """Return the server's time as far as that is known; 0 where it does not matter."""
        return to_ms(self.clock.now()) + self._shift_ms if self.aligned else 0

    def words(self, now_ms: int) -> Words:
        """Return the arguments of all limits, at about that time (ms since 1970)."""
        if not self.aligned:
            return self._fixed_words
        # The words tell of windows to come, so they may be as old as the shortest is long.
        turn = now_ms // self._words_kept_ms
        if self._kept_words[0] != turn:
            self._kept_words = (turn, self.words_of(now_ms, self.parts))
        return self._kept_words[1]

    def words_of(self, now_ms: int, parts: Sequence[Part], turns: Sequence[int] = ()) -> Words:
        """Return the arguments by which the scripts know some limits.

        ``turns`` says for each how many windows after the next one may be given as a turn.
        """
        words: list[str | int | bytes] = []
        for part, further in zip(parts, turns or [0] * len(parts), strict=True):
            words += (part.kind, *part.words(now_ms, further))
        return words

    def decision(
        self,
        now_ms: int,
        reply: Reply,
        chosen: Sequence[int] | None,
        permit: str,
        *,
        peeked: bool = False,
    ) -> Decision:
        """Return the decision for the integers of one request in a reply."""
        granted, wait, index, left, whole, _, *refused = reply
        if chosen == ():
            return Decision(
                allowed=True,
                state=State.ALLOWED,
                limit=0,
                remaining=0,
                retry_after=0,
                reset_at=now_ms,
                granted=granted,
                permit=permit,
            )
        number = index - 1 if chosen is None else chosen[index - 1]
        most = self._mosts[number]
        state = State.ALLOWED
        if wait:
            state = State.REFUSED if wait > 0 else State.OVERSIZED
        elif left == 0 and most and not peeked:
            state = State.REACHED
        return Decision(
            allowed=wait == 0,
            state=state,
            limit=most,
            remaining=left,
            retry_after=NEVER if wait < 0 else wait,
            reset_at=now_ms + whole,
            granted=granted,
            permit="" if wait or peeked else permit,
            refusals=self._refusals(refused, chosen) if wait else (),
        )

    def _refusals(
        self, refused: Sequence[int], chosen: Sequence[int] | None
    ) -> tuple[Refusal, ...]:
        """Return the refusals for pairs of an index and a wait."""
        pairs = zip(refused[::2], refused[1::2], strict=True)
        found = [
            (index - 1 if chosen is None else chosen[index - 1], wait) for index, wait in pairs
        ]
        found.sort(key=lambda each: math.inf if each[1] < 0 else each[1], reverse=True)
        return tuple(
            Refusal(self._texts[index], index, NEVER if wait < 0 else wait * MILLISECOND)
            for index, wait in found
        )

    def spacing(self, refused: Decision) -> float:
        """Return how far apart permits of the limit that refused are on average, in seconds."""
        return self.parts[refused.refusals[0].place].spacing_ms / 1_000

    def unknown(self, error: LimitersUnavailable, permit: str) -> Decision:
        """Answer for a Redis that could not be asked, if that is the policy."""
        if self._on_fault == "raise":
            raise error
        return Decision(
            allowed=False,
            state=State.UNKNOWN,
            limit=self._most,
            remaining=0,
            retry_after=0,
            reset_at=self.clock.now(),
            permit=permit,
        )


def _texts(parts: Sequence[Part]) -> list[str]:
    """Return the texts of the limits in refusals: no two alike."""
    plain = [str(each) if each.name is None else f"{each.name} ({each})" for each in parts]
    return [
        text if plain.count(text) == 1 else f"{text} (limit {number} of {len(parts)})"
        for number, text in enumerate(plain, start=1)
    ]


def new_id() -> str:
    """Return a new permit id."""
    return urlsafe_b64encode(os.urandom(9)).decode()  # 12 letters: every permit is stored with one


def checked(permit: str) -> str:
    """Return a permit id of the caller's. Raises InvalidValue."""
    accepted = f"1 to {_LONGEST_ID} letters, without NUL"
    if not isinstance(permit, str) or not 1 <= len(permit) <= _LONGEST_ID or "\0" in permit:
        raise InvalidValue("permit", quoted(permit), accepted)
    return permit
