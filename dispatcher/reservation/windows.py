"""Booking, searching, moving and releasing messages over the legs of their bookings.

A booking has a leg for each shard that its scopes lie in: on a single server one script.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import cast
from uuid import UUID

import redis

from dispatcher.errors import (
    DuplicateUnderWay,
    IdempotencyConflict,
    QuietHours,
    QuotaExceeded,
    ReservationsUnavailable,
    SlotRefused,
)
from dispatcher.faults import fault
from dispatcher.quota import places
from dispatcher.redis.keys import ShardKeys, shard_of
from dispatcher.reservation.booking import Answer, Blocked, BookingRequest, Leg, Slot, Terms
from dispatcher.reservation.encoding import ENDLESS, Rules
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.reservation.shards import Shards
from dispatcher.scope import Scope
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.send_time import from_ms, to_ms

log = logging.getLogger(__name__)

_MOST_ROUNDS = 1_000


@dataclass(slots=True)
class _Booking:
    """What is under way in several shards; ``request`` is ``asked``, or that renewed."""

    asked: BookingRequest
    request: BookingRequest
    legs: Sequence[Leg]
    pending_grace_ms: int
    is_stored: bool


class Windows:
    """The windows of all scopes.

    A window is a ZSET of one scope's reservations: member message id (16 bytes), with a tail once
    it was moved, score send_at in ms. What refuses a time says ``lua/rule.lua``.

    Legs are booked one after the other, the one of the message's own scope first, the others in the
    order of their shards. Where one refuses, the earlier ones are released; until then others count
    them. A process that dies between two legs leaves reservations without a message, which
    reconcile releases.

    What a submit or a move began is forgotten after ``under_way``. Calls are idempotent by message
    id and raise ReservationsUnavailable whenever Redis cannot be trusted to answer.
    """

    def __init__(
        self,
        client: redis.Redis,
        rules: RuleBook,
        *,
        keys: Sequence[ShardKeys],
        under_way: timedelta,
    ) -> None:
        self._keys = tuple(keys)
        self._rules = rules
        self.shards = Shards(client, under_way_ms=under_way // MILLISECOND)

    def legs(self, terms: Terms, rules: Rules | None = None) -> list[Leg]:
        """Return the legs of a booking with these terms, in the order in which they are booked.

        All messages book the windows that they share in the same order, so that of two that want
        the same last reservations one gets them. The own scope comes first; others of its shard
        join it only where no other shard comes before.
        """
        shards, rules = self._keys, rules or self._rules.latest
        home = terms.scopes[0].home
        own = shards[shard_of(home, len(shards))]
        if len(terms.scopes) == 1:
            return [Leg(own, terms, terms.scopes, rules)]
        near = [scope for scope in terms.scopes if scope.home == home]
        far: dict[ShardKeys, list[Scope]] = {}
        for scope in terms.scopes:
            if scope.home != home:
                far.setdefault(shards[shard_of(scope.home, len(shards))], []).append(scope)
        ordered = sorted(far, key=lambda keys: keys.shard)
        if ordered and ordered[0] == own:
            near += far[ordered.pop(0)]
        others = [Leg(keys, terms, tuple(far[keys]), rules) for keys in ordered]
        return [Leg(own, terms, tuple(near), rules), *others]

    def _legs_of(self, requests: Sequence[BookingRequest], rules: Rules) -> list[list[Leg]]:
        if len(self._keys) > 1:
            return [self.legs(request.terms, rules) for request in requests]
        [keys] = self._keys
        return [[Leg(keys, request.terms, request.terms.scopes, rules)] for request in requests]

    def book(
        self,
        requests: Sequence[BookingRequest],
        *,
        grace: timedelta = timedelta(0),
        is_stored: bool = False,
    ) -> list[Answer]:
        """Return for each message when it is booked, or why it is not, in order.

        A message counts those before it, so that the answers are the same as one by one.
        ``grace`` is how much longer than usual the store may take to confirm them. With
        ``is_stored`` the store has the messages: what one has in some shard is not released when
        another one refuses or does not answer. A message is refused by IdempotencyConflict when a
        submit under way uses its key for another message. Raises ReservationsUnavailable: then
        some may be booked, and the caller withdraws all.
        """
        grace_ms = grace // MILLISECOND
        legs_of = self._legs_of(requests, self._rules.now())
        answers: list[Answer] = []
        bookings: list[_Booking] = []
        try:
            sized = zip(map(len, legs_of), legs_of, requests, strict=True)
            for number, group in groupby(sized, itemgetter(0)):
                if number > 1:
                    for _, legs, request in group:
                        bookings.append(_Booking(request, request, legs, grace_ms, is_stored))
                        answers.append(self._alone(bookings[-1]))
                    continue
                asked = [(legs[0], request) for _, legs, request in group]
                replies = self.shards.book(asked, pending_grace_ms=grace_ms)
                answers += [
                    self._refusal([leg], request, reply) if isinstance(reply, Blocked) else reply
                    for (leg, request), reply in zip(asked, replies, strict=True)
                ]
        except BaseException:
            # Its caller withdraws the requests that it knows.
            renewed = [b.request for b in bookings if b.request is not b.asked]
            with _rest_left_to_reconcile():
                self.withdraw(renewed)
            raise
        return answers

    def next_slot(self, terms: Terms, after: datetime) -> datetime:
        return from_ms(self._next_slot(self.legs(terms, self._rules.now()), to_ms(after)))

    def withdraw(self, requests: Sequence[BookingRequest]) -> list[bool]:
        """Release reservations; return of each whether its time is free.

        Where a duplicate submit relies on the same booking it stays; the last one to give up
        releases it.
        """
        legs = self._legs_of(requests, self._rules.latest)
        freed = self.shards.release_many(
            (first, request.member, request.submit)
            for request, (first, *_) in zip(requests, legs, strict=True)
        )
        further = [
            (leg, request.member, None)
            for request, (_, *others), is_free in zip(requests, legs, freed, strict=True)
            if is_free
            for leg in others
        ]
        if further:
            self.shards.release_many(further)
        return freed

    def move_many(self, requests: Sequence[BookingRequest]) -> list[Slot | SlotRefused]:
        """Book a second time for each of these messages, or return why it has none, in order.

        The request of a slot has the tail of the second reservation. Each is judged as if its
        present reservation were free; that one stays, and counts for the others, until
        :meth:`withdraw` releases one of the two. Raises ReservationsUnavailable; then nothing is
        booked.
        """
        moves = [request.moving() for request in requests]
        try:
            return cast("list[Slot | SlotRefused]", self.book(moves))
        except ReservationsUnavailable:
            # Only the reply may have been lost. To release what is not there is harmless.
            with _rest_left_to_reconcile():
                self.withdraw(moves)
            raise

    def _refusal(
        self, legs: Sequence[Leg], request: BookingRequest, blocked: Blocked
    ) -> SlotRefused:
        _, terms, asked_ms, latest_ms, *_ = request
        slot_ms = blocked.until_ms
        if len(legs) > 1:
            slot_ms = self._next_slot(legs, slot_ms, request.left)
        latest = from_ms(latest_ms) if latest_ms > asked_ms else None
        if blocked.scope is None or blocked.quota is None:
            return QuietHours(
                quiet_hours=str(terms.quiet),
                zone=terms.zone,
                send_at=from_ms(asked_ms),
                next_slot=from_ms(slot_ms),
                latest=latest,
            )
        most = places(blocked.quota, terms.priority, asked_ms, terms.zone)
        return QuotaExceeded(
            quota=str(blocked.quota),
            scope=str(blocked.scope),
            send_at=from_ms(asked_ms),
            conflicting=blocked.conflicting,
            next_slot=from_ms(slot_ms),
            latest=latest,
            most=None if most == blocked.quota.count else most,
        )

    def _alone(self, booking: _Booking) -> Answer:
        request = booking.request
        try:
            return self._in_all(booking)._replace(request=booking.request)
        except DuplicateUnderWay as error:
            if not booking.is_stored:
                self.withdraw([request])
            return error
        except (SlotRefused, IdempotencyConflict) as error:
            return error

    def _in_all(self, booking: _Booking) -> Slot:
        start_ms, latest_ms, why = booking.request.asked_ms, booking.request.latest_ms, None
        first, *others = booking.legs
        for _ in range(_MOST_ROUNDS):
            # Before a shift, learn why the time asked for does not fit: other legs may refuse it.
            until_ms = latest_ms if why else start_ms
            answer = self._in_leg(booking, first, booking.request.message_id, start_ms, until_ms)
            if isinstance(answer, Blocked):
                why, start_ms = why or answer, answer.until_ms
            else:
                blocked = self._in_others(booking, others, answer)
                if blocked is None:
                    return answer
                why = why or blocked
                self._undo(booking, answer)
                after_ms = max(blocked.until_ms, start_ms)
                start_ms = self._next_slot(booking.legs, after_ms, booking.request.left)
            if start_ms > latest_ms:
                why = why._replace(until_ms=start_ms)
                raise self._refusal(booking.legs, booking.request, why)
        raise ReservationsUnavailable(
            "concurrent bookings took every slot that was tried; try again"
        )

    def _in_others(self, booking: _Booking, legs: Sequence[Leg], slot: Slot) -> Blocked | None:
        """Book further legs as the first one answered; return what blocks it."""
        message_id, at_ms, _ = slot
        for leg in legs:
            fault("reserve.between_shards")
            try:
                answer = self._in_leg(booking, leg, message_id, at_ms, at_ms)
            except ReservationsUnavailable:
                with _rest_left_to_reconcile():
                    self._undo(booking, slot)
                raise
            if isinstance(answer, Blocked):
                return answer
            if answer.at_ms != at_ms:
                # It withdraws our reliance only: a duplicate's booking stays.
                self._undo(booking, slot)
                if message_id != booking.request.message_id:
                    # The first shard has the duplicate's new time, this one its old one.
                    raise DuplicateUnderWay
                # Our own earlier booking: the first shard has lost it, this one has not.
                raise ReservationsUnavailable(
                    "two shards have the message at different times; try again"
                )
        return None

    def _in_leg(
        self, booking: _Booking, leg: Leg, message_id: UUID, at_ms: int, latest_ms: int
    ) -> Slot | Blocked:
        request = booking.request._replace(
            message_id=message_id, asked_ms=at_ms, latest_ms=latest_ms
        )
        if leg is not booking.legs[0]:
            request = request._replace(submit=None)  # only the first leg knows of duplicates
        [answer] = self.shards.book([(leg, request)], pending_grace_ms=booking.pending_grace_ms)
        if isinstance(answer, IdempotencyConflict):
            raise answer
        return answer

    def _undo(self, booking: _Booking, slot: Slot) -> None:
        """Release what the legs have. Raises DuplicateUnderWay where another submit needs it."""
        if booking.is_stored:
            return
        [is_free] = self.withdraw([slot.booked])
        if not is_free:
            raise DuplicateUnderWay
        booking.request = booking.request.renewed()

    def _next_slot(self, legs: Sequence[Leg], start_ms: int, free: bytes = b"") -> int:
        for _ in range(_MOST_ROUNDS):
            before_ms = start_ms
            for leg in legs:
                start_ms = self.shards.slot(leg, start_ms, free)
            if start_ms == before_ms or len(legs) == 1:
                return start_ms
        raise ReservationsUnavailable(ENDLESS)


@contextmanager
def _rest_left_to_reconcile() -> Iterator[None]:
    try:
        yield
    except ReservationsUnavailable as error:
        log.warning("could not release reservations; reconcile does: %s", error)
