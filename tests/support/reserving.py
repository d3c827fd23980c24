"""Windows and their upkeep on a given Redis, as the dispatcher wires them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from uuid import UUID

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher.errors import DispatcherError, SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import AnyQuota, Quota
from dispatcher.redis.client import after_set_up, repeated
from dispatcher.redis.keys import ShardKeys, shard_of
from dispatcher.redis.scripts import Script, source
from dispatcher.reservation.booking import BookingRequest, Slot, Submit, Terms
from dispatcher.reservation.encoding import longest_ms
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.reservation.upkeep import Unconfirmed, Upkeep
from dispatcher.reservation.windows import Windows
from dispatcher.scope import OWN_SCOPE, Scope, own_scope
from dispatcher.times.clock import SystemClock
from dispatcher.times.send_time import from_ms, to_ms

NAMESPACE = "test"
SHARDS = 4


def own_terms(scope: str) -> Terms:
    """Return the terms of a message that counts in its own scope alone."""
    return Terms((own_scope(scope),))


def stored(
    times: Mapping[UUID, datetime], tails: Mapping[UUID, str] = MappingProxyType({})
) -> dict[UUID, tuple[datetime, str]]:
    """Return what a store says that has these times, and the tails of those that moved."""
    return {message_id: (at, tails.get(message_id, "")) for message_id, at in times.items()}


class Booking(NamedTuple):
    """A message that is booked. The id is that of a duplicate submit where that booked first."""

    message_id: UUID
    terms: Terms
    send_at: datetime
    submit: Submit | None = None

    @property
    def request(self) -> BookingRequest:
        at_ms = to_ms(self.send_at)
        return BookingRequest(self.message_id, self.terms, at_ms, at_ms, self.submit)


def reserve(
    windows: Windows,
    message_id: UUID,
    *,
    terms: Terms,
    send_at: datetime,
    latest: datetime | None = None,
    submit: Submit | None = None,
    grace: timedelta = timedelta(0),
    is_stored: bool = False,
) -> Booking:
    asked_ms = to_ms(send_at)
    latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms
    request = BookingRequest(message_id, terms, asked_ms, latest_ms, submit)
    [slot] = windows.book([request], grace=grace, is_stored=is_stored)
    if isinstance(slot, DispatcherError):
        raise slot
    return Booking(slot.message_id, terms, from_ms(slot.at_ms), slot.request.submit)


def move(
    windows: Windows,
    message_id: UUID,
    *,
    terms: Terms,
    send_at: datetime,
    latest: datetime | None = None,
    tail: str = "",
) -> BookingRequest:
    """Book a second time for a message as a move does; raise why it is not booked."""
    asked_ms = to_ms(send_at)
    latest_ms = max(asked_ms, to_ms(latest)) if latest else asked_ms
    request = BookingRequest(message_id, terms, asked_ms, latest_ms, tail=tail)
    [answer] = windows.move_many([request])
    if isinstance(answer, SlotRefused):
        raise answer
    return answer.booked


def cancel(windows: Windows, message_id: UUID, terms: Terms, tail: str = "") -> None:
    windows.withdraw([BookingRequest(message_id, terms, 0, 0, tail=tail)])


def release_for_everyone(windows: Windows, booking: Booking) -> None:
    slot = Slot(booking.message_id, to_ms(booking.send_at), booking.request)
    windows.withdraw([slot.for_everyone().request])


def win(windows: Windows, moving: BookingRequest, *, tail: str = "") -> None:
    """Release the reservation that a message had before, as a move does when the row has moved."""
    windows.withdraw([moving._replace(tail=tail)])


@dataclass(frozen=True, kw_only=True)
class Reserving(AbstractContextManager["Reserving"]):
    """What one process of the dispatcher holds of the reservations."""

    client: redis.Redis
    fence: Fence
    windows: Windows
    upkeep: Upkeep
    namespace: str
    shards: int

    def open(self) -> None:
        """Declare every closed shard complete, as the sweep does when the store is empty."""
        rebuild = self.upkeep.begin()
        if rebuild is not None:
            self.upkeep.open(rebuild)

    def book(
        self, send_at: datetime, scope: str = "ann", message_id: UUID | None = None, **more: Any
    ) -> Booking:
        """Book for one scope alone; takes what ``reserve`` takes."""
        terms = own_terms(scope)
        return reserve(self.windows, message_id or new_id(), terms=terms, send_at=send_at, **more)

    def keys(self, scope: str) -> ShardKeys:
        return ShardKeys(self.namespace, shard_of(scope, self.shards))

    def members(self, scope: str) -> dict[UUID, int]:
        return window(self.client, self.keys(scope).window(scope))

    def places(self, scope: Scope) -> dict[bytes, int]:
        """Return a window of any kind as it is, with the holds: member and time in ms."""
        return scores(self.client, self.keys(scope.home).window(scope.name, scope.kind))

    def unconfirmed(self) -> set[tuple[bytes, str]]:
        entries = self.upkeep.unconfirmed(older_than=timedelta(0), limit=100_000)
        return {(entry.member, entry.window.decode()) for entry in entries}

    def dump(self) -> dict[bytes, bytes]:
        names = cast(list[bytes], self.client.keys("*"))
        return {name: value_of(self.client, name) for name in names}

    def __exit__(self, *_: object) -> None:
        self.client.close()


def reserving(
    url: str,
    quotas: Sequence[AnyQuota] = (Quota(1, 60_000),),
    *,
    further: Mapping[str, Sequence[AnyQuota]] | None = None,
    namespace: str = NAMESPACE,
    shards: int = SHARDS,
    retries: int = 3,
    timeout: float = 5.0,
) -> Reserving:
    """Build what a process of the dispatcher builds; connects at the first call.

    ``quotas`` are those of the scope that every message has, ``further`` those of other kinds.
    """
    rules = {OWN_SCOPE: quotas, **(further or {})}
    reaches_ms = {kind: longest_ms(rule) for kind, rule in rules.items()}
    fence = Fence(namespace=namespace, shards=shards, reaches_ms=reaches_ms)
    client = redis.Redis.from_url(
        url,
        protocol=2,
        redis_connect_func=after_set_up(fence),
        **repeated(Retry(NoBackoff(), retries)),
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
    )
    book = RuleBook(rules, lambda _: (), SystemClock())
    windows = Windows(client, book, keys=fence.keys, under_way=timedelta(seconds=60))
    return Reserving(
        client=client,
        fence=fence,
        windows=windows,
        upkeep=Upkeep(client, fence, book),
        namespace=namespace,
        shards=shards,
    )


def named(shard: int, home: str = "{}", shards: int = SHARDS) -> str:
    """Return a name that makes its scope lie in that shard."""
    names = (f"name {n}" for n in count())
    return next(name for name in names if shard_of(home.format(name), shards) == shard)


def value_of(client: redis.Redis, name: bytes) -> bytes:
    """Return what a key holds, in a form to compare. DUMP gives the fields of a HASH in any order.

    Redis reorders them while the table of the HASH grows.
    """
    if client.type(name) == b"hash":
        fields = cast("dict[bytes, bytes]", client.hgetall(name))
        return repr(sorted(fields.items())).encode()
    return cast(bytes, client.dump(name))


def window(client: redis.Redis, key: str | bytes) -> dict[UUID, int]:
    """Return the messages of a window with their times in ms; one that is there twice fails."""
    members = scores(client, key)
    times = {UUID(bytes=member[:16]): at for member, at in members.items()}
    assert len(times) == len(members), "a message has one reservation"
    return times


def scores(client: redis.Redis, key: str | bytes) -> dict[bytes, int]:
    members = cast(list[tuple[bytes, float]], client.zrange(key, 0, -1, withscores=True))
    return {member: int(score) for member, score in members}


def times_of(real: Reserving, entries: Iterable[Unconfirmed]) -> dict[UUID, datetime]:
    return {
        entry.message_id: from_ms(int(cast(float, real.client.zscore(entry.window, entry.member))))
        for entry in entries
    }


def calls_of(client: redis.Redis, action: Callable[[], object], *commands: str) -> int:
    """Return how many commands an action takes, also inside scripts: of these, or EVALSHA."""
    client.config_resetstat()
    action()
    stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
    return sum(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in commands or ("evalsha",)
    )


ms = to_ms


LIMITS = {
    "MOST_READ, MOST_LEAPS": "{}, 3",
    "SHORT": "1",
    "MOST_FOR_BLOCKED": "2",
    "LEAST_SCAN, MOST_SCAN": "1, 2",
}
"""What bounds the work of one call, so small that hardly any judgement ends in one."""


def little_at_once(most_read: int) -> Callable[[str], Script]:
    def read(name: str) -> Script:
        text = source(name)
        if name in {f"reservation/{script}" for script in ("reserve", "next_slot", "check")}:
            for names, values in LIMITS.items():
                changed = f"local {names} = {values.format(most_read)}\n"
                text, times = re.subn(rf"local {names} = [\d, ]+\n", changed, text)
                assert times == 1
        return Script.of(text)

    return read
