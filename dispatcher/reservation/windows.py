"""Booking, searching, moving and giving back, over all shards that a message's scopes lie in.

Where all scopes share a shard, which is the rule, each is one script and one round trip.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
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
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation.places import (
    Blocked,
    Booking,
    Group,
    Moving,
    Place,
    Request,
    Submit,
    grouped,
    new_hold,
    own_shard,
)
from dispatcher.reservation.shards import Shards
from dispatcher.reservation.terms import Rules, Terms
from dispatcher.scope import Scope
from dispatcher.times.send_time import from_ms, to_ms

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
        latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms
        request = Request(message_id, terms, asked_ms, latest_ms, submit)
        place = self.book(request, pending_ahead=pending_ahead, is_stored=is_stored)
        return Booking(place.message_id, terms, from_ms(place.at_ms), submit)

    def book(
        self,
        request: Request,
        *,
        pending_ahead: timedelta = timedelta(0),
        is_stored: bool = False,
    ) -> Place:
        """Return where a request is booked; the id is a twin's. Raises like :meth:`reserve`."""
        message_id, terms, asked_ms, latest_ms, submit = request
        ahead_ms = pending_ahead // timedelta(milliseconds=1)
        home = terms.scopes[0].home

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
            booking = Booking(place.message_id, terms, from_ms(place.at_ms), submit)
            if not self.withdraw(booking):
                raise TwinUnderWay

        return self._in_all(terms, Place(message_id, asked_ms), latest_ms, book, undo)

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
        beside: Moving | None = None,
    ) -> Moving:
        """Hold another place for a message, judged as if the one it has were free.

        And the one that it holds ``beside``. The message keeps its place until :meth:`take`;
        :meth:`drop` gives the other one up. Raises like :meth:`reserve`; then nothing is held.
        """
        asked_ms = to_ms(send_at)
        latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms
        request = Request(message_id, terms, asked_ms, latest_ms)
        return self._move(request, new_hold(message_id), beside=beside)

    def move_many(self, requests: Sequence[Request]) -> list[Moving | NoPlace]:
        """Hold another place for each of these messages, or return why it has none.

        As if :meth:`move` was called for each, in order. Those whose scopes share a shard go
        together in one round trip, the others, and what shares a scope with them, one by one after
        those. All keep the places that they have, which count for the others. Raises
        ReservationsUnavailable; then nothing is held.
        """
        holds = [new_hold(each.message_id) for each in requests]
        near: list[tuple[int, Group]] = []
        far: set[Scope] = set()
        for place, each in enumerate(requests):
            groups = self.groups(each.terms)
            if len(groups) == 1 and far.isdisjoint(each.terms.scopes):
                near.append((place, groups[0]))
            else:
                far.update(each.terms.scopes)
        found: dict[int, Moving | NoPlace] = {}
        try:
            asked = [(group, requests[place], holds[place]) for place, group in near]
            answers = self.shards.ask_moves(asked) if asked else []
            first = dict(zip([place for place, _ in near], answers, strict=True))
            for place in [*first, *(n for n in range(len(requests)) if n not in first)]:
                try:
                    found[place] = self._move(requests[place], holds[place], first=first.get(place))
                except NoPlace as refused:
                    found[place] = refused
        except ReservationsUnavailable:
            at = from_ms(0)
            begun = [Moving(requests[n].message_id, requests[n].terms, at, holds[n])
                     for n, _ in near]  # fmt: skip
            begun += [each for each in found.values() if isinstance(each, Moving)]
            self._try_to(lambda: self.drop(*begun))
            raise
        return [found[place] for place in range(len(requests))]

    def _move(
        self, request: Request, hold: bytes, *, beside: Moving | None = None, first: Any = None
    ) -> Moving:
        """Hold a place; ``first`` is what the shard was asked already, and answered."""
        message_id, terms, asked_ms, latest_ms, _ = request

        def hold_place(group: Group, place: Place, latest_ms: int) -> Place | Blocked:
            nonlocal first
            answered, first = first, None
            return self.shards.move(
                group,
                message_id,
                hold=hold,
                asked_ms=place.at_ms,
                latest_ms=latest_ms,
                beside=beside.hold if beside else b"",
                first=answered,
            )

        def undo(place: Place) -> None:
            nonlocal hold
            dropped, hold = hold, new_hold(message_id)  # a late copy drops no later one
            self.drop(Moving(message_id, terms, from_ms(place.at_ms), dropped))

        try:
            place = self._in_all(
                terms, Place(message_id, asked_ms), latest_ms, hold_place, undo, mover=message_id
            )
        except ReservationsUnavailable:
            # Only the reply may have been lost.
            self._try_to(lambda: undo(Place(message_id, asked_ms)))
            raise
        return Moving(message_id, terms, from_ms(place.at_ms), hold, place.held_at_ms)

    def hold_again(self, moving: Moving) -> Moving | Blocked:
        """Hold the same place once more where a window has lost it, and be it too old.

        Where another message got it there, say so; what is held elsewhere stays so.
        """
        at_ms = to_ms(moving.send_at)
        held_at_ms: list[int] = []
        for group in self.groups(moving.terms):
            found = self.shards.move(
                group, moving.message_id, hold=moving.hold, asked_ms=at_ms, latest_ms=at_ms
            )
            if isinstance(found, Blocked):
                return found
            held_at_ms.append(found.held_at_ms)
        return replace(moving, held_at_ms=min(held_at_ms))

    def take(self, held: Sequence[tuple[Moving, int]]) -> list[bool]:
        """Make held places those of their messages, whose old ones are then free.

        Each comes with the token that the store gave with the new time, after the place was held.
        Where a message was moved further since, only the hold goes. False where a window has lost
        the hold, or holds it for too long: then it is to be held again, or the message to go back.
        """
        groups = [self.groups(moving.terms) for moving, _ in held]
        taken = [True] * len(held)
        # An old place goes when all shards have the new one.
        several = [place for place, each in enumerate(groups) if len(each) > 1]
        if several:
            stand = self.shards.have([(groups[place], held[place][0]) for place in several])
            for place, stands in zip(several, stand, strict=True):
                taken[place] = stands
        left = [place for place, each in enumerate(taken) if each]
        for level in range(max(map(len, groups), default=0)):
            some = [place for place in left if len(groups[place]) > level]
            done = self.shards.take([(groups[place][level], *held[place]) for place in some])
            for place, is_done in zip(some, done, strict=True):
                taken[place] = taken[place] and is_done
        return taken

    def drop(self, *held: Moving) -> None:
        """Give held places up."""
        self.shards.drop([(group, each.hold) for each in held for group in self.groups(each.terms)])

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
            blocked = self._in_others(others, asked.message_id, found, book, undo)
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
        message_id: UUID,
        place: Place,
        book: Callable[[Group, Place, int], Place | Blocked],
        undo: Callable[[Place], None],
    ) -> Blocked | None:
        """Book in further shards at the time that the first shard answered.

        ``place`` is the twin's where one with the same key was there first. Return what blocks it,
        None when all have it.
        """
        for group in groups:
            fault("reserve.between_shards")
            try:
                found = book(group, place, place.at_ms)
            except ReservationsUnavailable:
                self._try_to(lambda: undo(place))
                raise
            if isinstance(found, Blocked):
                return found
            if found.at_ms != place.at_ms:
                undo(place)  # withdraws only our reliance on a twin's place; the twin keeps it
                if place.message_id != message_id:
                    # The first shard has the twin's new time, this one its old one.
                    raise TwinUnderWay
                # Our own earlier booking: the first shard has lost it, this one has not.
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

    def is_spread(self, terms: Terms) -> bool:
        """Tell whether these scopes lie in several shards."""
        return len(terms.scopes) > 1 and len(self.groups(terms)) > 1

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
