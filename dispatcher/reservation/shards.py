"""Books, holds, searches and releases legs by the scripts of their shards.

To judge a long quota that is full but for single gaps takes longer than one script may run. Then
the time is held, so that all others count it, and judged in bounded steps (``lua/check.lua``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import redis

from dispatcher.errors import IdempotencyConflict, ReservationsUnavailable
from dispatcher.redis.errors import ERRORS, cause, reason, remedy
from dispatcher.redis.scripts import Call, Script, packed, replies_of, script
from dispatcher.reservation.booking import Blocked, BookingRequest, Leg, Slot, Submit
from dispatcher.reservation.encoding import ENDLESS, ID_BYTES, member_of, new_tail

CLOSED = "Redis windows are being rebuilt from SQL; retry in 1 s (needs a running worker and beat)"
RETRY_AFTER = timedelta(seconds=1)
"""When to ask again while windows are closed: a rebuild takes the settle time and some more."""
_MOST_AT_ONCE = 250
"""Most messages that one script books; it then runs for a few milliseconds at most."""
_MOST_CALLS = 10_000
_CLOSED_REPLY = [b"closed"]

LegRequest = tuple[Leg, BookingRequest]
LegAnswer = Slot | Blocked | IdempotencyConflict


class Shards:
    """The windows by shard. Every call raises ReservationsUnavailable.

    The client makes calls again whose replies are lost: every script is idempotent.
    """

    def __init__(self, client: redis.Redis, *, under_way_ms: int) -> None:
        self._client = client
        self._under_way_ms = under_way_ms
        self._reserve = script("reservation/reserve")
        self._next_slot = script("reservation/next_slot")
        self._check = script("reservation/check")
        self._release = script("reservation/release")

    def book(self, requests: Sequence[LegRequest], *, pending_grace_ms: int = 0) -> list[LegAnswer]:
        """Reserve legs, those of each shard one after the other, each seeing those before it.

        All shards are asked in one round trip, as long as each judgement ends in one call.
        """
        answers: dict[int, LegAnswer] = {}
        waiting: dict[int, list[int]] = {}
        for number, (leg, _) in enumerate(requests):
            waiting.setdefault(leg.keys.shard, []).append(number)
        while waiting:
            calls = [
                requests[0][0].rules.reserve_call(
                    [requests[number] for number in numbers[:_MOST_AT_ONCE]],
                    under_way_ms=self._under_way_ms,
                    pending_grace_ms=pending_grace_ms,
                )
                for numbers in waiting.values()
            ]
            for shard, replies in zip([*waiting], self._run(self._reserve, calls), strict=True):
                numbers = waiting[shard]
                # A list ends early behind a search that goes on: nothing may overtake it.
                for number, reply in zip(numbers, replies, strict=False):
                    leg, request = requests[number]
                    if isinstance(reply, int):
                        answers[number] = Slot(request.message_id, reply, request)
                    else:
                        answers[number] = _final(request, reply) or self._searched(
                            leg, request, reply, pending_grace_ms
                        )
                del numbers[: len(replies)]
                if not numbers:
                    del waiting[shard]
        return [answers[number] for number in range(len(requests))]

    def slot(self, leg: Leg, start_ms: int, free: bytes = b"") -> int:
        """Return the first time from ``start_ms`` on that fits without the member ``free``."""
        names = [leg.keys.epoch, *leg.windows]
        for step in range(_MOST_CALLS):
            words = [start_ms, free, packed(leg.rules.table(leg, start_ms, step=step))]
            word, start_ms = self._run_once(self._next_slot, (names, words))
            if word == b"slot":
                return start_ms
            if word == b"unsure":
                blocked = self._checked(leg, free, start_ms, b"")
                if blocked is None:
                    return start_ms
                start_ms = blocked.until_ms
        raise ReservationsUnavailable(ENDLESS)

    def release_many(self, booked: Iterable[tuple[Leg, bytes, Submit | None]]) -> list[bool]:
        """Release members; return of each whether it is free: a duplicate submit may rely on it."""
        calls: list[Call] = []
        for leg, member, submit in booked:
            names = [leg.keys.pending]
            if submit is not None:
                names.append(leg.keys.duplicates(submit.name))
            token = submit.token if submit else ""
            calls.append(([*names, *leg.windows], [member, token]))
        return [freed == 1 for freed in self._run(self._release, calls)]

    def _searched(
        self, leg: Leg, booking: BookingRequest, reply: Any, pending_grace_ms: int
    ) -> LegAnswer:
        why: Blocked | None = None
        for step in range(1, _MOST_CALLS + 1):
            word, start_ms, *facts = reply
            if facts:
                why = why or self._blocked(leg, reply)
            if word == b"unsure":
                judged = self._judged(leg, booking, start_ms, pending_grace_ms)
                if not isinstance(judged, Blocked):
                    return judged
                why, start_ms = why or judged, judged.until_ms
            if why and word == b"refused":
                return why._replace(until_ms=start_ms)
            if why and start_ms > booking.latest_ms:
                # Before the requests behind it, which must not change what it is told.
                return why._replace(until_ms=self.slot(leg, start_ms, booking.left))
            call = leg.rules.reserve_call(
                [(leg, booking._replace(asked_ms=start_ms))],
                under_way_ms=self._under_way_ms,
                pending_grace_ms=pending_grace_ms,
                step=step,
            )
            [reply] = self._run_once(self._reserve, call)
            answer = _final(booking, reply)
            if answer is not None:
                return answer
        raise ReservationsUnavailable(ENDLESS)

    def _judged(
        self, leg: Leg, booking: BookingRequest, at_ms: int, pending_grace_ms: int
    ) -> LegAnswer:
        """Hold a time, judge it in bounded steps, and book it if it fits.

        Each hold has a name of its own, so that late copies of these calls change nothing booked.
        """
        own = member_of(booking.message_id, new_tail())
        try:
            blocked = self._checked(leg, booking.left or booking.member, at_ms, own)
            if blocked is not None:
                return blocked
            call = leg.rules.reserve_call(
                [(leg, booking._replace(asked_ms=at_ms, latest_ms=at_ms))],
                under_way_ms=self._under_way_ms,
                pending_grace_ms=pending_grace_ms,
                judged=own,
            )
            [reply] = self._run_once(self._reserve, call)
            answer = _final(booking, reply)
            if answer is None:  # a rebuild or reconcile took the hold meanwhile
                raise closed()
            return answer
        finally:
            self.release_many([(leg, own, None)])

    def _checked(self, leg: Leg, own: bytes, at_ms: int, hold: bytes) -> Blocked | None:
        names = [leg.keys.pending, leg.keys.epoch, *leg.windows]
        judged_by = packed(leg.rules.table(leg, at_ms))
        resume: Sequence[int] = (0, 0, 0)
        while True:
            words = [at_ms, own, hold, *resume, judged_by]
            reply = self._run_once(self._check, (names, words))
            if reply[0] == b"fits":
                return None
            if reply[0] == b"blocked":
                return self._blocked(leg, reply)
            resume = reply[1:]

    def _blocked(self, leg: Leg, reply: list[Any]) -> Blocked:
        _, until_ms, index, number, *members = reply
        if index == 0:
            return Blocked(until_ms, None, None, ())
        scope = leg.scopes[index - 1]
        # A shorter member is no id, but counts against the quota.
        conflicting = tuple(UUID(bytes=id_) for id_ in members if len(id_) == ID_BYTES)
        return Blocked(until_ms, scope, leg.rules.quota(scope, number), conflicting)

    def _run_once(self, script: Script, call: Call) -> Any:
        return self._run(script, [call])[0]

    def _run(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        if not calls:
            return []
        try:  # translated() takes three calls, and this is on the way of every submit
            replies = replies_of(self._client, script, calls)
        except ERRORS as error:
            raise ReservationsUnavailable(reason(error), remedy=remedy(error)) from cause(error)
        if _CLOSED_REPLY in replies or [_CLOSED_REPLY] in replies:
            raise closed()
        return replies


def _final(booking: BookingRequest, reply: Any) -> Slot | IdempotencyConflict | None:
    if isinstance(reply, int):
        return Slot(booking.message_id, reply, booking)
    word, *facts = reply
    if word == b"booked":
        return Slot(UUID(bytes=facts[1]), facts[0], booking)
    if word == b"conflict":
        key = booking.submit.key if booking.submit else ""
        return IdempotencyConflict(key, UUID(bytes=facts[0]))
    return None


def closed() -> ReservationsUnavailable:
    return ReservationsUnavailable(CLOSED, retry_after=RETRY_AFTER)
