"""The windows of Redis in memory: one shard at a time, as the scripts do it.

``Windows`` works on it unchanged. ``test_redis_double.py`` compares it with the scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import redis

from dispatcher.errors import IdempotencyConflict
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation import Blocked, Moving, Reservation, Rules, Submit, Windows
from dispatcher.reservation.booking import EVERYONE, Leg, LegRequest
from dispatcher.reservation.shards import LegResult, closed
from dispatcher.reservation.terms import AnyQuota
from dispatcher.scope import Scope
from dispatcher.testing.memory.rule import Judge, Rule
from dispatcher.testing.memory.server import Duplicates, ScoredSet, Server
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.send_time import to_ms

T = TypeVar("T")


class MemoryShards:
    """Stands in for ``dispatcher.reservation.shards.Shards``."""

    def __init__(
        self, server: Server, quotas: Mapping[str, Sequence[AnyQuota]], *, under_way: timedelta
    ) -> None:
        self._server = server
        self._rule = Rule(quotas)
        self._life_ms = under_way // MILLISECOND

    def book(self, requests: Sequence[LegRequest], *, pending_grace_ms: int = 0) -> list[LegResult]:
        return self._each(requests, lambda each: self._booked(each, pending_grace_ms))

    def _booked(self, request: LegRequest, ahead_ms: int) -> LegResult:
        leg, message_id, submit = request.leg, request.message_id, request.submit
        windows = self._windows(leg)
        duplicates = self._duplicates(leg, submit)
        if duplicates is not None and submit is not None:
            if duplicates.fingerprint != submit.fingerprint:
                return IdempotencyConflict(submit.key, duplicates.id)
            if duplicates.id == message_id or any(
                duplicates.id.bytes in each for each in windows.values()
            ):
                message_id = duplicates.id
            else:  # given up: its id is never stored
                del self._server.holds.duplicates[leg.keys.duplicates(submit.name)]
                duplicates = None
        own = message_id.bytes
        places = [int(window[own]) for window in windows.values() if own in window]
        missing = {scope: each for scope, each in windows.items() if own not in each}
        at_ms = places[-1] if places else request.asked_ms
        if missing:
            judge = self._judge(missing, leg, ())
            found = judge.found(at_ms, at_ms if places else request.latest_ms)
            if isinstance(found, Blocked):
                return found
            at_ms = found
        for window in missing.values():
            window[own] = at_ms
        now_ms = self._server.now_ms() + ahead_ms
        for name in leg.windows:
            self._wait_for(leg, own, name, now_ms, again=True)
        if submit is not None:
            if duplicates is None:
                duplicates = Duplicates(message_id, submit.fingerprint, 0)
                self._server.holds.duplicates[leg.keys.duplicates(submit.name)] = duplicates
            ends_at_ms = self._server.now_ms() + self._life_ms + ahead_ms
            duplicates.ends_at_ms = max(duplicates.ends_at_ms, ends_at_ms)
            duplicates.by.add(submit.token)
        return at_ms if message_id == request.message_id else Reservation(message_id, at_ms)

    def release(self, leg: Leg, message_id: UUID, submit: Submit | None) -> bool:
        windows, own = self._windows(leg), message_id.bytes
        if submit is not None:
            duplicates = self._duplicates(leg, submit)
            if submit.token == EVERYONE:
                if duplicates is not None and duplicates.id == message_id:
                    del self._server.holds.duplicates[leg.keys.duplicates(submit.name)]
                self._remove(leg, own)
                return True
            if duplicates is None or submit.token not in duplicates.by:
                return all(own not in window for window in windows.values())
            duplicates.by.remove(submit.token)
            if duplicates.by:
                return False
            del self._server.holds.duplicates[leg.keys.duplicates(submit.name)]
        self._remove(leg, own)
        return True

    def release_many(self, booked: Iterable[tuple[Leg, UUID, Submit | None]]) -> list[bool]:
        return [self.release(*each) for each in booked]

    def hold(self, requests: Sequence[LegRequest]) -> list[Reservation | Blocked]:
        return self._each(requests, self._held)

    def _held(self, request: LegRequest) -> Reservation | Blocked:
        leg, message_id, hold = request.leg, request.message_id, request.hold
        windows = self._windows(leg)
        now_ms = self._server.now_ms()
        held = {window.get(hold) for window in windows.values()}
        at_ms = held.pop()
        if not held and at_ms is not None and request.asked_ms <= at_ms <= request.latest_ms:
            return Reservation(message_id, int(at_ms), now_ms)
        free = {message_id.bytes, hold, request.beside}
        found = self._judge(windows, leg, free).found(request.asked_ms, request.latest_ms)
        if isinstance(found, Blocked):
            return found
        for name, window in zip(leg.windows, windows.values(), strict=True):
            window[hold] = found
            self._wait_for(leg, hold, name, now_ms)
        return Reservation(message_id, found, now_ms)

    def slot(self, leg: Leg, start_ms: int, mover: UUID | None = None) -> int:
        self._open(leg)
        free = {mover.bytes} if mover else set()
        return self._judge(self._windows(leg), leg, free).slot(start_ms)

    def have(self, held: Sequence[tuple[Sequence[Leg], Moving]]) -> list[bool]:
        return [self._has(*each) for each in held]

    def _has(self, legs: Sequence[Leg], moving: Moving) -> bool:
        windows = [each for leg in legs for each in self._windows(leg).values()]
        return {window.get(moving.hold) for window in windows} == {to_ms(moving.send_at)}

    def take(self, held: Sequence[tuple[Leg, Moving, int]]) -> list[bool]:
        return [self._is_taken(*each) for each in held]

    def _is_taken(self, leg: Leg, moving: Moving, token: int) -> bool:
        windows, now_ms = self._windows(leg), self._server.now_ms()
        own, hold, at_ms = moving.message_id.bytes, moving.hold, to_ms(moving.send_at)
        is_alive = moving.held_at_ms > now_ms - self._life_ms
        names = dict(zip(leg.windows, windows.values(), strict=True))
        is_late = {
            name: self._server.move_token(leg.keys, moving.message_id, name) >= token
            for name in names
        }
        for name, window in names.items():
            if not is_late[name] and not (is_alive and window.get(hold) == at_ms):
                return False
        for name, window in names.items():
            window.pop(hold, None)
            self._server.holds.pending[leg.keys].pop((hold, name), None)
            if not is_late[name]:
                window[own] = at_ms
                self._wait_for(leg, own, name, now_ms)
                self._server.tell(leg.keys, moving.message_id, name, token, life_ms=self._life_ms)
        return True

    def drop(self, holds: Sequence[tuple[Leg, bytes]]) -> None:
        for leg, hold in holds:
            self._remove(leg, hold)

    def _wait_for(
        self, leg: Leg, member: bytes, name: str, at_ms: int, *, again: bool = False
    ) -> None:
        pending = self._server.holds.pending[leg.keys]
        at_ms = max(at_ms, pending.get((member, name), at_ms)) if again else at_ms
        pending[member, name] = at_ms

    def _remove(self, leg: Leg, member: bytes) -> None:
        for name, window in zip(leg.windows, self._windows(leg).values(), strict=True):
            window.pop(member, None)
            self._server.holds.pending[leg.keys].pop((member, name), None)

    def _duplicates(self, leg: Leg, submit: Submit | None) -> Duplicates | None:
        if submit is None:
            return None
        found = self._server.holds.duplicates.get(leg.keys.duplicates(submit.name))
        return found if found and found.ends_at_ms >= self._server.now_ms() else None

    def _windows(self, leg: Leg) -> dict[Scope, ScoredSet]:
        windows = self._server.holds.windows
        return {scope: windows[name] for scope, name in zip(leg.scopes, leg.windows, strict=True)}

    def _each(self, requests: Sequence[LegRequest], decide: Callable[[LegRequest], T]) -> list[T]:
        """Decide every request whose shard is open, as a pipeline of scripts does.

        Raises ReservationsUnavailable afterwards where a shard is closed.
        """
        epochs = self._server.holds.epochs
        found = [decide(each) for each in requests if each.leg.keys in epochs]
        if len(found) < len(requests):
            raise closed()
        return found

    def _open(self, leg: Leg) -> None:
        if leg.keys not in self._server.holds.epochs:
            raise closed()

    def _judge(self, windows: Mapping[Scope, ScoredSet], leg: Leg, free: Iterable[bytes]) -> Judge:
        """Return the judge of times in these windows, where members in ``free`` do not count."""
        left = {member for member in free if any(member in each for each in windows.values())}
        members = {
            scope: [each for each in window.ordered if each[1] not in left]
            if left
            else window.ordered
            for scope, window in windows.items()
        }
        return Judge(self._rule, members, leg.terms)


def windows_on(
    shards: Any,
    quotas: Mapping[str, Sequence[AnyQuota]],
    *,
    keys: Sequence[ShardKeys],
    under_way: timedelta,
) -> Windows:
    """Return the windows themselves, on these shards: they reach no server."""
    windows = Windows(redis.Redis(), Rules(quotas), keys=keys, under_way=under_way)
    windows.shards = shards
    return windows
