"""One shard's part of a message's terms, and the scripts that judge and book it.

Judging a long quota that is full but for single gaps takes more than one script may take. Then the
place is held, which all others count, and judged in bounded steps (``lua/check.lua``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import redis

from dispatcher.errors import IdempotencyConflict, ReservationsUnavailable
from dispatcher.lua import source
from dispatcher.redis_errors import reason
from dispatcher.redis_keys import ShardKeys
from dispatcher.reservation.terms import AnyQuota, Rules, Terms, joined
from dispatcher.scope import Scope

CLOSED = "the windows are not complete; the sweep rebuilds them from the store"
_ENDLESS = "no slot was found in a bounded search"
_MOST_CALLS = 10_000

_Attempt = Callable[[int, int, int, bytes], list[Any]]


@dataclass(frozen=True, slots=True)
class Submit:
    """One call of submit with an idempotency key. Twins are submits that share the key."""

    key: str
    fingerprint: str
    token: str = field(default_factory=lambda: uuid4().hex)


class Group(NamedTuple):
    """Those scopes of some terms that lie in one shard; their windows are judged together."""

    keys: ShardKeys
    terms: Terms
    scopes: tuple[Scope, ...]

    @property
    def windows(self) -> list[str]:
        """The names of the windows, in the order of the scopes."""
        return [self.keys.window(scope.name, scope.kind) for scope in self.scopes]


class Place(NamedTuple):
    """Where a message was booked, or held. The id is a twin's when a twin booked first."""

    message_id: UUID
    at_ms: int


class Blocked(NamedTuple):
    """Why a time does not fit, and until when.

    ``scope`` and ``quota`` are None where quiet hours are the reason. ``is_slot`` tells whether
    ``until_ms`` is known to fit this shard; if not, there is at least no slot before it.
    """

    until_ms: int
    scope: Scope | None
    quota: AnyQuota | None
    conflicting: tuple[UUID, ...]
    is_slot: bool


