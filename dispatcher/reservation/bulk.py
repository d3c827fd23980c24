"""Booking many messages at once: one script for each shard, all in one pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    NoPlace,
    ReservationsUnavailable,
)
from dispatcher.redis_keys import ShardKeys
from dispatcher.reservation.places import Blocked, Group, Order, Place, Submit
from dispatcher.reservation.terms import Terms
from dispatcher.reservation.windows import Booking, Windows
from dispatcher.scope import Scope
from dispatcher.sendtime import from_ms

_MOST_AT_ONCE = 250
"""Most messages that one script books; it then runs for a few milliseconds at most."""


@dataclass(frozen=True, slots=True)
class Request:
    """One of many messages to book: ``asked_ms``, or the first slot up to ``latest_ms``."""

    message_id: UUID
    terms: Terms
    asked_ms: int
    latest_ms: int
    submit: Submit | None = None


_Found = Place | Blocked | Booking | DispatcherError | None
_Freed = defaultdict[Scope, set[int]]
"""By scope: which of many messages gave a place back there."""


class Bulk:
    """Books what :meth:`Windows.reserve` books, for many messages in a few round trips.

    Messages whose scopes share a shard, which is the rule, are booked in order and see each other.
    Scopes in further shards are booked after those; a message that has to move because of them may
    be overtaken by later ones, and one that was refused because of it is judged once more.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._shards = windows.shards

    def reserve(self, requests: Sequence[Request]) -> list[Booking | DispatcherError]:
        """Return for each message its booking, or why it has none, in order.

        Raises ReservationsUnavailable: then some may be booked, and the caller withdraws all.
        """
        groups = [self._windows.groups(each.terms) for each in requests]
        found = self._book_in_order(
            requests,
            [
                Order(place, each[0], request.message_id, request.asked_ms, request.latest_ms,
                      request.submit)
                for place, (request, each) in enumerate(zip(requests, groups, strict=True))
            ],
        )  # fmt: skip
        level = 1
        freed: _Freed = defaultdict(set)
        while True:
            deeper = [
                place
                for place, each in enumerate(groups)
                if len(each) > level and isinstance(found[place], Place)
            ]
            if not deeper:
                break
            gave_up = self._book_further(requests, groups, found, deeper, level)
            for place, many in gave_up.items():
                for group in groups[place][:many]:
                    for scope in group.scopes:
                        freed[scope].add(place)
            level += 1
        if freed:
            self._judge_again(requests, found, freed)
        return [self._answer(*each) for each in zip(requests, found, strict=True)]

    def withdraw(self, requests: Sequence[Request]) -> None:
        """Give back whatever was booked for these messages, but not what twins rely on."""
        groups = [self._windows.groups(each.terms) for each in requests]
        freed = self._shards.release_many(
            (each[0], request.message_id, request.submit)
            for request, each in zip(requests, groups, strict=True)
        )
        self._shards.release_many(
            (group, request.message_id, None)
            for request, each, free in zip(requests, groups, freed, strict=True)
            if free
            for group in each[1:]
        )

    def _book_in_order(self, requests: Sequence[Request], orders: Iterable[Order]) -> list[_Found]:
        """Book orders shard by shard, in the order of their requests."""
        found: list[_Found] = [None] * len(requests)
        waiting: dict[ShardKeys, list[Order]] = defaultdict(list)
        for order in orders:
            waiting[order.group.keys].append(order)
        while waiting:
            batches = [queue[:_MOST_AT_ONCE] for queue in waiting.values()]
            for batch, answers in zip(batches, self._shards.book_many(batches), strict=True):
                queue = waiting[batch[0].group.keys]
                for order, answer in zip(batch, answers, strict=False):
                    found[order.place] = answer
                if len(answers) < len(batch):
                    # The next one takes more than one call, and nothing may overtake it.
                    order = batch[len(answers)]
                    found[order.place] = self._book_alone(order)
                    answers.append(None)
                del queue[: len(answers)]
                if not queue:
                    del waiting[batch[0].group.keys]
        return found

    def _book_alone(self, order: Order) -> Place | Blocked | DispatcherError:
        try:
            return self._shards.book(
                order.group,
                order.message_id,
                asked_ms=order.asked_ms,
                latest_ms=order.latest_ms,
                submit=order.submit,
            )
        except IdempotencyConflict as conflict:
            return conflict

    def _book_further(
        self,
        requests: Sequence[Request],
        groups: Sequence[Sequence[Group]],
        found: list[_Found],
        deeper: Sequence[int],
        level: int,
    ) -> dict[int, int]:
        """Book the shards of one more level; whoever has to move gives up what it had before.

        Return who did, and in how many of its shards.
        """
        orders = [
            Order(place, groups[place][level], booked.message_id, booked.at_ms,
                  requests[place].latest_ms, None)
            for place in deeper
            if isinstance(booked := found[place], Place)
        ]  # fmt: skip
        answers = self._book_in_order(requests, orders)
        moved, gave_up = [], []
        for order in orders:
            answer = answers[order.place]
            request = requests[order.place]
            if isinstance(answer, Blocked) and request.latest_ms == request.asked_ms:
                self._give_up(request, order.message_id)
                found[order.place] = answer
                gave_up.append(order.place)
            elif not isinstance(answer, Place):
                found[order.place] = self._again(request, order.message_id)
                gave_up.append(order.place)
            elif answer.at_ms != order.asked_ms:
                found[order.place] = answer
                moved.append(order.place)
        self._move_earlier(requests, groups, found, moved, level)
        return dict.fromkeys(gave_up, level) | dict.fromkeys(moved, level + 1)

    def _move_earlier(
        self,
        requests: Sequence[Request],
        groups: Sequence[Sequence[Group]],
        found: list[_Found],
        moved: Sequence[int],
        level: int,
    ) -> None:
        """Move what is booked in the shards before ``level`` to where that one had room."""
        places = {place: each for place in moved if isinstance(each := found[place], Place)}
        for earlier in range(level):
            freed = self._shards.release_many(
                (groups[place][earlier], each.message_id,
                 requests[place].submit if earlier == 0 else None)
                for place, each in places.items()
            )  # fmt: skip
            if not all(freed):
                raise ReservationsUnavailable("another submit with the same key is under way")
        for earlier in range(level):
            answers = self._book_in_order(
                requests,
                [
                    Order(place, groups[place][earlier], each.message_id, each.at_ms, each.at_ms,
                          requests[place].submit if earlier == 0 else None)
                    for place, each in places.items()
                ],
            )  # fmt: skip
            for place, each in list(places.items()):
                if answers[place] != each:
                    own, *others = groups[place]
                    submit = requests[place].submit if earlier else None
                    if not all(self._shards.release_many([(own, each.message_id, submit)])):
                        raise ReservationsUnavailable(
                            "another submit with the same key is under way"
                        )
                    self._shards.release_many((group, each.message_id, None) for group in others)
                    found[place] = self._alone(requests[place])
                    del places[place]

    def _judge_again(self, requests: Sequence[Request], found: list[_Found], freed: _Freed) -> None:
        """Judge those once more who were refused where others have given places back since."""
        for place, (request, answer) in enumerate(zip(requests, found, strict=True)):
            refused = isinstance(answer, Blocked | NoPlace)
            if refused and any(freed[scope] - {place} for scope in request.terms.scopes):
                found[place] = self._again(request, request.message_id)

    def _again(self, request: Request, message_id: UUID) -> Booking | DispatcherError:
        """Give up what is booked and let the message go from shard to shard on its own."""
        self._give_up(request, message_id)
        return self._alone(request)

    def _alone(self, request: Request) -> Booking | DispatcherError:
        try:
            return self._windows.reserve(
                request.message_id,
                terms=request.terms,
                send_at=from_ms(request.asked_ms),
                latest=from_ms(request.latest_ms),
                submit=request.submit,
            )
        except (NoPlace, IdempotencyConflict) as error:
            return error

    def _give_up(self, request: Request, message_id: UUID) -> None:
        at = from_ms(request.asked_ms)
        self._windows.withdraw(Booking(message_id, request.terms, at, request.submit))

    def _answer(self, request: Request, found: _Found) -> Booking | DispatcherError:
        if isinstance(found, Place):
            at = from_ms(found.at_ms)
            return Booking(found.message_id, request.terms, at, request.submit)
        if isinstance(found, Blocked):
            return self._windows.refusal(request.terms, request.asked_ms, found)
        if found is None:
            raise ReservationsUnavailable("a message was not judged")
        return found
