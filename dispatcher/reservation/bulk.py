"""Booking many messages at once: one script for each shard, all in one pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    NoPlace,
    ReservationsUnavailable,
    TwinUnderWay,
)
from dispatcher.reservation.across import Across, Found
from dispatcher.reservation.places import Blocked, Place, Request
from dispatcher.reservation.posting import Posting
from dispatcher.reservation.windows import Windows

Booked = int | Place
"""When a message is booked, in ms since 1970; or the place of its twin, which booked first."""

_AT_ONCE = timedelta(0)


class Alone(NamedTuple):
    """A single message and what came of it: its script is called at once, which is quickest."""

    request: Request
    answer: Found

    @property
    def requests(self) -> Mapping[int, Request]:
        """The message, under the number 0."""
        return {0: self.request}

    def found(self) -> Mapping[int, Found]:
        """Return what came of it."""
        return {0: self.answer}

    def abandon(self) -> None:
        """Wait for nothing: the call is done."""


UnderWay = Alone | Posting | Across
"""Messages that are being booked, whose answers are still to be collected."""


class Bulk:
    """Books what :meth:`Windows.reserve` books, for many messages in a few round trips.

    Messages that share a scope are decided in order, and each sees those before it: what comes of
    them is what would come of them one by one. The next slot that a refusal tells is free beside
    all of them where the scopes lie in several shards.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._shards = windows.shards

    def reserve(self, requests: Sequence[Request]) -> list[Booked | DispatcherError]:
        """Return for each message when it is booked, or why it is not, in order.

        Raises ReservationsUnavailable: then some may be booked, and the caller withdraws all.
        """
        return self.collect(self.post(requests))

    def post(self, requests: Sequence[Request], *, ahead: timedelta = _AT_ONCE) -> UnderWay:
        """Send what books these messages and do not wait; :meth:`collect` does.

        ``ahead`` is how much longer than usual the store may take to confirm a single message.
        Raises ReservationsUnavailable like :meth:`reserve`.
        """
        if len(requests) == 1:
            return self._alone(requests[0], ahead)
        numbered = dict(enumerate(requests))
        if any(self._windows.is_spread(each.terms) for each in requests):
            return Across(numbered, self._windows)
        places = ((place, self._windows.home_of(each.terms)) for place, each in numbered.items())
        return Posting(self._shards, numbered, places)

    def abandon(self, under_way: UnderWay) -> None:
        """Collect no answers: some of the messages may be booked, and the caller withdraws all."""
        under_way.abandon()

    def collect(self, under_way: UnderWay) -> list[Booked | DispatcherError]:
        """Return what :meth:`reserve` returns, once it is known. Raises like it."""
        found = under_way.found()
        return [
            each if isinstance(each := found.get(place), int) else self._answer(request, each)
            for place, request in under_way.requests.items()
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

    def _alone(self, request: Request, ahead: timedelta) -> Alone:
        try:
            return Alone(request, self._windows.book(request, pending_ahead=ahead))
        except TwinUnderWay as error:
            self.withdraw([request])
            return Alone(request, error)
        except (NoPlace, IdempotencyConflict) as error:
            return Alone(request, error)

    def _answer(self, request: Request, found: Found | None) -> Booked | DispatcherError:
        if isinstance(found, Blocked):
            return self._windows.refusal(request.terms, request.asked_ms, found)
        if isinstance(found, Place):
            return found.at_ms if found.message_id == request.message_id else found
        if found is None:
            raise ReservationsUnavailable("a message was not judged")
        return found
