"""What the sweep does to the windows: rebuild lost ones, settle unconfirmed reservations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.errors import EvictingServer
from dispatcher.redis.keys import PermitKeys, ShardKeys, shard_of
from dispatcher.redis.scripts import source
from dispatcher.reservation.answers import translated
from dispatcher.reservation.fence import Fence, Part
from dispatcher.reservation.foreign import Foreign
from dispatcher.reservation.posted import Posted
from dispatcher.reservation.tidy import KEEP_MS, Tidy
from dispatcher.reservation.wipe import Wipe
from dispatcher.scope import Scope
from dispatcher.times.send_time import from_ms, to_ms

_MOST_AT_ONCE = 250
"""Most reservations that one script restores; it then runs for a few milliseconds at most."""


class Reserved(NamedTuple):
    """A reservation as the store knows it, in all scopes that the message counts against."""

    message_id: UUID
    scopes: tuple[Scope, ...]
    send_at: datetime


class Stored(NamedTuple):
    """When a message is to be sent, as the store says, and the token of its last move."""

    send_at: datetime
    token: int = 0


class Unconfirmed(NamedTuple):
    """A reservation, or a held place, that the store has not confirmed, and where it stands.

    ``member`` is what stands in the window: the message's id, or a hold that begins with it.
    ``before_ms`` is the time, by Redis, up to which its entry is as old as was asked.
    """

    message_id: UUID
    member: bytes
    window: bytes
    keys: ShardKeys
    before_ms: int

    @property
    def is_hold(self) -> bool:
        """Whether it is a hold: that of a move, or of a submit that was being judged slowly."""
        return self.member != self.message_id.bytes


class _Batch:
    """What one script restores in one shard: the reservations of each window."""

    def __init__(self, keys: ShardKeys) -> None:
        self._keys = keys
        self._of: dict[Scope, bytearray] = {}
        self.many = 0

    def add(self, scope: Scope, entry: bytes) -> None:
        self._of.setdefault(scope, bytearray()).extend(entry)
        self.many += 1

    @property
    def call(self) -> tuple[list[str], list[bytes]]:
        """The keys of the script, and what it is told after the marker."""
        windows = [self._keys.window(scope.name, scope.kind) for scope in self._of]
        words = [bytes(entries) for entries in self._of.values()]
        return [self._keys.rebuild, self._keys.pending, *windows], words


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A rebuild under way. The marker lets one process at a time fill these parts."""

    marker: str
    server: str
    parts: tuple[Part, ...]

    @property
    def shards(self) -> tuple[ShardKeys, ...]:
        """The shards of the windows among the parts."""
        return tuple(part for part in self.parts if isinstance(part, ShardKeys))

    @property
    def of_windows(self) -> Rebuild:
        """The rebuild of the windows alone."""
        return replace(self, parts=self.shards)

    @property
    def of_permits(self) -> Rebuild:
        """The rebuild of the permit logs alone."""
        logs = tuple(part for part in self.parts if isinstance(part, PermitKeys))
        return replace(self, parts=logs)


