"""Books many messages in a few round trips, and decides them in order.

Each step books the next leg of every open message in one round trip, as if the messages before it
kept their present reservations. Where one of those moves, the messages behind it that share a scope
are booked again. So a batch has the result of its messages one by one. Where every message has one
leg, as on a single server, one step decides them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    NoPlace,
    TwinUnderWay,
)
from dispatcher.reservation.booking import Blocked, Booking, Leg, LegRequest, Request, Reservation
from dispatcher.reservation.shards import Answer
from dispatcher.reservation.windows import Windows
from dispatcher.scope import Scope
from dispatcher.times.send_time import from_ms

Booked = int | Reservation
"""When a message is booked, in ms since 1970; or the reservation of a duplicate submit."""


_Found = Answer | NoPlace | TwinUnderWay
"""The time at which a message or its duplicate is booked, or why it is not."""

_MOST_STEPS = 32
"""After so many steps the messages that are still open are booked one by one."""
_AT_ONCE = timedelta(0)
_MILLISECOND = timedelta(milliseconds=1)


class Bulk:
    """Books what :meth:`Windows.reserve` books, for many messages in a few round trips.

    Messages that share a scope are decided in order, and each sees those before it: what comes of
    them is what would come of them one by one. The next slot of a refusal is free beside all of
    them where the scopes lie in several shards.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._shards = windows.shards

    def reserve(
        self, requests: Sequence[Request], *, ahead: timedelta = _AT_ONCE
    ) -> list[Booked | DispatcherError]:
        """Return for each message when it is booked, or why it is not, in order.

        ``ahead`` is how much longer than usual the store may take to confirm them.
        Raises ReservationsUnavailable: then some may be booked, and the caller withdraws all.
        """
        legs = [self._windows.legs(each.terms) for each in requests]
        found: Sequence[_Found]
        if all(len(each) == 1 for each in legs):  # the scripts decide in order
            found = self._shards.book(
                [
                    LegRequest(leg, each.message_id, each.asked_ms, each.latest_ms, each.submit)
                    for each, [leg] in zip(requests, legs, strict=True)
                ],
                pending_ahead_ms=ahead // _MILLISECOND,
            )
        elif len(requests) == 1:
            found = [self._alone(requests[0], ahead)]
        else:
            return self._in_steps(requests, legs)
        return self._answers(requests, found)

    def withdraw(self, requests: Sequence[Request]) -> None:
        """Release whatever is booked for these messages, but not what duplicates rely on."""
        legs = [self._windows.legs(each.terms) for each in requests]
        freed = self._shards.release_many(
            (each[0], request.message_id, request.submit)
            for request, each in zip(requests, legs, strict=True)
        )
        self._shards.release_many(
            (leg, request.message_id, None)
            for request, each, free in zip(requests, legs, freed, strict=True)
            if free
            for leg in each[1:]
        )

    def _in_steps(
        self, requests: Sequence[Request], legs: Sequence[Sequence[Leg]]
    ) -> list[Booked | DispatcherError]:
        batch = _Batch(requests, legs, self._windows)
        try:
            return self._answers(requests, batch.booked())
        except BaseException:
            batch.release_renewed()  # the caller withdraws by the ids that it knows
            raise

    def _answers(
        self, requests: Sequence[Request], found: Sequence[_Found]
    ) -> list[Booked | DispatcherError]:
        return [
            each if isinstance(each, int) else self._answer(request, each)
            for request, each in zip(requests, found, strict=True)
        ]

    def _alone(self, request: Request, ahead: timedelta) -> _Found:
        try:
            return self._windows.book(request, pending_ahead=ahead)
        except TwinUnderWay as error:
            self.withdraw([request])
            return error
        except (NoPlace, IdempotencyConflict) as error:
            return error

    def _answer(self, request: Request, found: _Found) -> Booked | DispatcherError:
        if isinstance(found, Blocked):
            return self._windows.refusal(request.terms, request.asked_ms, found)
        if isinstance(found, Reservation) and found.message_id == request.message_id:
            return found.at_ms
        return found


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
    """

    number: int
    request: Request
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

    def stands(self, aim: int | None) -> bool:
        """Return whether it is booked at its aim in every shard; without an aim, in none."""
        return all(leg.at_ms == aim and not (leg.stale and aim is not None) for leg in self.legs)

    def note(self, leg: _OpenLeg, start_ms: int, answer: Answer) -> None:
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


class _Batch:
    """A batch of messages that are decided in order.

    A message is decided when every message before it that shares a scope with it is. Until then its
    reservation is where it fits beside theirs. When a message moves, or its reservation is
    released, those behind it are booked again. A message is booked leg by leg.
    """

    def __init__(
        self, requests: Sequence[Request], legs: Sequence[Sequence[Leg]], windows: Windows
    ) -> None:
        self._windows = windows
        self._shards = windows.shards
        self._requests = requests
        self._open = [
            _Open(number, request, [_OpenLeg(leg) for leg in its])
            for number, (request, its) in enumerate(zip(requests, legs, strict=True))
        ]
        self._found: dict[int, _Found] = {}

    def booked(self) -> list[_Found]:
        """Return the result of each message. Raises ReservationsUnavailable."""
        many = len(self._open)
        for _ in range(_MOST_STEPS):
            if not self._open:
                break
            self._step()
            self._decide()
        self._release([(each, leg) for each in self._open for leg in each.legs
                       if leg.at_ms is not None])  # fmt: skip
        self._book_alone(self._open)
        return [self._found[number] for number in range(many)]

    def release_renewed(self) -> None:
        """Release what is booked under ids other than those of the requests."""
        for number, each in self._found.items():
            request = self._requests[number]
            if (
                isinstance(each, Reservation)
                and request.submit is None
                and each.message_id != request.message_id
            ):
                self._windows.try_to_release(each.message_id, request.terms)

    def _step(self) -> None:
        """Release wrong reservations, settle odd messages, book each other in its next leg."""
        wrong: list[tuple[_Open, _OpenLeg]] = []
        odd: list[_Open] = []
        next_legs: list[tuple[_Open, _OpenLeg, int]] = []
        changed, busy, before = set[Scope](), set[Scope](), set[Scope]()
        for each in self._open:
            each.forget(changed)
            if each.odd and before.isdisjoint(each.scopes):
                odd.append(each)
                changed.update(each.scopes)
            aim, waits = each.aim(), False
            for leg in each.legs:
                scopes = leg.leg.scopes
                if leg.at_ms == aim and not leg.stale:
                    continue
                may_book = aim is not None and not waits and busy.isdisjoint(scopes)
                if leg.at_ms is not None and (leg.stale or aim is None or may_book):
                    wrong.append((each, leg))
                    changed.update(scopes)
                if may_book and aim is not None:
                    next_legs.append((each, leg, aim))
                    changed.update(scopes)
                elif aim is not None:
                    busy.update(scopes)
                waits = True
            before.update(each.scopes)
        self._release(wrong)
        self._book_alone(odd)
        self._book([each for each in next_legs if each[0].number not in self._found])

    def _book(self, next_legs: Sequence[tuple[_Open, _OpenLeg, int]]) -> None:
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
        if len(each.legs) == 1:
            self._found[each.number] = answer
        elif isinstance(answer, Reservation):
            request = each.request
            at = from_ms(request.asked_ms)
            self._windows.withdraw(Booking(answer.message_id, request.terms, at, request.submit))

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
                    self._found[each.number] = answer
                    continue
                each.odd = True  # no shard has answered why the time asked for is refused
            still.append(each)
            unsure.update(each.scopes)
        self._open = still

    def _release(self, wrong: Iterable[tuple[_Open, _OpenLeg]]) -> None:
        """Release reservations; of messages with a key that of the first leg first.

        A duplicate may rely on it. Then it is kept.
        """
        wrong = list(wrong)
        keyed = [each for each, leg in wrong if each.request.submit and leg is each.legs[0]]
        freed = self._shards.release_many(
            (each.legs[0].leg, each.request.message_id, each.request.submit) for each in keyed
        )
        kept = [each for each, is_free in zip(keyed, freed, strict=True) if not is_free]
        for each in kept:
            self._found[each.number] = TwinUnderWay()
        rest = [
            (each, leg)
            for each, leg in wrong
            if each not in kept and not (each.request.submit and leg is each.legs[0])
        ]
        # A reservation of theirs in another shard at another time is no duplicate's.
        rest += [
            (each, leg)
            for each in kept
            for leg in each.legs
            if leg.at_ms not in (None, each.legs[0].at_ms)
        ]
        self._shards.release_many((leg.leg, each.request.message_id, None) for each, leg in rest)
        for _, leg in wrong:
            leg.at_ms = None

    def _book_alone(self, alone: Iterable[_Open]) -> None:
        """Book messages one by one, each in all its legs."""
        for each in alone:
            if each.number not in self._found:
                try:
                    self._found[each.number] = self._windows.book(each.request)
                except (NoPlace, IdempotencyConflict, TwinUnderWay) as error:
                    self._found[each.number] = error
