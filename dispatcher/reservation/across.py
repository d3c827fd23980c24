"""Books many messages whose scopes lie in several shards, and decides them in order.

Each step books the next leg of every open message in one round trip, as if the messages before it
kept their present reservations. Where one of those moves, the messages behind it that share a scope
are booked again. So a batch takes a few round trips, and has the result of its messages one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dispatcher.errors import IdempotencyConflict, NoPlace, TwinUnderWay
from dispatcher.reservation.places import Blocked, Booking, Group, Place, Request
from dispatcher.reservation.posting import Posting
from dispatcher.reservation.shards import Answer
from dispatcher.reservation.windows import Windows
from dispatcher.scope import Scope
from dispatcher.times.send_time import from_ms, to_ms

Found = Answer | NoPlace | TwinUnderWay
"""The time at which a message or its twin is booked, or why it is not."""

_MOST_STEPS = 32
"""After so many steps the messages that are still open are booked one by one."""


@dataclass(slots=True, eq=False)
class _Leg:
    """A message's part in one shard.

    ``at_ms`` is the time of its reservation here, None without one. The rest is what this shard
    has answered, and holds until a message before it moves: ``known`` are stretches without a slot
    for it, ``has_room`` tells that the time asked for fits, ``why`` what refuses that time. A leg
    whose answers do not hold any more is ``shaken``.
    """

    group: Group
    at_ms: int | None = None
    known: list[tuple[int, int]] = field(default_factory=list)
    why: Blocked | None = None
    has_room: bool = False
    shaken: bool = True

    def shake(self) -> None:
        self.known.clear()
        self.why, self.has_room, self.shaken = None, False, True


@dataclass(slots=True, eq=False)
class _Open:
    """A message that is not decided yet.

    ``place`` is its place in the batch. A message that is ``odd`` is booked on its own when its
    turn comes: it has a twin, or shards have answered what the steps cannot use.
    """

    place: int
    request: Request
    legs: list[_Leg]
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

    def stands(self) -> bool:
        """Return whether it is booked at its aim in every shard; without an aim, in none."""
        aim = self.aim()
        return all(leg.at_ms == aim and not (leg.shaken and aim is not None) for leg in self.legs)

    def told(self, leg: _Leg, start_ms: int, answer: Answer) -> None:
        """Note the answer of one shard to a booking from ``start_ms`` on."""
        leg.shaken = False
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


class Across:
    """A batch of messages that is booked in several shards, and decided in order.

    A message is decided when every message before it that shares a scope with it is. Until then its
    reservation is where it fits beside theirs. A message that moves, or gives its reservation back,
    shakes those behind it: they are booked again. A message is booked in one shard after the other.
    """

    def __init__(self, requests: Mapping[int, Request], windows: Windows) -> None:
        self.requests = requests
        self._windows = windows
        self._shards = windows.shards
        self._open = [
            _Open(place, each, [_Leg(group) for group in windows.groups(each.terms)])
            for place, each in requests.items()
        ]
        self._found: dict[int, Found] = {}
        self._booking: dict[int, tuple[_Open, _Leg, int]] = {}
        self._step()

    def abandon(self) -> None:
        """Wait until the calls are done, and drop their answers."""
        self._posting.abandon()

    def found(self) -> Mapping[int, Found]:
        """Return the result of each message, by its place. Raises ReservationsUnavailable."""
        for step in range(1, _MOST_STEPS + 1):
            for place, answer in self._posting.found().items():
                each, leg, start_ms = self._booking[place]
                if isinstance(answer, Place | IdempotencyConflict):
                    self._meet(each, answer)
                each.told(leg, start_ms, answer)
            self._decide()
            if not self._open:
                break
            if step < _MOST_STEPS:
                self._step()
        self._one_by_one()
        return self._found

    def _meet(self, each: _Open, answer: Place | IdempotencyConflict) -> None:
        """Deal with the twin of a message: only the first shard knows of it."""
        if len(each.legs) == 1:
            self._found[each.place] = answer
        elif isinstance(answer, Place):
            self._withdraw(each.request._replace(message_id=answer.message_id))

    def _decide(self) -> None:
        """Decide each message that stands, if all before it that share a scope are decided."""
        still, unsure = [], set[Scope]()
        for each in self._open:
            if each.place in self._found:
                continue
            if each.odd or not unsure.isdisjoint(each.scopes) or not each.stands():
                pass
            elif (at_ms := each.aim()) is not None:
                self._found[each.place] = at_ms
                continue
            elif each.why is not None:
                self._found[each.place] = each.why
                continue
            else:
                each.odd = True  # no shard has told why the time asked for is refused
            still.append(each)
            unsure.update(each.scopes)
        self._open = still

    def _step(self) -> None:
        """Give wrong reservations back, settle odd messages, book each other in its next shard."""
        back: list[tuple[_Open, _Leg]] = []
        odd: list[_Open] = []
        self._booking.clear()
        changed, busy, before = set[Scope](), set[Scope](), set[Scope]()
        for each in self._open:
            _shake(each, changed)
            if each.odd and before.isdisjoint(each.scopes):
                odd.append(each)
                changed.update(each.scopes)
            aim, waits = each.aim(), False
            for leg in each.legs:
                scopes = leg.group.scopes
                if leg.at_ms == aim and not leg.shaken:
                    continue
                may_book = aim is not None and not waits and busy.isdisjoint(scopes)
                if leg.at_ms is not None and (leg.shaken or aim is None or may_book):
                    back.append((each, leg))
                    changed.update(scopes)
                if may_book and aim is not None:
                    self._booking[each.place] = each, leg, aim
                    changed.update(scopes)
                elif aim is not None:
                    busy.update(scopes)
                waits = True
            before.update(each.scopes)
        self._give_back(back)
        self._settle(odd)
        self._post()

    def _post(self) -> None:
        booking = [each for each in self._booking.values() if each[0].place not in self._found]
        requests = {
            each.place: each.request._replace(
                asked_ms=start_ms, submit=each.request.submit if leg is each.legs[0] else None
            )
            for each, leg, start_ms in booking
        }
        places = [(each.place, leg.group.keys) for each, leg, _ in booking]
        scopes = {each.place: leg.group.scopes for each, leg, _ in booking}
        self._posting = Posting(self._shards, requests, places, scopes)

    def _give_back(self, back: Iterable[tuple[_Open, _Leg]]) -> None:
        """Give reservations back; of messages with a key that of the first leg first.

        A twin may rely on it. Then it is kept.
        """
        keyed = [each for each, leg in back if each.request.submit and leg is each.legs[0]]
        freed = self._shards.release_many(
            (each.legs[0].group, each.request.message_id, each.request.submit) for each in keyed
        )
        kept = [each for each, is_free in zip(keyed, freed, strict=True) if not is_free]
        for each in kept:
            self._found[each.place] = TwinUnderWay()
        rest = [
            (each, leg)
            for each, leg in back
            if each not in kept and not (each.request.submit and leg is each.legs[0])
        ]
        # A reservation of theirs in another shard at another time is no twin's.
        rest += [
            (each, leg)
            for each in kept
            for leg in each.legs
            if leg.at_ms not in (None, each.legs[0].at_ms)
        ]
        self._shards.release_many((leg.group, each.request.message_id, None) for each, leg in rest)
        for _, leg in back:
            leg.at_ms = None

    def _one_by_one(self) -> None:
        self._give_back(
            [(each, leg) for each in self._open for leg in each.legs if leg.at_ms is not None]
        )
        self._settle(self._open)

    def _settle(self, alone: Iterable[_Open]) -> None:
        """Book messages one by one, from shard to shard."""
        for each in alone:
            if each.place not in self._found:
                self._found[each.place] = self._alone(each.request)

    def _alone(self, request: Request) -> Found:
        try:
            booking = self._windows.reserve(
                request.message_id,
                terms=request.terms,
                send_at=from_ms(request.asked_ms),
                latest=from_ms(request.latest_ms),
                submit=request.submit,
            )
        except (NoPlace, IdempotencyConflict, TwinUnderWay) as error:
            return error
        at_ms = to_ms(booking.send_at)
        ours = booking.message_id == request.message_id
        return at_ms if ours else Place(booking.message_id, at_ms)

    def _withdraw(self, request: Request) -> None:
        at = from_ms(request.asked_ms)
        self._windows.withdraw(Booking(request.message_id, request.terms, at, request.submit))


def _shake(each: _Open, changed: set[Scope]) -> None:
    """Forget the answers for a message that hold no more, now that others change these scopes."""
    shaken = [leg for leg in each.legs if not (leg.shaken or changed.isdisjoint(leg.group.scopes))]
    if not shaken or each.odd:
        pass
    elif each.aim() is None:
        shaken = each.legs  # another leg may refuse it first now
    elif each.request.submit:
        shaken.append(each.legs[0])  # a twin may rely on what is given back
    for leg in shaken:
        leg.shake()