class Upkeep:
    """Looks after the windows as a whole. Every call raises ReservationsUnavailable like Windows.

    A rebuild is ``begin`` for what is closed, or ``close`` for what is open; then ``wipe``,
    ``restore`` and ``hold`` as often as needed, ``open``. Each step is guarded by the marker, so
    that a rebuilder that was overtaken fills and opens nothing more. A marker that nobody holds
    ends after ``marker_life``: then another process may begin. ``under_way`` is that of Windows.
    """

    def __init__(
        self,
        client: redis.Redis,
        fence: Fence,
        *,
        marker_life: timedelta = timedelta(seconds=15),
        under_way: timedelta = timedelta(minutes=1),
    ) -> None:
        self._client = client
        self._under_way_ms = under_way // timedelta(milliseconds=1)
        self._marker_life_ms = marker_life // timedelta(milliseconds=1)
        self._fence = fence
        self._keep_ms = max(fence.reaches_ms.values()) + KEEP_MS
        self._begin = client.register_script(source("reservation/begin_rebuild"))
        self._close = client.register_script(source("reservation/close"))
        self._wipe = Wipe(client, fence, marker_life_ms=self._marker_life_ms)
        self._restore = client.register_script(source("reservation/restore"))
        self._orphan = client.register_script(source("reservation/release_orphan"))
        self._confirm = client.register_script(source("reservation/confirm"))
        self._foreign = Foreign(client, fence)
        self._tidy = Tidy(client, fence, self._foreign)
        self._open = client.register_script(source("reservation/open"))
        self._mark_checked = client.register_script(source("reservation/mark_checked"))

    @property
    def memory(self) -> timedelta:
        """How far back reservations still matter."""
        return timedelta(milliseconds=self._keep_ms)

    def begin(self) -> Rebuild | None:
        """Check every part; return the rebuild of those that are closed and not being rebuilt.

        On a server that evicts, every part is closed and ReservationsUnavailable raised.
        """
        with translated():
            server, closed = self._checked()
            if not closed:
                return None
            marker = f"{server}:{uuid4().hex}"
            pipeline = self._client.pipeline(transaction=False)
            for keys in closed:
                names = [keys.epoch, keys.rebuild]
                self._begin(keys=names, args=[marker, self._marker_life_ms], client=pipeline)
            replies = pipeline.execute()
        ours = tuple(keys for keys, begun in zip(closed, replies, strict=True) if begun)
        return Rebuild(marker, server, ours) if ours else None

    def close(self, shards: Collection[int]) -> Rebuild | None:
        """Close these shards, and return the rebuild of those that nobody else is rebuilding."""
        wanted = [keys for keys in self._fence.keys if keys.shard in shards]
        with translated():
            server, _ = self._checked()
            marker = f"{server}:{uuid4().hex}"
            pipeline = self._client.pipeline(transaction=False)
            for keys in wanted:
                names = [keys.epoch, keys.rebuild]
                self._close(keys=names, args=[marker, self._marker_life_ms], client=pipeline)
            replies = pipeline.execute()
        ours = tuple(keys for keys, begun in zip(wanted, replies, strict=True) if begun)
        return Rebuild(marker, server, ours) if ours else None

    def _checked(self) -> tuple[str, list[Part]]:
        try:
            return self._fence.incomplete(self._client)
        except EvictingServer:
            self._fence.close(self._client)
            raise

    def wipe(self, rebuild: Rebuild) -> None:
        """Delete what is left of the parts being rebuilt."""
        with translated():
            self._wipe.wipe(rebuild.marker, rebuild.parts)

    def hold(self, rebuild: Rebuild) -> None:
        """Keep the marker alive while other work goes on; once a second is often enough."""
        self.restore(rebuild, ())

    def restore(self, rebuild: Rebuild, rows: Sequence[Reserved]) -> None:
        """Put the rows that belong to these shards back into their windows, in one round trip.

        Keeps the marker alive in all parts.
        """
        calls = self._calls(rebuild, rows)
        told = {names[0] for names, _ in calls}
        calls += [([part.rebuild], []) for part in rebuild.parts if part.rebuild not in told]
        start = [rebuild.marker, self._marker_life_ms]
        with translated():
            posted = Posted(
                self._client, self._restore, [(names, [*start, *words]) for names, words in calls]
            )
            posted.replies()

    def _calls(
        self, rebuild: Rebuild, rows: Sequence[Reserved]
    ) -> list[tuple[list[str], list[bytes]]]:
        ours = {keys.shard: keys for keys in rebuild.shards}
        shards = len(self._fence.keys)
        shard_in: dict[str, int] = {}
        batches: dict[int, _Batch] = {}
        calls = []
        for message_id, scopes, send_at in rows:
            entry = b"%015d%b" % (to_ms(send_at), message_id.bytes)
            for scope in scopes:
                shard = shard_in.get(scope.home)
                if shard is None:
                    shard = shard_in[scope.home] = shard_of(scope.home, shards)
                if shard not in ours:
                    continue
                batch = batches.get(shard)
                if batch is None:
                    batch = batches[shard] = _Batch(ours[shard])
                batch.add(scope, entry)
                if batch.many >= _MOST_AT_ONCE:
                    calls.append(batches.pop(shard).call)
        return [*calls, *(batch.call for batch in batches.values())]

    def open(self, rebuild: Rebuild) -> int:
        """Declare the parts complete; return how many were still this rebuild's to declare."""
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for part in rebuild.parts:
                facts = [rebuild.marker, rebuild.server, *self._fence.layout(part)]
                self._open(keys=[part.epoch, part.rebuild], args=facts, client=pipeline)
            return sum(pipeline.execute())

    def unconfirmed(
        self, *, older_than: timedelta, at_most: int, skip: Mapping[ShardKeys, int] | None = None
    ) -> list[Unconfirmed]:
        """Return reservations that have waited for the store longer than ``older_than``.

        Those that have waited longest come first in each shard; ``skip`` leaves out so many of
        them.
        """
        skip = skip or {}
        with translated():
            before = self._now_ms() - older_than // timedelta(milliseconds=1)
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._fence.keys:
                pipeline.zrangebyscore(
                    keys.pending, "-inf", before, start=skip.get(keys, 0), num=at_most
                )
            replies = pipeline.execute()
        found = [
            (entry, entry.find(b"{", 16), keys)
            for keys, entries in zip(self._fence.keys, replies, strict=True)
            for entry in entries
        ][:at_most]
        if any(start < 0 for _, start, _ in found):
            raise ReservationsUnavailable("what is pending has an entry that is none of ours")
        return [
            Unconfirmed(UUID(bytes=entry[:16]), entry[:start], entry[start:], keys, before)
            for entry, start, keys in found
        ]

    def set_aside(self) -> int:
        """Set aside what stands under the names of windows and is none; return how many keys.

        Their shards are closed in the same step, and rebuilt by the next :meth:`begin`.
        """
        with translated():
            return self._foreign.set_all_aside()

    def confirm(self, found: Sequence[Unconfirmed], stored: Mapping[UUID, Stored]) -> int:
        """Let the windows agree with the store; return how many places had to be put right.

        ``stored`` has those messages that hold a place; the places of all others are given back.
        A hold ends: the store was told before it was read to take no time that this hold is for.
        """
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            known = [each for each in found if each.message_id in stored]
            for each in known:
                send_at, token = stored[each.message_id]
                words: list[bytes | int] = [each.member, each.message_id.bytes]
                words += [to_ms(send_at), each.before_ms, token, self._under_way_ms]
                moved = each.keys.moved(each.message_id)
                names: list[bytes | str] = [each.window, each.keys.pending, moved]
                self._confirm(keys=names, args=words, client=pipeline)
            for each in found:
                if each.message_id not in stored:
                    names, words = [each.window, each.keys.pending], [each.member, each.before_ms]
                    self._orphan(keys=names, args=words, client=pipeline)
            self._tidy.windows({(each.window, each.keys) for each in found}, pipeline)
            return sum(pipeline.execute()[: len(known)])

    def places(self, found: Sequence[Unconfirmed], rows: Iterable[Reserved]) -> list[Unconfirmed]:
        """Let the places of some messages be confirmed in all their windows; return them.

        ``rows`` are those of whose holds some are among ``found``: where a hold is left in one
        window, another may have lost it.
        """
        before_ms = max((each.before_ms for each in found), default=0)
        added = []
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for message_id, scope in [
                (row.message_id, each) for row in rows for each in row.scopes
            ]:
                keys, member = self._keys(scope), message_id.bytes
                window = keys.window(scope.name, scope.kind).encode()
                pipeline.zadd(keys.pending, {member + window: before_ms}, nx=True)
                added.append(Unconfirmed(message_id, member, window, keys, before_ms))
            pipeline.execute()
        return added

    def tidy(self, *, keys_at_once: int) -> int:
        """Forget what no quota counts any more in the windows among the next so many keys.

        Goes on where the last call ended. Return how many members were forgotten.
        """
        with translated():
            return self._tidy.some(keys_at_once=keys_at_once)

    def release(self, rows: Sequence[Reserved]) -> None:
        """Give back the places of messages that the store knows to need none."""
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for row in rows:
                for scope in row.scopes:
                    window = self._keys(scope).window(scope.name, scope.kind)
                    pipeline.zrem(window, row.message_id.bytes)
            pipeline.execute()

    def put_back(self, rows: Sequence[Reserved]) -> int:
        """Add reservations that are missing; return how many were.

        Also in shards that are closed: a rebuild that has read the store may have missed them.
        What it has yet to wipe, it reads.
        """
        with translated():
            now = self._now_ms()
            pipeline = self._client.pipeline(transaction=False)
            for row, scope in [(each, scope) for each in rows for scope in each.scopes]:
                keys = self._keys(scope)
                window, member = keys.window(scope.name, scope.kind), row.message_id.bytes
                pipeline.zadd(window, {member: to_ms(row.send_at)}, nx=True)
                pipeline.zadd(keys.pending, {member + window.encode(): now}, nx=True)
            return sum(pipeline.execute()[::2])

    def unchecked(self, *, older_than: timedelta) -> dict[ShardKeys, datetime]:
        """Return the shards opened longer ago than that whose stragglers were not looked for.

        Each comes with the time at which it was opened.
        """
        with translated():
            before = self._now_ms() - older_than // timedelta(milliseconds=1)
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._fence.keys:
                pipeline.hmget(keys.epoch, "opened_at_ms", "checked")
            replies = pipeline.execute()
        return {
            keys: from_ms(int(opened))
            for keys, (opened, checked) in zip(self._fence.keys, replies, strict=True)
            if opened and not checked and int(opened) <= before
        }

    def mark_checked(self, shards: Mapping[ShardKeys, datetime]) -> None:
        """Remember that the stragglers of these shards were looked for.

        A shard that was opened anew since :meth:`unchecked` returned it has other stragglers.
        """
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for keys, opened_at in shards.items():
                self._mark_checked(keys=[keys.epoch], args=[to_ms(opened_at)], client=pipeline)
            pipeline.execute()

    def _keys(self, scope: Scope) -> ShardKeys:
        return self._fence.keys[shard_of(scope.home, len(self._fence.keys))]

    def _now_ms(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1_000 + int(micros) // 1_000
