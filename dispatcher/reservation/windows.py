"""Booking, searching, moving and releasing messages over the legs of their bookings.

A booking has a leg for each shard that its scopes lie in. On a single server that is one leg, which
is one script and one round trip.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from uuid import UUID

import redis

from dispatcher.errors import (
    DispatcherError,
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
    Booked,
    BookingRequest,
    Leg,
    LegRequest,
    Moving,
    Rebooked,
    Reservation,
    Submit,
    new_hold,
)
from dispatcher.reservation.shards import ENDLESS, Shards
from dispatcher.reservation.terms import Rules, Terms
from dispatcher.scope import Scope
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.send_time import from_ms, to_ms

log = logging.getLogger(__name__)

_MOST_ROUNDS = 1_000
_NO_GRACE = timedelta(0)


@dataclass(slots=True)
class _Booking:
    """What is to be booked in every leg: a reservation, or with ``hold`` a hold."""

    request: BookingRequest
    hold: bytes = b""
    beside: bytes = b""
    pending_grace_ms: int = 0
    is_stored: bool = False

    @property
    def mover(self) -> UUID | None:
        """The message whose present reservation counts as free."""
        return self.request.message_id if self.hold else None

    def moving(self, reservation: Reservation) -> Moving:
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
        self.shards = Shards(client, rules, under_way_ms=under_way // MILLISECOND)

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

    def book(
        self, requests: Sequence[BookingRequest], *, grace: timedelta = _NO_GRACE
    ) -> list[Booked | DispatcherError]:
        """Return for each message when it is booked, or why it is not, in order.

        A message counts those before it, so that the answers are the same as one by one: those with
        several legs are booked one by one, the others between them together. ``grace`` is how much
        longer than usual the store may take to confirm them. Raises ReservationsUnavailable: then
        some may be booked, and the caller withdraws all.
        """
        asked = [(request, self.legs(request.terms)) for request in requests]
        answers: list[Booked | DispatcherError] = []
        try:
            for in_one_shard, some in groupby(asked, lambda each: len(each[1]) == 1):
                if in_one_shard:
                    answers += self._booked_together([*some], grace)
                else:
                    for request, _ in some:
                        answers.append(self._booked_alone(request, grace))
        except BaseException:
            self._withdraw_renewed([each.request for each in answers if isinstance(each, Rebooked)])
            raise
        return answers

    def book_alone(
        self, request: BookingRequest, *, grace: timedelta = _NO_GRACE, is_stored: bool = False
    ) -> Reservation | Rebooked:
        """Return where one message is booked in all its legs.

        The id is a duplicate's where that booked first. Where something was released on its way,
        the request was renewed. With ``is_stored`` the store has the message: what it has in some
        shard is not released when another one refuses or does not answer. Raises QuotaExceeded or
        QuietHours when nothing fits, IdempotencyConflict when a submit under way uses the key for
        another message, DuplicateUnderWay, and ReservationsUnavailable when the windows cannot be
        trusted; in each case nothing is booked.
        """
        booking = _Booking(request, pending_grace_ms=grace // MILLISECOND, is_stored=is_stored)
        try:
            found = self._in_all(booking)
        except (SlotRefused, IdempotencyConflict, DuplicateUnderWay):
            raise
        except BaseException:
            if booking.request is not request:
                self._withdraw_renewed([booking.request])
            raise
        return found if booking.request is request else Rebooked(booking.request, found)

    def next_slot(self, terms: Terms, after: datetime) -> datetime:
        """Return the first time at or after ``after`` that fits. Books nothing."""
        return from_ms(self._next_slot(self.legs(terms), to_ms(after)))

    def release(self, message_id: UUID, terms: Terms, *, submit: Submit | None = None) -> None:
        """Release a reservation; harmless when there is none.

        No other submit with the key of ``submit`` relies on it any more, and that key is free.
        """
        submit = submit and replace(submit, token=EVERYONE)
        for leg in self.legs(terms):
            self.shards.release(leg, message_id, submit)
            submit = None

    def withdraw(self, requests: Sequence[BookingRequest]) -> list[bool]:
        """Release many reservations in few round trips; return of each whether its time is free.

        They are those of submits that stored nothing, and of cancelled messages.
        Where a duplicate submit relies on the same booking it stays; the last one to give up
        releases it.
        """
        legs = [self.legs(each.terms) for each in requests]
        freed = self.shards.release_many(
            (its[0], request.message_id, request.submit)
            for request, its in zip(requests, legs, strict=True)
        )
        further = [
            (leg, request.message_id, None)
            for request, its, is_free in zip(requests, legs, freed, strict=True)
            if is_free
            for leg in its[1:]
        ]
        if further:
            self.shards.release_many(further)
        return freed

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
        :meth:`take`; :meth:`drop` gives the hold up. Raises like :meth:`book_alone`; then nothing
        is held.
        """
        asked_ms = to_ms(send_at)
        latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms
        request = BookingRequest(message_id, terms, asked_ms, latest_ms)
        booking = _Booking(request, new_hold(message_id), beside.hold if beside else b"")
        [found] = self._held([booking])
        if isinstance(found, SlotRefused):
            raise found
        return found

    def move_many(self, requests: Sequence[BookingRequest]) -> list[Moving | SlotRefused]:
        """Hold another time for each of these messages, or return why it has none.

        As if :meth:`move` was called for each, in order. Those with one leg go together in one
        round trip; the others, and what shares a scope with them, one by one after those. All keep
        their reservations, which count for the others. Raises ReservationsUnavailable; then
        nothing is held.
        """
        return self._held([_Booking(each, new_hold(each.message_id)) for each in requests])

    def hold_again(self, moving: Moving) -> Moving | Blocked:
        """Hold the time once more where a window has lost the hold or has it for too long.

        Return Blocked where another message has got the time there; holds in other windows stay.
        """
        at_ms = to_ms(moving.send_at)
        booking = _Booking(
            BookingRequest(moving.message_id, moving.terms, at_ms, at_ms), moving.hold
        )
        held_at_ms: list[int] = []
        for leg in self.legs(moving.terms):
            found = self._in_leg(booking, leg, Reservation(moving.message_id, at_ms), at_ms)
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
        self.shards.drop([(leg, each.hold) for each in held for leg in self.legs(each.terms)])

    def refusal(
        self,
        terms: Terms,
        asked_ms: int,
        blocked: Blocked,
        mover: UUID | None = None,
        *,
        latest_ms: int = 0,
    ) -> SlotRefused:
        """Return the error that says why a time does not fit, and the next slot.

        The reservations of ``mover`` count as free. With ``latest_ms`` after ``asked_ms`` a shift
        was tried up to then.
        """
        legs = self.legs(terms)
        slot_ms = blocked.until_ms
        if not blocked.is_slot or len(legs) > 1:
            slot_ms = self._next_slot(legs, slot_ms, mover)
        latest = from_ms(latest_ms) if latest_ms > asked_ms else None
        if blocked.scope is None or blocked.quota is None:
            return QuietHours(
                quiet_hours=str(terms.quiet),
                zone=terms.zone,
                send_at=from_ms(asked_ms),
                next_slot=from_ms(slot_ms),
                latest=latest,
            )
        return QuotaExceeded(
            quota=str(blocked.quota),
            scope=str(blocked.scope),
            send_at=from_ms(asked_ms),
            conflicting=blocked.conflicting,
            next_slot=from_ms(slot_ms),
            latest=latest,
        )

    def _booked_together(
        self, asked: Sequence[tuple[BookingRequest, Sequence[Leg]]], grace: timedelta
    ) -> list[Booked | DispatcherError]:
        found = self.shards.book(
            [
                LegRequest(leg, message_id, asked_ms, latest_ms, submit)
                for (message_id, _, asked_ms, latest_ms, submit), [leg] in asked
            ],
            pending_grace_ms=grace // MILLISECOND,
        )
        return [
            self.refusal(request.terms, request.asked_ms, each, latest_ms=request.latest_ms)
            if isinstance(each, Blocked)
            else each
            for (request, _), each in zip(asked, found, strict=True)
        ]

    def _booked_alone(self, request: BookingRequest, grace: timedelta) -> Booked | DispatcherError:
        try:
            found = self.book_alone(request, grace=grace)
        except DuplicateUnderWay as error:
            self.withdraw([request])
            return error
        except (SlotRefused, IdempotencyConflict) as error:
            return error
        if isinstance(found, Reservation) and found.message_id == request.message_id:
            return found.at_ms
        return found

    def _withdraw_renewed(self, requests: Sequence[BookingRequest]) -> None:
        """Withdraw renewed requests of a call that fails: its caller withdraws those it knows."""
        if not requests:
            return
        try:
            self.withdraw(requests)
        except ReservationsUnavailable as error:
            _log_left_to_reconcile(error)

    def _held(self, bookings: Sequence[_Booking]) -> list[Moving | SlotRefused]:
        try:
            return self._held_or_refused(bookings)
        except ReservationsUnavailable:
            # Only the reply may have been lost. To drop a hold that is not there is harmless.
            try:
                self.drop(
                    *(each.moving(Reservation(each.request.message_id, 0)) for each in bookings)
                )
            except ReservationsUnavailable as error:
                _log_left_to_reconcile(error)
            raise

    def _held_or_refused(self, bookings: Sequence[_Booking]) -> list[Moving | SlotRefused]:
        near: dict[int, LegRequest] = {}
        far: set[Scope] = set()
        for number, booking in enumerate(bookings):
            message_id, terms, asked_ms, latest_ms, _ = booking.request
            legs = self.legs(terms)
            if len(legs) == 1 and far.isdisjoint(terms.scopes):
                near[number] = _leg_request(
                    booking, legs[0], Reservation(message_id, asked_ms), latest_ms
                )
            else:
                far.update(terms.scopes)
        answers = self.shards.hold([*near.values()]) if near else []
        found = {
            number: self._judged(bookings[number], answer)
            for number, answer in zip(near, answers, strict=True)
        }
        for number, booking in enumerate(bookings):
            if number not in near:
                found[number] = self._held_alone(booking)
        return [found[number] for number in range(len(bookings))]

    def _judged(self, booking: _Booking, answer: Reservation | Blocked) -> Moving | SlotRefused:
        message_id, terms, asked_ms, latest_ms, _ = booking.request
        if isinstance(answer, Blocked):
            return self.refusal(terms, asked_ms, answer, message_id, latest_ms=latest_ms)
        return booking.moving(answer)

    def _held_alone(self, booking: _Booking) -> Moving | SlotRefused:
        try:
            return booking.moving(self._in_all(booking))
        except SlotRefused as refused:
            return refused

    def _in_all(self, booking: _Booking) -> Reservation:
        """Book the same time in every leg, or nothing in any."""
        _, terms, asked_ms, latest_ms, _ = booking.request
        first, *others = legs = self.legs(terms)
        refused = partial(self.refusal, terms, asked_ms, mover=booking.mover, latest_ms=latest_ms)
        start_ms, why = asked_ms, None
        for _ in range(_MOST_ROUNDS):
            # Before a shift, learn why the time asked for does not fit: other legs may refuse it.
            until_ms = latest_ms if why or not others else start_ms
            message_id = booking.request.message_id
            found = self._in_leg(booking, first, Reservation(message_id, start_ms), until_ms)
            if isinstance(found, Blocked) and others and not why and found.until_ms <= latest_ms:
                why = found
                found = self._in_leg(
                    booking, first, Reservation(message_id, found.until_ms), latest_ms
                )
            if isinstance(found, Blocked):
                raise refused(_first(why, found))
            blocked = self._in_others(booking, others, found)
            if blocked is None:
                return found
            why = _first(why, blocked)
            self._undo(booking, found)
            start_ms = self._next_slot(legs, max(blocked.until_ms, start_ms), booking.mover)
            if start_ms > latest_ms:
                raise refused(why._replace(until_ms=start_ms))
        raise ReservationsUnavailable(
            "concurrent bookings took every slot that was tried; try again"
        )

    def _in_others(
        self, booking: _Booking, legs: Sequence[Leg], reservation: Reservation
    ) -> Blocked | None:
        """Book further legs at the time that the first one answered.

        ``reservation`` is that of a duplicate submit where it booked first. Return what blocks it,
        None when all legs have it.
        """
        for leg in legs:
            fault("reserve.between_shards")
            try:
                found = self._in_leg(booking, leg, reservation, reservation.at_ms)
            except ReservationsUnavailable:
                try:
                    self._undo(booking, reservation)
                except ReservationsUnavailable as error:
                    _log_left_to_reconcile(error)
                raise
            if isinstance(found, Blocked):
                return found
            if found.at_ms != reservation.at_ms:
                # It withdraws our reliance only: a duplicate's booking stays.
                self._undo(booking, reservation)
                if reservation.message_id != booking.request.message_id:
                    # The first shard has the duplicate's new time, this one its old one.
                    raise DuplicateUnderWay
                # Our own earlier booking: the first shard has lost it, this one has not.
                raise ReservationsUnavailable(
                    "two shards have the message at different times; try again"
                )
        return None

    def _in_leg(
        self, booking: _Booking, leg: Leg, reservation: Reservation, latest_ms: int
    ) -> Reservation | Blocked:
        """Book one leg at the time and under the id of ``reservation``, or at the next slot."""
        leg_request = _leg_request(booking, leg, reservation, latest_ms)
        if booking.hold:
            return self.shards.hold([leg_request])[0]
        [found] = self.shards.book([leg_request], pending_grace_ms=booking.pending_grace_ms)
        if isinstance(found, IdempotencyConflict):
            raise found
        return Reservation(reservation.message_id, found) if isinstance(found, int) else found

    def _undo(self, booking: _Booking, reservation: Reservation) -> None:
        """Release what the legs have. Raises DuplicateUnderWay where another submit needs it."""
        request = booking.request
        if booking.hold:
            held = booking.moving(reservation)
            # A new one, so that a late copy of this call drops no later hold.
            booking.hold = new_hold(request.message_id)
            self.drop(held)
        elif not booking.is_stored:
            [is_free] = self.withdraw([request._replace(message_id=reservation.message_id)])
            if not is_free:
                raise DuplicateUnderWay
            booking.request = request.renewed()

    def _next_slot(self, legs: Sequence[Leg], start_ms: int, mover: UUID | None = None) -> int:
        for _ in range(_MOST_ROUNDS):
            before_ms = start_ms
            for leg in legs:
                start_ms = self.shards.slot(leg, start_ms, mover)
            if start_ms == before_ms or len(legs) == 1:
                return start_ms
        raise ReservationsUnavailable(ENDLESS)


def _leg_request(
    booking: _Booking, leg: Leg, reservation: Reservation, latest_ms: int
) -> LegRequest:
    terms, submit = booking.request.terms, booking.request.submit
    if leg.scopes[0] != terms.scopes[0]:
        submit = None  # only the first leg knows of duplicates
    return LegRequest(
        leg,
        reservation.message_id,
        reservation.at_ms,
        latest_ms,
        submit,
        booking.hold,
        booking.beside,
    )


def _first(why: Blocked | None, found: Blocked) -> Blocked:
    """Return the first reason with the latest knowledge of when it ends."""
    return found if why is None else why._replace(until_ms=found.until_ms, is_slot=False)


def _log_left_to_reconcile(error: ReservationsUnavailable) -> None:
    log.warning("could not release reservations; reconcile releases them: %s", error)
