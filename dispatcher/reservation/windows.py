"""Booking, searching, moving and releasing a message over the legs of its booking.

A booking has a leg for each shard that its scopes lie in. On a single server that is one leg, which
is one script and one round trip.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
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
from dispatcher.redis.keys import ShardKeys, shard_of
from dispatcher.reservation.booking import (
    EVERYONE,
    Blocked,
    Booking,
    Leg,
    LegRequest,
    Moving,
    Rebooked,
    Request,
    Reservation,
    Submit,
    new_hold,
)
from dispatcher.reservation.shards import ENDLESS, Shards
from dispatcher.reservation.terms import Rules, Terms
from dispatcher.scope import Scope
from dispatcher.times.send_time import from_ms, to_ms

log = logging.getLogger(__name__)

_MOST_ROUNDS = 1_000
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(slots=True)
class _Wish:
    """What is to be booked in every leg: a reservation, or with ``hold`` a hold."""

    request: Request
    hold: bytes = b""
    beside: bytes = b""
    pending_ahead_ms: int = 0
    is_stored: bool = False

    @property
    def mover(self) -> UUID | None:
        """The message whose present reservation counts as free."""
        return self.request.message_id if self.hold else None

    def moving(self, reservation: Reservation) -> Moving:
        """Return the hold at ``reservation`` as a value."""
        message_id, terms, *_ = self.request
        return Moving(
            message_id, terms, from_ms(reservation.at_ms), self.hold, reservation.held_at_ms
        )


class Windows:
    """The windows of all scopes.

    A window is a ZSET of one scope's reservations: member message id (16 bytes), score send_at in
    ms. For a quota of N per W a time t is refused exactly when N consecutive members that lie
    within less than W of each other would, with t, be N+1 within less than W; for a calendar
    quota when N lie in the calendar period of t (``lua/rule.lua``; docs/reservation.md).

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
        rules: Rules,
        *,
        keys: Sequence[ShardKeys],
        under_way: timedelta,
    ) -> None:
        self._keys = tuple(keys)
        self.shards = Shards(client, rules, under_way_ms=under_way // _MILLISECOND)

    def legs(self, terms: Terms) -> list[Leg]:
        """Return the legs of a booking with these terms, in the order in which they are booked.

        All messages book the windows that they share in the same order, so that of two that want
        the same last reservations one gets them. The first leg is that of the message's own scope.
        Other scopes in the same shard join it only where no other shard comes before.
        """
        shards = self._keys
        if len(shards) == 1:
            return [Leg(shards[0], terms, terms.scopes)]
        home = terms.scopes[0].home
        own = shards[shard_of(home, len(shards))]
        if len(terms.scopes) == 1:
            return [Leg(own, terms, terms.scopes)]
        near = [scope for scope in terms.scopes if scope.home == home]
        far: dict[ShardKeys, list[Scope]] = {}
        for scope in terms.scopes:
            if scope.home != home:
                far.setdefault(shards[shard_of(scope.home, len(shards))], []).append(scope)
        ordered = sorted(far, key=lambda keys: keys.shard)
        if ordered and ordered[0] == own:
            near += far[ordered.pop(0)]
        others = [Leg(keys, terms, tuple(far[keys])) for keys in ordered]
        return [Leg(own, terms, tuple(near)), *others]

    def reserve(
        self,
        message_id: UUID,
        *,
        terms: Terms,
        send_at: datetime,
        latest: datetime | None = None,
        submit: Submit | None = None,
        pending_ahead: timedelta = timedelta(0),
        is_stored: bool = False,
    ) -> Booking:
        """Book ``send_at``, or with ``latest`` the first time up to it that fits.

        ``pending_ahead`` is how much longer than usual the store may take to confirm it. With
        ``is_stored`` the store has the message: what it has in some shard is not released when
        another one refuses or does not answer. Raises QuotaExceeded or QuietHours when nothing
        fits, IdempotencyConflict when a submit under way uses the key for another message,
        ReservationsUnavailable when the windows cannot be trusted; in each case nothing is booked.
        """
        request = _request(message_id, terms, send_at, latest, submit)
        reservation = self.book(request, pending_ahead=pending_ahead, is_stored=is_stored)
        if isinstance(reservation, Rebooked):
            request, reservation = reservation
        return Booking(reservation.message_id, terms, from_ms(reservation.at_ms), request.submit)

    def book(
        self,
        request: Request,
        *,
        pending_ahead: timedelta = timedelta(0),
        is_stored: bool = False,
    ) -> Reservation | Rebooked:
        """Return where a request is booked. Raises like :meth:`reserve`.

        The id is a duplicate's where that booked first. Where something was released on its way,
        the request was renewed.
        """
        ahead_ms = pending_ahead // _MILLISECOND
        wish = _Wish(request, pending_ahead_ms=ahead_ms, is_stored=is_stored)
        try:
            found = self._in_all(wish)
        except (SlotRefused, IdempotencyConflict, DuplicateUnderWay):
            raise
        except BaseException:
            message_id, _, _, _, submit = wish.request
            if message_id != request.message_id:  # the caller withdraws the request that it knows
                try:
                    self.withdraw(Booking(message_id, request.terms, from_ms(0), submit))
                except ReservationsUnavailable as error:
                    _log_left_to_reconcile(error)
            raise
        return found if wish.request is request else Rebooked(wish.request, found)

    def next_slot(self, terms: Terms, after: datetime) -> datetime:
        """Return the first time at or after ``after`` that fits. Books nothing."""
        return from_ms(self._next_slot(self.legs(terms), to_ms(after)))

    def release(self, message_id: UUID, terms: Terms, *, key: str | None = None) -> None:
        """Release a reservation; harmless when there is none.

        With its idempotency ``key`` no other submit relies on it any more, and the key is free.
        """
        submit = None if key is None else Submit(key, "", EVERYONE)
        for leg in self.legs(terms):
            self.shards.release(leg, message_id, submit)
            submit = None

    def withdraw(self, booking: Booking) -> bool:
        """Release what a submit booked that stored nothing; return whether its time is free.

        Where a duplicate submit relies on the same booking it stays; the last one to give up
        releases it.
        """
        submit = booking.submit
        for leg in self.legs(booking.terms):
            if not self.shards.release(leg, booking.message_id, submit):
                return False
            submit = None
        return True

    def move(
        self,
        message_id: UUID,
        *,
        terms: Terms,
        send_at: datetime,
        latest: datetime | None = None,
        beside: Moving | None = None,
    ) -> Moving:
        """Hold another time for a message, judged as if its reservation were free.

        So is the time that it holds ``beside``. The message keeps its reservation until
        :meth:`take`; :meth:`drop` gives the hold up. Raises like :meth:`reserve`; then nothing is
        held.
        """
        request = _request(message_id, terms, send_at, latest)
        wish = _Wish(request, new_hold(message_id), beside.hold if beside else b"")
        [found] = self._held([wish])
        if isinstance(found, SlotRefused):
            raise found
        return found

    def move_many(self, requests: Sequence[Request]) -> list[Moving | SlotRefused]:
        """Hold another time for each of these messages, or return why it has none.

        As if :meth:`move` was called for each, in order. Those with one leg go together in one
        round trip; the others, and what shares a scope with them, one by one after those. All keep
        their reservations, which count for the others. Raises ReservationsUnavailable; then
        nothing is held.
        """
        return self._held([_Wish(each, new_hold(each.message_id)) for each in requests])

    def hold_again(self, moving: Moving) -> Moving | Blocked:
        """Hold the same time once more where a window has lost it, and be it too old.

        Where another message got it there, say so; what is held elsewhere stays so.
        """
        at_ms = to_ms(moving.send_at)
        wish = _Wish(Request(moving.message_id, moving.terms, at_ms, at_ms), moving.hold)
        held_at_ms: list[int] = []
        for leg in self.legs(moving.terms):
            found = self._in_leg(wish, leg, Reservation(moving.message_id, at_ms), at_ms)
            if isinstance(found, Blocked):
                return found
            held_at_ms.append(found.held_at_ms)
        return replace(moving, held_at_ms=min(held_at_ms))

    def take(self, held: Sequence[tuple[Moving, int]]) -> list[bool]:
        """Make held times the reservations of their messages, whose old ones are then free.

        Each comes with the token that the store gave with the new time, after it was held. Where a
        message was moved further since, only the hold goes. False where a window has lost the
        hold, or holds it for too long: then it is to be held again, or the message to go back.
        """
        legs = [self.legs(moving.terms) for moving, _ in held]
        taken = [True] * len(held)
        # An old reservation goes when all shards have the new one.
        several = [number for number, each in enumerate(legs) if len(each) > 1]
        if several:
            stand = self.shards.have([(legs[number], held[number][0]) for number in several])
            for number, stands in zip(several, stand, strict=True):
                taken[number] = stands
        left = [number for number, each in enumerate(taken) if each]
        for level in range(max(map(len, legs), default=0)):
            some = [number for number in left if len(legs[number]) > level]
            done = self.shards.take([(legs[number][level], *held[number]) for number in some])
            for number, is_done in zip(some, done, strict=True):
                taken[number] = taken[number] and is_done
        return taken

    def drop(self, *held: Moving) -> None:
        """Give holds up."""
        self.shards.drop([(leg, each.hold) for each in held for leg in self.legs(each.terms)])

    def refusal(
        self, terms: Terms, asked_ms: int, blocked: Blocked, mover: UUID | None = None
    ) -> SlotRefused:
        """Return the error that says why a time does not fit, and the next slot.

        The reservations of ``mover`` count as free.
        """
        legs = self.legs(terms)
        slot_ms = blocked.until_ms
        if not blocked.is_slot or len(legs) > 1:
            slot_ms = self._next_slot(legs, slot_ms, mover)
        if blocked.scope is None or blocked.quota is None:
            return QuietHours(
                quiet_hours=str(terms.quiet),
                zone=terms.zone,
                send_at=from_ms(asked_ms),
                next_slot=from_ms(slot_ms),
            )
        return QuotaExceeded(
            quota=str(blocked.quota),
            scope=str(blocked.scope),
            send_at=from_ms(asked_ms),
            conflicting=blocked.conflicting,
            next_slot=from_ms(slot_ms),
        )

    def _held(self, wishes: Sequence[_Wish]) -> list[Moving | SlotRefused]:
        try:
            return self._held_or_refused(wishes)
        except ReservationsUnavailable:
            # Only the reply may have been lost. To drop a hold that is not there is harmless.
            try:
                self.drop(
                    *(each.moving(Reservation(each.request.message_id, 0)) for each in wishes)
                )
            except ReservationsUnavailable as error:
                _log_left_to_reconcile(error)
            raise

    def _held_or_refused(self, wishes: Sequence[_Wish]) -> list[Moving | SlotRefused]:
        near: dict[int, LegRequest] = {}
        far: set[Scope] = set()
        for number, wish in enumerate(wishes):
            message_id, terms, asked_ms, latest_ms, _ = wish.request
            legs = self.legs(terms)
            if len(legs) == 1 and far.isdisjoint(terms.scopes):
                near[number] = _leg_request(
                    wish, legs[0], Reservation(message_id, asked_ms), latest_ms
                )
            else:
                far.update(terms.scopes)
        answers = self.shards.hold([*near.values()]) if near else []
        found = {
            number: self._judged(wishes[number], answer)
            for number, answer in zip(near, answers, strict=True)
        }
        for number, wish in enumerate(wishes):
            if number not in near:
                found[number] = self._held_alone(wish)
        return [found[number] for number in range(len(wishes))]

    def _judged(self, wish: _Wish, answer: Reservation | Blocked) -> Moving | SlotRefused:
        message_id, terms, asked_ms, *_ = wish.request
        if isinstance(answer, Blocked):
            return self.refusal(terms, asked_ms, answer, message_id)
        return wish.moving(answer)

    def _held_alone(self, wish: _Wish) -> Moving | SlotRefused:
        try:
            return wish.moving(self._in_all(wish))
        except SlotRefused as refused:
            return refused

    def _in_all(self, wish: _Wish) -> Reservation:
        """Book the same time in every leg, or nothing in any."""
        _, terms, asked_ms, latest_ms, _ = wish.request
        first, *others = legs = self.legs(terms)
        start_ms, why = asked_ms, None
        for _ in range(_MOST_ROUNDS):
            # Before a shift, learn why the time asked for does not fit: other legs may refuse it.
            until_ms = latest_ms if why or not others else start_ms
            message_id = wish.request.message_id
            found = self._in_leg(wish, first, Reservation(message_id, start_ms), until_ms)
            if isinstance(found, Blocked) and others and not why and found.until_ms <= latest_ms:
                why = found
                found = self._in_leg(
                    wish, first, Reservation(message_id, found.until_ms), latest_ms
                )
            if isinstance(found, Blocked):
                raise self.refusal(terms, asked_ms, _first(why, found), wish.mover)
            blocked = self._in_others(wish, others, found)
            if blocked is None:
                return found
            why = _first(why, blocked)
            self._undo(wish, found)
            start_ms = self._next_slot(legs, max(blocked.until_ms, start_ms), wish.mover)
            if start_ms > latest_ms:
                raise self.refusal(terms, asked_ms, why._replace(until_ms=start_ms), wish.mover)
        raise ReservationsUnavailable("others were always quicker")

    def _in_others(
        self, wish: _Wish, legs: Sequence[Leg], reservation: Reservation
    ) -> Blocked | None:
        """Book further legs at the time that the first one answered.

        ``reservation`` is that of a duplicate submit where it booked first. Return what blocks it,
        None when all legs have it.
        """
        for leg in legs:
            fault("reserve.between_shards")
            try:
                found = self._in_leg(wish, leg, reservation, reservation.at_ms)
            except ReservationsUnavailable:
                try:
                    self._undo(wish, reservation)
                except ReservationsUnavailable as error:
                    _log_left_to_reconcile(error)
                raise
            if isinstance(found, Blocked):
                return found
            if found.at_ms != reservation.at_ms:
                # It withdraws our reliance only: a duplicate's booking stays.
                self._undo(wish, reservation)
                if reservation.message_id != wish.request.message_id:
                    # The first shard has the duplicate's new time, this one its old one.
                    raise DuplicateUnderWay
                # Our own earlier booking: the first shard has lost it, this one has not.
                raise ReservationsUnavailable("its reservations in two shards disagree; try again")
        return None

    def _in_leg(
        self, wish: _Wish, leg: Leg, reservation: Reservation, latest_ms: int
    ) -> Reservation | Blocked:
        """Book one leg at the time and under the id of ``reservation``, or at the next slot."""
        leg_request = _leg_request(wish, leg, reservation, latest_ms)
        if wish.hold:
            return self.shards.hold([leg_request])[0]
        [found] = self.shards.book([leg_request], pending_ahead_ms=wish.pending_ahead_ms)
        if isinstance(found, IdempotencyConflict):
            raise found
        return Reservation(reservation.message_id, found) if isinstance(found, int) else found

    def _undo(self, wish: _Wish, reservation: Reservation) -> None:
        """Release what the legs have. Raises DuplicateUnderWay where another submit needs it."""
        request = wish.request
        if wish.hold:
            held = wish.moving(reservation)
            wish.hold = new_hold(request.message_id)  # a late copy of this call drops no later one
            self.drop(held)
        elif not wish.is_stored:
            at = from_ms(reservation.at_ms)
            booking = Booking(reservation.message_id, request.terms, at, request.submit)
            if not self.withdraw(booking):
                raise DuplicateUnderWay
            wish.request = request.renewed()

    def _next_slot(self, legs: Sequence[Leg], start_ms: int, mover: UUID | None = None) -> int:
        for _ in range(_MOST_ROUNDS):
            before_ms = start_ms
            for leg in legs:
                start_ms = self.shards.slot(leg, start_ms, mover)
            if start_ms == before_ms or len(legs) == 1:
                return start_ms
        raise ReservationsUnavailable(ENDLESS)


def _request(
    message_id: UUID,
    terms: Terms,
    send_at: datetime,
    latest: datetime | None,
    submit: Submit | None = None,
) -> Request:
    asked_ms = to_ms(send_at)
    latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms
    return Request(message_id, terms, asked_ms, latest_ms, submit)


def _leg_request(wish: _Wish, leg: Leg, reservation: Reservation, latest_ms: int) -> LegRequest:
    terms, submit = wish.request.terms, wish.request.submit
    if leg.scopes[0] != terms.scopes[0]:
        submit = None  # only the first leg knows of duplicates
    return LegRequest(
        leg, reservation.message_id, reservation.at_ms, latest_ms, submit, wish.hold, wish.beside
    )


def _first(why: Blocked | None, found: Blocked) -> Blocked:
    """Return the first reason with the latest knowledge of when it ends."""
    return found if why is None else why._replace(until_ms=found.until_ms, is_slot=False)


def _log_left_to_reconcile(error: ReservationsUnavailable) -> None:
    log.warning("could not release a reservation; reconcile will release it: %s", error)
