"""What a Redis in memory holds, as timelines and stories read it, and copies of it for plans."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Self

from dispatcher.errors import DispatcherError
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation import Booked, BookingRequest, Fence
from dispatcher.reservation.contents import Held, Member, MemberState
from dispatcher.reservation.plan import PlannedKey
from dispatcher.reservation.terms import AnyQuota
from dispatcher.testing.memory.server import Contents, Server
from dispatcher.testing.memory.shards import MemoryShards, windows_on


class MemoryContents:
    """Stands in for ``dispatcher.reservation.Contents``."""

    def __init__(self, server: Server, fence: Fence) -> None:
        self._server = server
        self.fence = fence

    def now_ms(self) -> int:
        return self._server.now_ms()

    def opened(self) -> dict[ShardKeys, int]:
        epochs = self._server.holds.epochs
        return {keys: epochs[keys].opened_at_ms for keys in self._server.keys if keys in epochs}

    def members(self, window: bytes, from_ms: int, until_ms: int) -> list[Member]:
        ordered = self._server.holds.windows[window.decode()].ordered
        return [(member, int(at)) for at, member in ordered if from_ms <= at < until_ms]

    def counts(self, window: bytes, stretches: Sequence[tuple[int, int]]) -> list[int]:
        members = self._server.holds.windows[window.decode()]
        return [members.between(from_ms, until_ms) for from_ms, until_ms in stretches]

    def look(self, members: Sequence[tuple[bytes, bytes]]) -> list[MemberState]:
        found = []
        for name, member in members:
            window = name.decode()
            at = self._server.holds.windows[window].get(member)
            since = [
                waiting[member, window]
                for waiting in self._server.holds.pending.values()
                if (member, window) in waiting
            ]
            found.append(MemberState(None if at is None else int(at), since[0] if since else None))
        return found

    def foreign(self) -> set[bytes]:
        return set()

    def everything(self) -> Iterator[list[Held]]:
        for name, window in self._server.holds.windows.items():
            yield [Held(name.encode(), member, int(at)) for at, member in window.ordered]


class MemoryCopies:
    """Stands in for ``dispatcher.reservation.Copies``: a plan books in a copy of the windows."""

    def __init__(
        self,
        server: Server,
        clock: Callable[[], datetime],
        quotas: Mapping[str, Sequence[AnyQuota]],
        *,
        namespace: str,
        under_way: timedelta,
    ) -> None:
        copied = Server(clock, namespace=namespace, shards=len(server.keys))
        copied.holds = Contents(
            epochs=dict(server.holds.epochs),
            windows=copy.deepcopy(server.holds.windows),
            duplicates=copy.deepcopy(server.holds.duplicates),
        )
        shards = MemoryShards(copied, quotas, under_way=under_way)
        self._windows = windows_on(shards, quotas, keys=copied.keys, under_way=under_way)
        self._answered: dict[str, PlannedKey] = {}

    def reserve(
        self, requests: Sequence[BookingRequest], *, grace: timedelta = timedelta(0)
    ) -> list[Booked | DispatcherError]:
        del grace
        return self._windows.book(requests)

    def withdraw(self, requests: Sequence[BookingRequest]) -> None:
        """Give nothing back: what is booked in the copies ends with them."""

    def note(self, refused: object) -> None:
        """Note nothing."""

    def remember(self, answered: Iterable[PlannedKey]) -> None:
        self._answered |= {each.key: each for each in answered}

    def recall(self, keys: Sequence[str]) -> Mapping[str, PlannedKey]:
        return {key: self._answered[key] for key in keys if key in self._answered}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answered.clear()
