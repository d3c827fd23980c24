"""Booking, searching and giving back: one script and one round trip each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import redis

from dispatcher.errors import IdempotencyConflict, QuotaExceeded, ReservationsUnavailable
from dispatcher.lua import source
from dispatcher.quota import Quota
from dispatcher.redis_errors import reason
from dispatcher.redis_keys import ShardKeys, shard_of
from dispatcher.reservation.answers import translated
from dispatcher.sendtime import from_ms, to_ms

KEEP_MS = 86_400_000
"""How much longer than the longest quota a reservation is kept: room for clocks that are wrong."""

_CLOSED = "the windows are not complete; the sweep rebuilds them from the store"
_MOST_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class Submit:
    """One call of submit with an idempotency key. Twins are submits that share the key."""

    key: str
    fingerprint: str
    token: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class Booking:
    """A place in a window. ``message_id`` is the twin's when a twin booked first."""

    message_id: UUID
    scope: str
    send_at: datetime
    submit: Submit | None = None


class Windows:
    """The windows of all scopes.

    A window is a ZSET of one scope's reservations: member message id (16 bytes), score send_at in
    ms. For a quota of N per W a time t is refused exactly when N consecutive members that lie
    within less than W of each other would, with t, be N+1 within less than W
    (``lua/rule.lua``; docs/decisions/0002-reservation-rule.md). Calls are idempotent by message
    id and raise ReservationsUnavailable whenever Redis cannot be trusted to answer.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        namespace: str,
        shards: int,
        quotas: Sequence[Quota],
        twins_life: timedelta,
    ) -> None:
        self._shards = [ShardKeys(namespace, shard) for shard in range(shards)]
        self._quotas = tuple(quotas)
        self._twins_life_ms = twins_life // timedelta(milliseconds=1)
        self._flat = [part for quota in quotas for part in (quota.count, quota.length_ms)]
        self._extremes = (
            max(quota.length_ms for quota in quotas),
            min(quota.count for quota in quotas),
        )
        self._reserve = client.register_script(source("reserve"))
        self._next_slot = client.register_script(source("next_slot"))
        self._release = client.register_script(source("release"))

    def reserve(
        self,
        message_id: UUID,
        *,
        scope: str,
        send_at: datetime,
        latest: datetime | None = None,
        submit: Submit | None = None,
    ) -> Booking:
        """Book ``send_at``, or with ``latest`` the first time up to it that fits every quota.

        Raises QuotaExceeded when nothing fits, IdempotencyConflict when a twin under way asks for
        something else, ReservationsUnavailable when the windows cannot be trusted; in each case
        nothing is booked.
        """
        keys = self._keys(scope)
        names = [keys.window(scope), keys.pending, keys.epoch]
        asked = to_ms(send_at)
        limit = max(asked, to_ms(latest)) if latest else asked
        twin: tuple[str | int, ...] = ("", "", "")
        if submit:
            names.append(keys.twins(submit.key))
            twin = (submit.fingerprint, submit.token, self._twins_life_ms)
        start = asked
        for _ in range(_MOST_CALLS):
            arguments = (
                message_id.bytes, asked, start, limit, *twin, *self._extremes, *self._flat
            )  # fmt: skip
            reply = self._call(self._reserve, names, arguments)
            match reply[0]:
                case b"booked":
                    if reply[2] != message_id.bytes:
                        message_id = UUID(bytes=reply[2])
                    return Booking(message_id, scope, from_ms(reply[1]), submit)
                case b"conflict":
                    raise IdempotencyConflict(submit.key if submit else "", UUID(bytes=reply[1]))
                case b"searching" if limit > asked:
                    start = reply[1]
                case _:
                    raise self._refusal(scope, send_at, reply)
        raise ReservationsUnavailable("no slot was found in a bounded search")

    def next_slot(self, scope: str, after: datetime) -> datetime:
        """Return the first time at or after ``after`` that fits every quota. Books nothing."""
        keys = self._keys(scope)
        start = to_ms(after)
        for _ in range(_MOST_CALLS):
            reply = self._call(
                self._next_slot, [keys.window(scope), keys.epoch], (start, *self._flat)
            )
            start = reply[1]
            if reply[0] == b"slot":
                return from_ms(start)
        raise ReservationsUnavailable("no slot was found in a bounded search")

    def release(self, message_id: UUID, scope: str) -> None:
        """Give a reservation back; harmless when there is none."""
        keys = self._keys(scope)
        names = [keys.window(scope), keys.pending]
        with translated():
            self._release(keys=names, args=[message_id.bytes])

    def withdraw(self, booking: Booking) -> None:
        """Give back what a submit booked that stored nothing.

        Where a twin relies on the same booking it stays; the last one to give up returns it.
        """
        if booking.submit is None:
            self.release(booking.message_id, booking.scope)
            return
        keys = self._keys(booking.scope)
        names = [keys.window(booking.scope), keys.pending, keys.twins(booking.submit.key)]
        with translated():
            self._release(keys=names, args=[booking.message_id.bytes, booking.submit.token])

    def _keys(self, scope: str) -> ShardKeys:
        return self._shards[shard_of(scope, len(self._shards))]

    def _call(self, script: Any, names: list[str], arguments: tuple[Any, ...]) -> list[Any]:
        try:
            reply: list[Any] = script(keys=names, args=arguments)
        except redis.RedisError as error:
            raise ReservationsUnavailable(reason(error)) from error
        if reply[0] == b"closed":
            raise ReservationsUnavailable(_CLOSED)
        return reply

    def _refusal(self, scope: str, send_at: datetime, reply: list[Any]) -> QuotaExceeded:
        slot = from_ms(reply[1])
        if reply[0] == b"searching":
            slot = self.next_slot(scope, slot)
        return QuotaExceeded(
            quota=str(self._quotas[reply[2] - 1]),
            scope=scope,
            send_at=send_at,
            conflicting=[UUID(bytes=member) for member in reply[3:]],
            next_slot=slot,
        )
