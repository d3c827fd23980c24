"""Booking, searching, moving and giving back, over all shards that a message's scopes lie in.

Where all scopes share a shard, which is the rule, each is one script and one round trip.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import redis

from dispatcher.errors import (
    NoPlace,
    QuietHours,
    QuotaExceeded,
    ReservationsUnavailable,
    TwinUnderWay,
)
from dispatcher.faults import fault
from dispatcher.redis_keys import ShardKeys
from dispatcher.reservation.places import (
    Blocked,
    Booking,
    Group,
    Moving,
    Place,
    Submit,
    grouped,
    new_hold,
    own_shard,
)
from dispatcher.reservation.shards import Shards
from dispatcher.reservation.terms import Rules, Terms
from dispatcher.sendtime import from_ms, to_ms

log = logging.getLogger(__name__)

_MOST_ROUNDS = 1_000


class Windows:
    """The windows of all scopes.

    A window is a ZSET of one scope's reservations: member message id (16 bytes), score send_at in
    ms. For a quota of N per W a time t is refused exactly when N consecutive members that lie
    within less than W of each other would, with t, be N+1 within less than W; for a calendar
    quota when N lie in the calendar period of t (``lua/rule.lua``; docs/reservation.md).

    Scopes of several shards are booked one shard after the other, those with the home of the
    message's own scope first, the others in the order of their shards, and given back when a later
    one refuses; until then others count them. A process that dies between two shards leaves places
    without a message, which reconcile releases.

    A submit or a move may be ``under_way`` for so long until others forget what it began. Calls are
    idempotent by message id and raise ReservationsUnavailable whenever Redis cannot be
    trusted to answer.
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
        under_way_ms = under_way // timedelta(milliseconds=1)
        self.shards = Shards(client, rules, under_way_ms=under_way_ms)

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
        ``is_stored`` the store has the message: what it holds in some shard is not given back when
        another one refuses or does not answer. Raises
        QuotaExceeded or QuietHours when nothing fits, IdempotencyConflict when a twin under way
        asks for something else, ReservationsUnavailable when the windows cannot be trusted; in
        each case nothing is booked.
        """
        asked_ms = to_ms(send_at)
        ahead_ms = pending_ahead // timedelta(milliseconds=1)

        def book(group: Group, place: Place, latest_ms: int) -> Place | Blocked:
            return self.shards.book(
                group,
                place.message_id,
                asked_ms=place.at_ms,
                latest_ms=latest_ms,
                submit=submit if group.scopes[0].home == home else None,
                pending_ahead_ms=ahead_ms,
            )

        def undo(place: Place) -> None:
            if is_stored:
                return
            if not self.withdraw(Booking(place.message_id, terms, send_at, submit)):
                raise TwinUnderWay

        home = terms.scopes[0].home
        latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms
        place = self._in_all(terms, Place(message_id, asked_ms), latest_ms, book, undo)
        return Booking(place.message_id, terms, from_ms(place.at_ms), submit)

    def next_slot(self, terms: Terms, after: datetime) -> datetime:
        """Return the first time at or after ``after`` that fits. Books nothing."""
        return from_ms(self._next_slot(self.groups(terms), to_ms(after)))

    def release(self, message_id: UUID, terms: Terms) -> None:
        """Give a reservation back; harmless when there is none."""
        for group in self.groups(terms):
            self.shards.release(group, message_id, None)

    def withdraw(self, booking: Booking) -> bool:
        """Give back what a submit booked that stored nothing; tell whether its place is free.

        Where a twin relies on the same booking it stays; the last one to give up returns it.
        """
        submit = booking.submit
        for group in self.groups(booking.terms):
            if not self.shards.release(group, booking.message_id, submit):
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
    ) -> Moving:
        """Hold another place for a message, judged as if the one it has were free.

        The message keeps its place until :meth:`take`; :meth:`drop` gives the other one up.
        Raises like :meth:`reserve`; then nothing is held.
        """
        hold = new_hold(message_id)
        asked_ms = to_ms(send_at)
        latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms

        def hold_place(group: Group, place: Place, latest_ms: int) -> Place | Blocked:
            return self.shards.move(
                group, message_id, hold=hold, asked_ms=place.at_ms, latest_ms=latest_ms
            )

        def undo(place: Place) -> None:
            self.drop(Moving(message_id, terms, from_ms(place.at_ms), hold))

        try:
            place = self._in_all(
                terms, Place(message_id, asked_ms), latest_ms, hold_place, undo, mover=message_id
            )
        except ReservationsUnavailable:
            # Only the reply may have been lost.
            self._try_to(lambda: undo(Place(message_id, asked_ms)))
            raise
        return Moving(message_id, terms, from_ms(place.at_ms), hold)

    def hold_again(self, moving: Moving) -> None:
        """Hold the same place once more where a shard has lost it.

        Raises QuotaExceeded or QuietHours when another message got it there, and
        ReservationsUnavailable. What is held stays so.
        """
        at_ms = to_ms(moving.send_at)
        for group in self.groups(moving.terms):
            found = self.shards.move(
                group, moving.message_id, hold=moving.hold, asked_ms=at_ms, latest_ms=at_ms
            )
            if isinstance(found, Blocked):
                raise self.refusal(moving.terms, at_ms, found, moving.message_id)

    def take(self, moving: Moving, *, token: int, partly: bool = False) -> bool:
        """Make a held place the message's, whose old one is then free.

        ``token`` is what the store gave with the new time. Where the message was moved further
        since, only the hold goes. False where a window has lost the hold: then it is to be held
        again, or the message to go back. ``partly`` takes it in the other shards all the same.
        """
        groups = self.groups(moving.terms)
        if len(groups) > 1 and not partly and not self.shards.have(groups, moving.hold):
            return False
        taken = [self.shards.take(group, moving.message_id, moving.hold, token) for group in groups]
        return all(taken)

    def drop(self, moving: Moving) -> None:
        """Give a held place up."""
        for group in self.groups(moving.terms):
            self.shards.drop(group, moving.hold)

    def groups(self, terms: Terms) -> list[Group]:
        """Return the scopes of ``terms`` by shard, in the order in which they are booked."""
        return grouped(terms, self._keys)

    def refusal(
        self, terms: Terms, asked_ms: int, blocked: Blocked, mover: UUID | None = None
    ) -> NoPlace:
        """Return the error that says why a time does not fit, and the next slot.

        The places that ``mover`` has count as free.
        """
        groups = self.groups(terms)
        slot_ms = blocked.until_ms
        if not blocked.is_slot or len(groups) > 1:
            slot_ms = self._next_slot(groups, slot_ms, mover)
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

    def _in_all(
        self,
        terms: Terms,
        asked: Place,
        latest_ms: int,
        book: Callable[[Group, Place, int], Place | Blocked],
        undo: Callable[[Place], None],
        *,
        mover: UUID | None = None,
    ) -> Place:
        """Book the same time in every shard, or nothing in any."""
        first, *others = self.groups(terms)
        place, why = asked, None
        for _ in range(_MOST_ROUNDS):
            # Before a shift, learn why the time asked for does not fit: others may refuse it.
            found = book(first, place, latest_ms if why or not others else place.at_ms)
            if isinstance(found, Blocked) and others and not why and found.until_ms <= latest_ms:
                why, start = found, place._replace(at_ms=found.until_ms)
                found = book(first, start, latest_ms)
            if isinstance(found, Blocked):
                raise self.refusal(terms, asked.at_ms, _first(why, found), mover)
            blocked = self._in_others(others, found, book, undo)
            if blocked is None:
                return found
            why = _first(why, blocked)
            undo(found)
            start_ms = self._next_slot([first, *others], max(blocked.until_ms, place.at_ms), mover)
            if start_ms > latest_ms:
                raise self.refusal(terms, asked.at_ms, why._replace(until_ms=start_ms), mover)
            place = place._replace(at_ms=start_ms)
        raise ReservationsUnavailable("others were always quicker")

    def _in_others(
        self,
        groups: Sequence[Group],
        place: Place,
        book: Callable[[Group, Place, int], Place | Blocked],
        undo: Callable[[Place], None],
    ) -> Blocked | None:
        for group in groups:
            fault("reserve.between_shards")
            try:
                found = book(group, place, place.at_ms)
            except ReservationsUnavailable:
                self._try_to(lambda: undo(place))
                raise
            if isinstance(found, Blocked):
                return found
            if found.at_ms != place.at_ms:  # booked before, and lost in the first shard since
                self._try_to(lambda: undo(place))
                raise ReservationsUnavailable("its places in two shards disagree; try again")
        return None

    def _next_slot(self, groups: Sequence[Group], start_ms: int, mover: UUID | None = None) -> int:
        for _ in range(_MOST_ROUNDS):
            before_ms = start_ms
            for group in groups:
                start_ms = self.shards.slot(group, start_ms, mover)
            if start_ms == before_ms or len(groups) == 1:
                return start_ms
        raise ReservationsUnavailable("no slot was found in a bounded search")

    def home_of(self, terms: Terms) -> ShardKeys:
        """Return the shard in which a message is booked first: that of its own scope."""
        return own_shard(terms, self._keys)

    @staticmethod
    def _try_to(undo: Callable[[], None]) -> None:
        try:
            undo()
        except ReservationsUnavailable as error:
            log.warning("a place is freed later: %s", error)


def _first(why: Blocked | None, found: Blocked) -> Blocked:
    """Return the first reason with the latest knowledge of when it ends."""
    return found if why is None else why._replace(until_ms=found.until_ms, is_slot=False)
