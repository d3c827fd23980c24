"""Copies of windows, in which a plan books as a submit books in the windows themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import chain, islice
from typing import Any
from uuid import uuid4

import redis

from dispatcher.errors import ReservationsUnavailable, SlotRefused
from dispatcher.redis.keys import PlanKeys, ShardKeys
from dispatcher.redis.scripts import replies_to
from dispatcher.reservation.booking import Answer, BookingRequest, planned_id
from dispatcher.reservation.rulebook import RuleBook
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
_LOST = "the plan's copies of the windows are gone; plan again"


class Copies(AbstractContextManager["Copies"]):
    """Books in copies of the windows what a submit would book in the windows.

    A window is copied when a request first needs it; what others book later is not seen. The keys
    of the copies are deleted when the context ends. Raises ReservationsUnavailable like Windows,
    also when the copies were lost.
    """

    def __init__(
        self,
        client: redis.Redis,
        rules: RuleBook,
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
        self._check([*{keys for keys, _ in copies.values()}])
        self._copy_windows(copies)
        self._copy_duplicates(requests)
        answers = self._windows.book(requests)
        self._renew(copies)
        return answers

    def withdraw(self, requests: Sequence[BookingRequest]) -> None:
        """Give nothing back: what is booked in the copies ends with them."""

    def note(self, refused: Sequence[tuple[BookingRequest, SlotRefused]]) -> None:
        """Note nothing: refusals of a plan are not counted."""

    def __exit__(self, *_: object) -> None:
        """Delete every key of the copies; what cannot be reached ends by itself."""
        try:
            self._call_for_all("UNLINK")
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
        commands: list[Sequence[Any]] = []
        for keys in shards:
            commands += [("EXISTS", keys.epoch), ("EXISTS", keys.alive)]
            commands.append(("SET", keys.alive, 1, "PX", LIFE_MS))
        replies = replies_to(self._client, commands)
        is_lost = any(
            keys in self._copied and not is_alive
            for keys, is_alive in zip(shards, replies[1::3], strict=True)
        )
        for keys in shards:
            self._copied.setdefault(keys, set())
        if not all(replies[::3]):
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
        while cursors:
            scans = [(copies[copy][1], cursor) for copy, cursor in cursors.items()]
            replies = replies_to(self._client, [("ZSCAN", *scan, "COUNT", _STEP) for scan in scans])
            pages = dict(zip(cursors, replies, strict=True))
            commands: list[Sequence[Any]] = []
            for copy, (_, members) in pages.items():
                if members:
                    words = chain.from_iterable((at, member) for member, at in members)
                    commands += [("ZADD", copy, *words), ("PEXPIRE", copy, LIFE_MS)]
            replies_to(self._client, commands)
            cursors = {copy: cursor for copy, (cursor, _) in pages.items() if cursor}

    def _copy_duplicates(self, requests: Iterable[BookingRequest]) -> None:
        commands = []
        for request in requests:
            if request.submit is not None:
                first = self._windows.legs(request.terms)[0].keys
                duplicates = self._real[first.shard].duplicates(request.submit.name)
                self._duplicates.append(first.duplicates(request.submit.name))
                commands.append(("COPY", duplicates, self._duplicates[-1]))
        replies_to(self._client, commands)

    def _renew(self, copies: Iterable[str]) -> None:
        """Give a life to what was booked in, which has none, and at times to everything."""
        passing = [*self._duplicates, *(keys.pending for keys in self._copied)]
        unlink = [("UNLINK", name) for name in passing]
        replies_to(self._client, [*unlink, *(("PEXPIRE", copy, LIFE_MS) for copy in copies)])
        self._duplicates.clear()
        if self._clock.monotonic() - self._renewed > _RENEW_SECONDS:
            self._renewed = self._clock.monotonic()
            self._call_for_all("PEXPIRE", LIFE_MS)

    def _call_for_all(self, word: str, *words: object) -> None:
        names = self._names()
        while page := [*islice(names, _AT_ONCE)]:
            replies_to(self._client, [(word, name, *words) for name in page])

    def _names(self) -> Iterator[str]:
        yield from self._duplicates
        for keys, copies in self._copied.items():
            yield from (keys.alive, keys.pending, *copies)
