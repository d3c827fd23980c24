"""Booking many messages at once: one script for each shard, all in one pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import cast
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    NoPlace,
    ReservationsUnavailable,
    TwinUnderWay,
)
from dispatcher.reservation.places import Batch, Blocked, Booking, Group, Place, Request
from dispatcher.reservation.posting import Posting, Waiting
from dispatcher.reservation.shards import Answer
from dispatcher.reservation.windows import Windows
from dispatcher.scope import Scope
from dispatcher.sendtime import from_ms, to_ms

_MOST_AT_ONCE = 250
"""Most messages that one script books; it then runs for a few milliseconds at most."""

Booked = int | Place
"""When a message is booked, in ms since 1970; or the place of its twin, which booked first."""
_Found = Answer | NoPlace | TwinUnderWay | None
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

    def reserve(self, requests: Sequence[Request]) -> list[Booked | DispatcherError]:
        """Return for each message when it is booked, or why it is not, in order.

        Raises ReservationsUnavailable: then some may be booked, and the caller withdraws all.
        """
        return self.collect(self.post(requests))

    def post(self, requests: Sequence[Request]) -> Posting:
        """Send what books these messages and do not wait; :meth:`collect` does.

        Raises ReservationsUnavailable like :meth:`reserve`.
        """
        posting = Posting(requests, self._windows)
        self._queue(posting, range(len(requests)), 0)
        self._post_next(posting, requests, 0)
        return posting

    def abandon(self, posting: Posting) -> None:
        """Collect no answers: some of the messages may be booked, and the caller withdraws all."""
        if posting.posted is not None:
            posting.posted.abandon()

    def collect(self, posting: Posting) -> list[Booked | DispatcherError]:
        """Return what :meth:`reserve` returns, once it is known. Raises like it."""
        requests = posting.requests
        found = self._collected(posting, requests, 0)
        freed: _Freed = defaultdict(set)
        for level in range(1, posting.deepest):
            deeper = [
                place
                for place, each in enumerate(found)
                if posting.has_level(place, level) and isinstance(each, int | Place)
            ]
            gave_up = self._book_further(posting, found, deeper, level)
            for place, many in gave_up.items():
                for group in posting.groups(place)[:many]:
                    for scope in group.scopes:
                        freed[scope].add(place)
        if freed:
            self._judge_again(requests, found, freed)
        return [
            each if isinstance(each, int) else self._answer(requests[place], each)
            for place, each in enumerate(found)
        ]

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

    def _queue(self, posting: Posting, places: Iterable[int], level: int) -> None:
        waiting: Waiting = defaultdict(list)
        for place in places:
            waiting[posting.keys(place, level)].append(place)
        posting.waiting = waiting

    def _post_next(self, posting: Posting, requests: Sequence[Request], level: int) -> None:
        posting.batches = []
        for keys, queue in posting.waiting.items():
            some = queue[:_MOST_AT_ONCE]
            scopes = [posting.scopes(place, level) for place in some]
            posting.batches.append(Batch(keys, [requests[place] for place in some], scopes))
        posting.posted = self._shards.post_many(posting.batches)

    def _collected(self, posting: Posting, requests: Sequence[Request], level: int) -> list[_Found]:
        """Book what is waiting shard by shard, in order, once the first batches are posted."""
        found: list[_Found] = [None] * len(requests)
        while posting.posted is not None and posting.waiting:
            replies = self._shards.answers(posting.batches, posting.posted)
            for batch, answers in zip(posting.batches, replies, strict=True):
                queue = posting.waiting[batch.keys]
                for place, answer in zip(queue, answers, strict=False):
                    found[place] = answer
                done = len(answers)
                if done < len(batch.requests):
                    # The next one takes more than one call, and nothing may overtake it.
                    found[queue[done]] = self._book_alone(batch.group(done), batch.requests[done])
                    done += 1
                del queue[:done]
                if not queue:
                    del posting.waiting[batch.keys]
            self._post_next(posting, requests, level)
        return found

    def _book(
        self, posting: Posting, requests: Sequence[Request], places: Iterable[int], level: int
    ) -> list[_Found]:
        """Book some of the messages, as ``requests`` say, in their shards of one level."""
        self._queue(posting, places, level)
        self._post_next(posting, requests, level)
        return self._collected(posting, requests, level)

    def _book_alone(self, group: Group, request: Request) -> Answer:
        try:
            place = self._shards.book(
                group,
                request.message_id,
                asked_ms=request.asked_ms,
                latest_ms=request.latest_ms,
                submit=request.submit,
            )
        except IdempotencyConflict as conflict:
            return conflict
        ours = isinstance(place, Place) and place.message_id == request.message_id
        return place.at_ms if isinstance(place, Place) and ours else place

    def _book_further(
        self, posting: Posting, found: list[_Found], deeper: Sequence[int], level: int
    ) -> dict[int, int]:
        """Book the shards of one more level; whoever has to move gives up what it had before.

        Return who did, and in how many of its shards.
        """
        booked = {place: _place(posting.requests[place], found[place]) for place in deeper}
        orders = list(posting.requests)
        for place, (message_id, at_ms, _) in booked.items():
            latest_ms = orders[place].latest_ms
            orders[place] = Request(message_id, orders[place].terms, at_ms, latest_ms)
        answers = self._book(posting, orders, deeper, level)
        moved, gave_up = {}, []
        for place in deeper:
            request, answer = posting.requests[place], answers[place]
            message_id = booked[place].message_id
            if isinstance(answer, Blocked) and request.latest_ms == request.asked_ms:
                self._give_up(request, message_id)
                found[place] = answer
                gave_up.append(place)
            elif not isinstance(answer, int | Place):
                found[place] = self._again(request, message_id)
                gave_up.append(place)
            elif _place(orders[place], answer) != booked[place]:
                found[place] = moved[place] = _place(orders[place], answer)
        self._move_earlier(posting, found, moved, level)
        return dict.fromkeys(gave_up, level) | dict.fromkeys(moved, level + 1)

    def _move_earlier(
        self, posting: Posting, found: list[_Found], moved: dict[int, Place], level: int
    ) -> None:
        """Move what is booked in the shards before ``level`` to where that one had room."""
        requests = posting.requests
        for earlier in range(level):
            freed = self._shards.release_many(
                (posting.groups(place)[earlier], each.message_id,
                 requests[place].submit if earlier == 0 else None)
                for place, each in moved.items()
            )  # fmt: skip
            kept = [place for place, free in zip(moved, freed, strict=True) if not free]
            self._leave(posting, found, moved, kept)
        for earlier in range(level):
            orders = list(requests)
            for place, (message_id, at_ms, _) in moved.items():
                submit = requests[place].submit if earlier == 0 else None
                orders[place] = Request(message_id, requests[place].terms, at_ms, at_ms, submit)
            answers = self._book(posting, orders, moved, earlier)
            for place, each in list(moved.items()):
                if answers[place] in (each, each.at_ms):
                    continue
                own, *others = posting.groups(place)
                submit = requests[place].submit if earlier else None
                if not all(self._shards.release_many([(own, each.message_id, submit)])):
                    self._leave(posting, found, moved, [place])
                    continue
                self._shards.release_many((group, each.message_id, None) for group in others)
                found[place] = self._alone(requests[place])
                del moved[place]

    def _leave(
        self, posting: Posting, found: list[_Found], moved: dict[int, Place], kept: Iterable[int]
    ) -> None:
        """Refuse messages whose own place a twin relies on: it is under way, or has died.

        What they have in further shards is at another time, which is no twin's.
        """
        for place in kept:
            found[place] = TwinUnderWay()
            message_id = moved.pop(place).message_id
            others = posting.groups(place)[1:]
            self._shards.release_many((group, message_id, None) for group in others)

    def _judge_again(self, requests: Sequence[Request], found: list[_Found], freed: _Freed) -> None:
        """Judge those once more who were refused where others have given places back since."""
        for place, (request, answer) in enumerate(zip(requests, found, strict=True)):
            refused = isinstance(answer, Blocked | NoPlace)
            if refused and any(freed[scope] - {place} for scope in request.terms.scopes):
                found[place] = self._again(request, request.message_id)

    def _again(self, request: Request, message_id: UUID) -> _Found:
        """Give up what is booked and let the message go from shard to shard on its own."""
        self._give_up(request, message_id)
        return self._alone(request)

    def _alone(self, request: Request) -> _Found:
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
        return Place(booking.message_id, to_ms(booking.send_at))

    def _give_up(self, request: Request, message_id: UUID) -> None:
        at = from_ms(request.asked_ms)
        self._windows.withdraw(Booking(message_id, request.terms, at, request.submit))

    def _answer(self, request: Request, found: _Found) -> Booked | DispatcherError:
        if isinstance(found, Blocked):
            return self._windows.refusal(request.terms, request.asked_ms, found)
        if isinstance(found, Place):
            return found.at_ms if found.message_id == request.message_id else found
        if found is None:
            raise ReservationsUnavailable("a message was not judged")
        return found


def _place(request: Request, found: _Found) -> Place:
    """Return where a message is that was booked."""
    return found if isinstance(found, Place) else Place(request.message_id, cast(int, found))
