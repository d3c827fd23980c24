"""Books many messages over several shards in a few round trips, and decides them in order.

Each step books the next leg of every open message in one round trip, as if the messages before it
kept their present reservations. Where one of those moves, the messages behind it that share a scope
are booked again. So a batch has the result of its messages one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from dispatcher.errors import DuplicateUnderWay, IdempotencyConflict, SlotRefused
from dispatcher.reservation.booking import (
    Blocked,
    BookingRequest,
    Leg,
    LegRequest,
    Rebooked,
    Reservation,
)
from dispatcher.reservation.shards import LegResult
from dispatcher.scope import Scope

if TYPE_CHECKING:
    from dispatcher.reservation.windows import Windows

Found = LegResult | Rebooked | SlotRefused | DuplicateUnderWay
"""The time at which a message or its duplicate is booked, or why it is not."""

_MOST_STEPS = 32
"""After so many steps the messages that are still open are booked one by one."""


@dataclass(slots=True, eq=False)
class _OpenLeg:
    """A leg of a message that is not decided yet.

    ``at_ms`` is the time of its reservation, None without one. The rest is what its shard has
    answered, and holds until a message before it moves: ``known`` are stretches without a slot for
    it, ``has_room``: the time asked for fits, ``why`` what refuses that time. A leg
    whose answers do not hold any more is ``stale``.
    """

    leg: Leg
    at_ms: int | None = None
    known: list[tuple[int, int]] = field(default_factory=list)
    why: Blocked | None = None
    has_room: bool = False
    stale: bool = True

    def forget(self) -> None:
        self.known.clear()
        self.why, self.has_room, self.stale = None, False, True


@dataclass(slots=True, eq=False)
class _Open:
    """A message that is not decided yet.

    ``number`` is its index in the batch. A message that is ``odd`` is booked on its own when its
    turn comes: it has a duplicate, or shards have answered what the steps cannot use.
    ``original`` is the request as the caller gave it. ``request`` is the one that is booked now: it
    is renewed whenever a reservation of it is released.
    """

    number: int
    original: BookingRequest
    request: BookingRequest
    legs: list[_OpenLeg]
    odd: bool = False

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return self.request.terms.scopes

    @property
    def why(self) -> Blocked | None:
        """Why the first shard that refuses the time asked for does so."""
        return next((leg.why for leg in self.legs if not leg.has_room), None)

    def aim(self) -> int | None:
        """Return the first time that no leg has refused; None when it is later than the latest."""
        if self.odd:
            return None
        at_ms, before_ms = self.request.asked_ms, -1
        while before_ms != at_ms:
            before_ms = at_ms
            for leg in self.legs:
                for start_ms, end_ms in leg.known:
                    if start_ms <= at_ms < end_ms:
                        at_ms = end_ms
        return at_ms if at_ms <= self.request.latest_ms else None

    def result(self, found: int | Reservation) -> int | Reservation | Rebooked:
        """Return the answer to ``original``; it names the renewed request, if there is one."""
        if self.request is self.original:
            return found
        if isinstance(found, int):
            found = Reservation(self.request.message_id, found)
        return Rebooked(self.request, found)

    def stands(self, aim: int | None) -> bool:
        """Return whether it is booked at its aim in every shard; without an aim, in none."""
        return all(leg.at_ms == aim and not (leg.stale and aim is not None) for leg in self.legs)

    def scopes_of_wrong(self, aim: int | None) -> set[Scope]:
        """Return the scopes of its reservations that are not at its aim, or may not be right."""
        wrong = [leg for leg in self.legs if leg.at_ms is not None]
        return {scope for leg in wrong if leg.stale or leg.at_ms != aim for scope in leg.leg.scopes}

    def note(self, leg: _OpenLeg, start_ms: int, answer: LegResult) -> None:
        """Note the answer of one shard to a booking from ``start_ms`` on."""
        leg.stale = False
        if isinstance(answer, int):
            leg.at_ms = answer
            leg.has_room |= start_ms == answer == self.request.asked_ms
            leg.known.append((start_ms, answer))
            self.odd = not start_ms <= answer <= self.request.latest_ms
        elif isinstance(answer, Blocked):
            leg.known.append((start_ms, max(answer.until_ms, start_ms + 1)))
            leg.why = answer if start_ms == self.request.asked_ms else leg.why
        else:
            self.odd = True

    def forget(self, changed: set[Scope]) -> None:
        """Forget the answers that do not hold now that others changed these scopes."""
        legs = [each for each in self.legs
                if not (each.stale or changed.isdisjoint(each.leg.scopes))]  # fmt: skip
        if not legs or self.odd:
            pass
        elif self.aim() is None:
            legs = self.legs  # another leg may refuse it first now
        elif self.request.submit:
            legs.append(self.legs[0])  # a duplicate may rely on what is released
        for leg in legs:
            leg.forget()


_NextLeg = tuple[_Open, _OpenLeg, int]
"""A leg that is booked in a step, and from which time on."""


@dataclass(slots=True)
class _Step:
    """What one step does; the messages are added in order.

    ``wrong`` are the messages of which a reservation is released. Such a message goes on under
    another id. So its other reservations, at its aim, are released too, and booked ``again`` in the
    same step. There nothing has ``changed`` for the messages behind it, unless the leg gets another
    time; the next step gets such legs as ``moved``. ``busy`` are the scopes in which a message
    waits, so that none behind it may book there; ``before`` are the scopes of all messages so far.
    """

    moved: set[_OpenLeg]
    wrong: list[_Open] = field(default_factory=list)
    odd: list[_Open] = field(default_factory=list)
    next_legs: list[_NextLeg] = field(default_factory=list)
    again: list[_NextLeg] = field(default_factory=list)
    changed: set[Scope] = field(default_factory=set)
    busy: set[Scope] = field(default_factory=set)
    before: set[Scope] = field(default_factory=set)

    def add(self, each: _Open) -> None:
        """Plan what this step does for the next message of the batch."""
        each.forget(self.changed)
        self.changed.update(*(leg.leg.scopes for leg in each.legs if leg in self.moved))
        if each.odd and self.before.isdisjoint(each.scopes):
            self.odd.append(each)
            self.changed.update(each.scopes)
        aim, waits, is_wrong = each.aim(), False, False
        standing: list[_NextLeg] = []
        for leg in each.legs:
            scopes = leg.leg.scopes
            if leg.at_ms == aim and not leg.stale:
                if aim is not None:
                    standing.append((each, leg, aim))
                continue
            may_book = aim is not None and not waits and self.busy.isdisjoint(scopes)
            is_wrong |= leg.at_ms is not None and (leg.stale or aim is None or may_book)
            if may_book and aim is not None:
                self.next_legs.append((each, leg, aim))
                self.changed.update(scopes)
            elif aim is not None:
                self.busy.update(scopes)
            waits = True
        if is_wrong:
            self.wrong.append(each)
            self.changed |= each.scopes_of_wrong(aim)
            self.next_legs += standing
            self.again += standing
        self.before.update(each.scopes)


class Steps:
    """A batch of messages that are decided in order.

    A message is decided when every message before it that shares a scope with it is. Until then its
    reservation is where it fits beside theirs. When a message moves, or its reservation is
    released, those behind it are booked again. A message is booked leg by leg.
    """

    def __init__(
        self, requests: Sequence[BookingRequest], legs: Sequence[Sequence[Leg]], windows: Windows
    ) -> None:
        self._windows = windows
        self._shards = windows.shards
        self._all = [
            _Open(number, request, request, [_OpenLeg(leg) for leg in its])
            for number, (request, its) in enumerate(zip(requests, legs, strict=True))
        ]
        self._open = self._all
        self._found: dict[int, Found] = {}
        self._moved = set[_OpenLeg]()
        self._renewed: dict[UUID, _Open] = {}

    def booked(self) -> list[Found]:
        """Return the result of each message. Raises ReservationsUnavailable."""
        for _ in range(_MOST_STEPS):
            if not self._open:
                break
            self._step()
            self._decide()
        self._release([each for each in self._open
                       if any(leg.at_ms is not None for leg in each.legs)])  # fmt: skip
        self._book_alone(self._open)
        return [self._named_anew(self._found[each.number]) for each in self._all]

    def _named_anew(self, found: Found) -> Found:
        """Return a refusal with the present ids of the messages that it names."""
        if not isinstance(found, Blocked):
            return found
        ids = (self._renewed[each].request.message_id if each in self._renewed else each
               for each in found.conflicting)  # fmt: skip
        return found._replace(conflicting=tuple(ids))

    def renewed(self) -> list[BookingRequest]:
        """Return the requests that were renewed, as they are now."""
        return [each.request for each in self._all if each.request is not each.original]

    def _step(self) -> None:
        """Release wrong reservations, book odd messages alone, the others in their next legs."""
        step = _Step(self._moved)
        for each in self._open:
            step.add(each)
        self._release(step.wrong)
        self._book_alone(step.odd)
        self._book([each for each in step.next_legs if each[0].number not in self._found])
        self._moved = {leg for _, leg, aim in step.again if leg.at_ms != aim}

    def _book(self, next_legs: Sequence[_NextLeg]) -> None:
        answers = self._shards.book(
            [
                LegRequest(
                    leg.leg,
                    each.request.message_id,
                    start_ms,
                    each.request.latest_ms,
                    each.request.submit if leg is each.legs[0] else None,
                )
                for each, leg, start_ms in next_legs
            ]
        )
        for (each, leg, start_ms), answer in zip(next_legs, answers, strict=True):
            if isinstance(answer, Reservation | IdempotencyConflict):
                self._meet(each, answer)
            each.note(leg, start_ms, answer)

    def _meet(self, each: _Open, answer: Reservation | IdempotencyConflict) -> None:
        """Deal with a duplicate of a message: only the first shard knows of it."""
        if isinstance(answer, IdempotencyConflict):
            if len(each.legs) == 1:
                self._found[each.number] = answer
        elif len(each.legs) == 1:
            self._found[each.number] = each.result(answer)
        else:
            request = each.request
            self._windows.withdraw([request._replace(message_id=answer.message_id)])
            each.request = request._replace(submit=request.submit and request.submit.renewed())

    def _decide(self) -> None:
        """Decide each message that stands, if all before it that share a scope are decided."""
        still, unsure = [], set[Scope]()
        for each in self._open:
            if each.number in self._found:
                continue
            aim = each.aim()
            if not each.odd and unsure.isdisjoint(each.scopes) and each.stands(aim):
                answer = each.why if aim is None else aim
                if answer is not None:
                    booked = each.result(answer) if isinstance(answer, int) else answer
                    self._found[each.number] = booked
                    continue
                each.odd = True  # no shard has answered why the time asked for is refused
            still.append(each)
            unsure.update(each.scopes)
        self._open = still

    def _release(self, wrong: Sequence[_Open]) -> None:
        """Release whatever these messages have booked; of one with a key its first leg first.

        A duplicate may rely on it. Then it is kept.
        """
        keyed = [each for each in wrong if each.request.submit and each.legs[0].at_ms is not None]
        freed = self._shards.release_many(
            (each.legs[0].leg, each.request.message_id, each.request.submit) for each in keyed
        )
        kept = [each for each, is_free in zip(keyed, freed, strict=True) if not is_free]
        for each in kept:
            self._found[each.number] = DuplicateUnderWay()
        self._shards.release_many(
            (leg.leg, each.request.message_id, None)
            for each in wrong
            for leg in each.legs
            if leg.at_ms is not None
            and not (each.request.submit and leg is each.legs[0])
            # A reservation of theirs in another shard at another time is no duplicate's.
            and not (each in kept and leg.at_ms == each.legs[0].at_ms)
        )
        for each in wrong:
            self._renewed[each.request.message_id] = each
            each.request = each.request.renewed()
            for leg in each.legs:
                leg.at_ms = None

    def _book_alone(self, alone: Iterable[_Open]) -> None:
        """Book messages one by one, each in all its legs."""
        for each in alone:
            if each.number not in self._found:
                try:
                    found = self._windows.book_alone(each.request)
                except (SlotRefused, IdempotencyConflict, DuplicateUnderWay) as error:
                    self._found[each.number] = error
                else:
                    if isinstance(found, Rebooked):
                        each.request, found = found
                    self._found[each.number] = each.result(found)
