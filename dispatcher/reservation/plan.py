"""Copies of windows, in which a plan books as a submit books in the windows themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from uuid import uuid4

import redis

from dispatcher.errors import ReservationsUnavailable, SlotRefused
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import PlanKeys, ShardKeys
from dispatcher.reservation.booking import Answer, BookingRequest, planned_id
from dispatcher.reservation.encoding import Rules
from dispatcher.reservation.shards import closed
from dispatcher.reservation.windows import Windows
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

LIFE_MS = 600_000
"""How long the keys of a plan outlive a process that dies."""
_RENEW_SECONDS = LIFE_MS / 1_000 / 5
_STEP = 1_000
"""About how many members of a window are read together; Redis is busy for a millisecond."""
_AT_ONCE = 1_000
_LOST = "the copies of the plan are gone; plan again"


class Copies(AbstractContextManager["Copies"]):
    """Books in copies of the windows what a submit would book in the windows.

    A window is copied when a request first needs it; what others book later is not seen. The keys
    of the copies are deleted when the context ends. Raises ReservationsUnavailable like Windows,
    also when the copies were lost.
    """

    def __init__(
        self,
        client: redis.Redis,
        rules: Rules,
        *,
        keys: Sequence[ShardKeys],
        under_way: timedelta,
        clock: Clock,
    ) -> None:
        plan = uuid4().hex
        self._client = client
        self._clock = clock
        self._real = tuple(keys)
        self._keys = tuple(PlanKeys(real.namespace, real.shard, plan) for real in keys)
        self._windows = Windows(client, rules, keys=self._keys, under_way=under_way)
        self._copied: dict[PlanKeys, set[str]] = {}
        self._duplicates: list[str] = []
        self._renewed = clock.monotonic()

    def reserve(
        self, requests: Sequence[BookingRequest], *, grace: timedelta = timedelta(0)
    ) -> list[Answer]:
        """Return for each request when it would be booked, or why it would not be, in order.

        Later requests, also of later calls, see the bookings of earlier ones.
        """
        del grace  # the store confirms none of these
        requests = [r._replace(message_id=planned_id(r.message_id)) for r in requests]
        copies = self._copies_of(requests)
        with translated(ReservationsUnavailable):
            self._check([*{keys for keys, _ in copies.values()}])
            self._copy_windows(copies)
            self._copy_duplicates(requests)
        answers = self._windows.book(requests)
        with translated(ReservationsUnavailable):
            self._renew(copies)
        return answers

    def withdraw(self, requests: Sequence[BookingRequest]) -> None:
        """Give nothing back: what is booked in the copies ends with them."""

    def note(self, refused: Sequence[tuple[BookingRequest, SlotRefused]]) -> None:
        """Note nothing: refusals of a plan are not counted."""

    def __exit__(self, *_: object) -> None:
        """Delete every key of the copies; what cannot be reached ends by itself."""
        try:
            with translated(ReservationsUnavailable):
                for names in self._names():
                    self._client.unlink(*names)
                for name in self._duplicates:
                    self._client.unlink(name)
        except ReservationsUnavailable as error:
            log.warning("could not delete copies of a plan; they expire in ten minutes: %s", error)

    def _copies_of(self, requests: Iterable[BookingRequest]) -> dict[str, tuple[PlanKeys, str]]:
        """Return the copies that requests need: of each its keys, and the window."""
        copies: dict[str, tuple[PlanKeys, str]] = {}
        for request in requests:
            for leg in self._windows.legs(request.terms):
                keys, real = self._keys[leg.keys.shard], self._real[leg.keys.shard]
                for scope in leg.scopes:
                    copy = keys.window(scope.name, scope.kind)
                    copies[copy] = keys, real.window(scope.name, scope.kind)
        return copies

    def _check(self, shards: Sequence[PlanKeys]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for keys in shards:
            pipeline.exists(keys.epoch)
            pipeline.set(keys.alive, 1, px=LIFE_MS, get=True)
        replies = pipeline.execute()
        is_lost = any(
            keys in self._copied and not was_alive
            for keys, was_alive in zip(shards, replies[1::2], strict=True)
        )
        for keys in shards:
            self._copied.setdefault(keys, set())
        if not all(replies[::2]):
            raise closed()
        if is_lost:
            raise ReservationsUnavailable(_LOST)

    def _copy_windows(self, copies: Mapping[str, tuple[PlanKeys, str]]) -> None:
        """Copy what was not copied before.

        A member that keeps its time meanwhile is copied, whatever others come and go.
        """
        cursors = {copy: 0 for copy, (keys, _) in copies.items() if copy not in self._copied[keys]}
        for copy in cursors:
            self._copied[copies[copy][0]].add(copy)
        pipeline = self._client.pipeline(transaction=False)
        while cursors:
            for copy, cursor in cursors.items():
                pipeline.zscan(copies[copy][1], cursor, count=_STEP)
            pages = dict(zip(cursors, pipeline.execute(), strict=True))
            for copy, (_, members) in pages.items():
                if members:
                    pipeline.zadd(copy, dict(members))
                    pipeline.pexpire(copy, LIFE_MS)
            pipeline.execute()
            cursors = {copy: cursor for copy, (cursor, _) in pages.items() if cursor}

    def _copy_duplicates(self, requests: Iterable[BookingRequest]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for request in requests:
            if request.submit is not None:
                first = self._windows.legs(request.terms)[0].keys
                duplicates = self._real[first.shard].duplicates(request.submit.name)
                self._duplicates.append(first.duplicates(request.submit.name))
                pipeline.copy(duplicates, self._duplicates[-1])
        pipeline.execute()

    def _renew(self, copies: Iterable[str]) -> None:
        """Give a life to what was booked in, which has none, and at times to everything."""
        pipeline = self._client.pipeline(transaction=False)
        for copy in copies:
            pipeline.pexpire(copy, LIFE_MS)
        for name in (*self._duplicates, *(keys.pending for keys in self._copied)):
            pipeline.unlink(name)
        pipeline.execute()
        self._duplicates.clear()
        if self._clock.monotonic() - self._renewed > _RENEW_SECONDS:
            self._renewed = self._clock.monotonic()
            for names in self._names():
                for name in names:
                    pipeline.pexpire(name, LIFE_MS)
                pipeline.execute()

    def _names(self) -> Iterator[list[str]]:
        """Yield the names of the keys in pages, each of one shard."""
        for keys, copies in self._copied.items():
            names = iter((keys.alive, keys.pending, *copies))
            while page := [*islice(names, _AT_ONCE)]:
                yield page