class Shards:
    """Judges, books and holds in one shard at a time. Raises ReservationsUnavailable."""

    def __init__(self, client: redis.Redis, rules: Rules, *, twins_life_ms: int) -> None:
        self._rules = rules
        self._twins_life_ms = twins_life_ms
        self._reserve = client.register_script(source("reserve"))
        self._next_slot = client.register_script(source("next_slot"))
        self._check = client.register_script(source("check"))
        self._hold = client.register_script(source("hold"))
        self._drop = client.register_script(source("drop"))
        self._move = client.register_script(source("move"))
        self._take = client.register_script(source("take"))
        self._release = client.register_script(source("release"))

    def book(
        self,
        group: Group,
        message_id: UUID,
        *,
        asked_ms: int,
        latest_ms: int,
        submit: Submit | None,
        pending_ahead_ms: int = 0,
    ) -> Place | Blocked:
        """Book the time asked for, or the first one after it up to ``latest_ms``."""

        def attempt(start_ms: int, latest_ms: int, step: int, hold: bytes) -> list[Any]:
            blocks, sky = self._table(group, start_ms, step)
            names = [group.keys.pending, group.keys.epoch]
            twin: tuple[str, str] = ("", "")
            if submit is not None:
                names.append(group.keys.twins(submit.key))
                twin = (submit.fingerprint, submit.token)
            many = len(blocks)
            words = [
                pending_ahead_ms, self._twins_life_ms, *joined(blocks, [sky]),
                message_id.bytes, start_ms, latest_ms, hold, *twin, 1, many, *range(1, many + 1),
            ]  # fmt: skip
            reply: list[Any] = self._call(self._reserve, [*names, *group.windows], words)[0]
            if reply[0] == b"conflict":
                raise IdempotencyConflict(submit.key if submit else "", UUID(bytes=reply[1]))
            return reply

        return self._searched(group, message_id, asked_ms, latest_ms, attempt)

    def move(
        self, group: Group, message_id: UUID, *, hold: bytes, asked_ms: int, latest_ms: int
    ) -> Place | Blocked:
        """Hold another place for a message that has one, judged as if its own were free."""

        def attempt(start_ms: int, latest_ms: int, step: int, held: bytes) -> list[Any]:
            del held  # once the place is held, the script answers with it
            blocks, sky = self._table(group, start_ms, step)
            words = [message_id.bytes, hold, start_ms, latest_ms, *joined(blocks, [sky])]
            names = [group.keys.pending, group.keys.epoch, *group.windows]
            reply: list[Any] = self._call(self._move, names, words)
            return reply

        return self._searched(group, message_id, asked_ms, latest_ms, attempt, hold=hold)

    def slot(self, group: Group, start_ms: int) -> int:
        """Return the first time at or after ``start_ms`` that fits. Books nothing."""
        for step in range(_MOST_CALLS):
            blocks, sky = self._table(group, start_ms, step)
            words = [start_ms, *joined(blocks, [sky])]
            reply = self._call(self._next_slot, [group.keys.epoch, *group.windows], words)
            start_ms = reply[1]
            if reply[0] == b"slot":
                return start_ms
            if reply[0] == b"unsure":
                blocked = self._checked(group, UUID(int=0), start_ms, b"")
                if blocked is None:
                    return start_ms
                start_ms = blocked.until_ms
        raise ReservationsUnavailable(_ENDLESS)

    def take(self, group: Group, message_id: UUID, hold: bytes) -> bool:
        """Make a hold the place of its message; tell whether it still stood everywhere."""
        names = [group.keys.pending, *group.windows]
        taken: int = self._call(self._take, names, [message_id.bytes, hold])
        return taken == len(group.scopes)

    def drop(self, group: Group, hold: bytes) -> None:
        """Give up a hold."""
        self._call(self._drop, [group.keys.pending, *group.windows], [hold])

    def release(self, group: Group, message_id: UUID, submit: Submit | None) -> bool:
        """Give a place back; tell whether it is free, which it is not while a twin needs it."""
        names = [group.keys.pending]
        if submit is not None:
            names.append(group.keys.twins(submit.key))
        words = [message_id.bytes, submit.token if submit else ""]
        freed: int = self._call(self._release, [*names, *group.windows], words)
        return freed == 1

    def _searched(
        self,
        group: Group,
        message_id: UUID,
        asked_ms: int,
        latest_ms: int,
        attempt: _Attempt,
        hold: bytes | None = None,
    ) -> Place | Blocked:
        """Repeat ``attempt`` until it finds a place, or cannot any more."""
        why: Blocked | None = None
        start_ms = asked_ms
        for step in range(_MOST_CALLS):
            reply = attempt(start_ms, max(start_ms, latest_ms), step, b"")
            word, at_ms = reply[0], reply[1]
            if word == b"booked":
                found = message_id if reply[2] == message_id.bytes else UUID(bytes=reply[2])
                return Place(found, at_ms)
            if word == b"held":
                return Place(message_id, at_ms)
            if word == b"unsure":
                place = self._book_slowly(group, message_id, at_ms, attempt, hold)
                if isinstance(place, Place):
                    return place
                why = why or place
                start_ms = place.until_ms
            else:
                blocked = self._blocked(group, reply)
                why = why or blocked
                if blocked.is_slot:
                    return why._replace(until_ms=at_ms, is_slot=True)
                start_ms = at_ms
            if start_ms > latest_ms:
                return why._replace(until_ms=start_ms, is_slot=False)
        raise ReservationsUnavailable(_ENDLESS)

    def _book_slowly(
        self, group: Group, message_id: UUID, at_ms: int, attempt: _Attempt, hold: bytes | None
    ) -> Place | Blocked:
        """Hold a time, judge it in bounded steps, and book it if it fits."""
        own = hold or new_hold(message_id)
        names = [group.keys.pending, group.keys.epoch, *group.windows]
        keep = False
        try:
            if not self._call(self._hold, names, [own, at_ms]):
                raise ReservationsUnavailable(CLOSED)
            blocked = self._checked(group, message_id, at_ms, own)
            if blocked is not None:
                return blocked
            reply = attempt(at_ms, at_ms, 0, own)
            if reply[0] not in {b"booked", b"held"}:  # lost meanwhile, by a rebuild
                raise ReservationsUnavailable(CLOSED)
            keep = hold is not None
            if reply[0] == b"held":
                return Place(message_id, reply[1])
            return Place(UUID(bytes=reply[2]), reply[1])
        finally:
            if not keep:
                self.drop(group, own)

    def _checked(self, group: Group, message_id: UUID, at_ms: int, hold: bytes) -> Blocked | None:
        """Judge one time in as many calls as it takes; None when it fits."""
        blocks, sky = self._table(group, at_ms, 0)
        table = joined(blocks, [sky])
        place: list[int] = [0, 0, 0]
        while True:
            words = [at_ms, message_id.bytes, hold, *place, *table]
            reply = self._call(self._check, [group.keys.epoch, *group.windows], words)
            if reply[0] == b"fits":
                return None
            if reply[0] == b"blocked":
                return self._blocked(group, reply)._replace(is_slot=False)
            place = reply[1:]

    def _table(self, group: Group, at_ms: int, step: int) -> tuple[Sequence[Any], Any]:
        try:
            return self._rules.table(group.terms, group.scopes, at_ms, step=step)
        except OverflowError:
            raise ReservationsUnavailable(_ENDLESS) from None

    def _blocked(self, group: Group, reply: list[Any]) -> Blocked:
        word, until_ms, place, number, *members = reply
        is_slot = word == b"refused"
        if place == 0:
            return Blocked(until_ms, None, None, (), is_slot)
        scope = group.scopes[place - 1]
        conflicting = tuple(UUID(bytes=member) for member in members)
        return Blocked(until_ms, scope, self._rules.quota(scope, number), conflicting, is_slot)

    def _call(self, script: Any, names: list[str], words: Sequence[Any]) -> Any:
        try:
            reply = script(keys=names, args=words)
        except redis.RedisError as error:
            raise ReservationsUnavailable(reason(error)) from error
        if isinstance(reply, list) and reply[0] in (b"closed", [b"closed"]):
            raise ReservationsUnavailable(CLOSED)
        return reply


def new_hold(message_id: UUID) -> bytes:
    """Return a member for a place that is not a message's yet: its id, then a random token."""
    return message_id.bytes + uuid4().hex[:12].encode()
