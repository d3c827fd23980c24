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
from dispatcher.redis.scripts import Call, replies_of, script
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
"""Most members that one call copies; it then runs for a millisecond."""
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
        self._copy = script("reservation/copy_window")
        self._touched: set[PlanKeys] = set()
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
        copies = self._needed(requests)
        with translated(ReservationsUnavailable):
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
                for keys in self._touched:
                    self._client.unlink(keys.copies, keys.pending)
                for name in self._duplicates:
                    self._client.unlink(name)
        except ReservationsUnavailable as error:
            log.warning("could not delete copies of a plan; they expire in ten minutes: %s", error)

    def _needed(self, requests: Iterable[BookingRequest]) -> dict[str, tuple[PlanKeys, str]]:
        needed: dict[str, tuple[PlanKeys, str]] = {}
        for request in requests:
            for leg in self._windows.legs(request.terms):
                shard = leg.keys.shard
                for scope, name in zip(leg.scopes, leg.windows, strict=True):
                    window = self._real[shard].window(scope.name, scope.kind)
                    needed[name] = self._keys[shard], window
        return needed

    def _copy_windows(self, copies: Mapping[str, tuple[PlanKeys, str]]) -> None:
        left = [*copies]
        while left:
            calls: list[Call] = []
            for name in left:
                keys, window = copies[name]
                words = [_STEP, LIFE_MS, int(keys in self._touched)]
                calls.append(([window, name, keys.copies, keys.epoch], words))
            states = replies_of(self._client, self._copy, calls)
            self._touched.update(copies[name][0] for name in left)
            if b"closed" in states:
                raise closed()
            if b"lost" in states:
                raise ReservationsUnavailable(_LOST)
            left = [name for name, state in zip(left, states, strict=True) if state == b"more"]

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
        for name in copies:
            pipeline.pexpire(name, LIFE_MS)
        for keys in self._touched:
            pipeline.unlink(keys.pending)
            pipeline.pexpire(keys.copies, LIFE_MS)
        for name in self._duplicates:
            pipeline.unlink(name)
        pipeline.execute()
        self._duplicates.clear()
        if self._clock.monotonic() - self._renewed > _RENEW_SECONDS:
            self._renewed = self._clock.monotonic()
            for names in self._names():
                for copy in names:
                    pipeline.pexpire(copy, LIFE_MS)
                pipeline.execute()

    def _names(self) -> Iterator[list[bytes]]:
        for keys in self._touched:
            names = self._client.hscan_iter(keys.copies, count=_AT_ONCE)
            while page := [name for name, _ in islice(names, _AT_ONCE)]:
                yield page
