"""Copies of windows, in which a plan books as a submit books in the windows themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from typing import NamedTuple
from uuid import uuid4

import redis

from dispatcher.errors import ReservationsUnavailable, SlotRefused
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import PlanKeys, ShardKeys
from dispatcher.redis.scripts import Call, script
from dispatcher.reservation.booking import Answer, BookingRequest, planned_id
from dispatcher.reservation.shards import CLOSED
from dispatcher.reservation.taken_keys import replies_of
from dispatcher.reservation.terms import Rules
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


class _Copy(NamedTuple):
    real: ShardKeys
    keys: PlanKeys
    window: str
    name: str


class Copies(AbstractContextManager["Copies"]):
    """Books in copies of the windows what a submit would book in the windows.

    A window is copied when a request first needs it, and what is booked later by others is not
    seen. The windows stay as they are. Every key of the copies has a life of ten minutes, renewed
    while requests come, and is deleted when the context ends. Raises ReservationsUnavailable like
    Windows, also when the copies were lost.
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
        self._keys = tuple(PlanKeys(each.namespace, each.shard, plan) for each in keys)
        self._windows = Windows(client, rules, keys=self._keys, under_way=under_way)
        self._copy = script("reservation/copy_window")
        self._touched: set[PlanKeys] = set()
        self._duplicates: list[str] = []
        self._renewed = clock.monotonic()

    def reserve(
        self, requests: Sequence[BookingRequest], *, grace: timedelta = timedelta(0)
    ) -> list[Answer]:
        """Return for each request when it would be booked, or why it would not be, in order.

        Later requests, also of later calls, see the bookings of earlier ones. They are booked under
        ids marked as those of drafts, which are stored nowhere.
        """
        del grace  # the store confirms none of these
        requests = [each._replace(message_id=planned_id(each.message_id)) for each in requests]
        copies = self._needed(requests)
        with translated(ReservationsUnavailable):
            self._copy_windows(copies)
            self._copy_duplicates(requests)
        found = self._windows.book(requests)
        with translated(ReservationsUnavailable):
            self._renew(copies)
        return found

    def withdraw(self, requests: Sequence[BookingRequest]) -> None:
        """Give nothing back: what is booked in the copies ends with them."""

    def note(self, refused: Sequence[tuple[BookingRequest, SlotRefused]]) -> None:
        """Note nothing: refusals of a plan are not counted."""

    def close(self) -> None:
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _needed(self, requests: Iterable[BookingRequest]) -> list[_Copy]:
        found: dict[str, _Copy] = {}
        for request in requests:
            for leg in self._windows.legs(request.terms):
                real, keys = self._real[leg.keys.shard], self._keys[leg.keys.shard]
                for scope, name in zip(leg.scopes, leg.windows, strict=True):
                    if name not in found:
                        window = real.window(scope.name, scope.kind)
                        found[name] = _Copy(real, keys, window, name)
        return list(found.values())

    def _copy_windows(self, copies: Sequence[_Copy]) -> None:
        """Copy the windows that were not yet, in steps."""
        left = list(copies)
        while left:
            calls: list[Call] = [
                (
                    [copy.window, copy.name, copy.keys.copies, copy.real.epoch],
                    [_STEP, LIFE_MS, int(copy.keys in self._touched)],
                )
                for copy in left
            ]
            states = replies_of(self._client, self._copy, calls)
            self._touched.update(copy.keys for copy in left)
            left = [copy for copy, state in zip(left, states, strict=True) if _is_more(state)]

    def _copy_duplicates(self, requests: Iterable[BookingRequest]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for request in requests:
            if request.submit is not None:
                first = self._windows.legs(request.terms)[0].keys
                duplicates = self._real[first.shard].duplicates(request.submit.name)
                self._duplicates.append(first.duplicates(request.submit.name))
                pipeline.copy(duplicates, self._duplicates[-1])
        pipeline.execute()

    def _renew(self, copies: Iterable[_Copy]) -> None:
        """Give a life to what was booked in, which has none, and at times to everything."""
        pipeline = self._client.pipeline(transaction=False)
        for each in copies:
            pipeline.pexpire(each.name, LIFE_MS)
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
            while some := [name for name, _ in islice(names, _AT_ONCE)]:
                yield some


def _is_more(state: bytes) -> bool:
    if state == b"closed":
        raise ReservationsUnavailable(CLOSED)
    if state == b"lost":
        raise ReservationsUnavailable(_LOST)
    return state == b"more"
