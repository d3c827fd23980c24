"""What the sweep does to the windows: rebuild lost ones, settle unconfirmed reservations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import redis

from dispatcher.lua import source
from dispatcher.redis_errors import EvictingServer
from dispatcher.redis_keys import (
    PermitKeys,
    ShardKeys,
    all_of,
    epoch_of,
    kind_of,
    shard_of,
    start_of,
    tag_of,
)
from dispatcher.reservation.answers import translated
from dispatcher.reservation.fence import Fence, Part
from dispatcher.reservation.windows import KEEP_MS
from dispatcher.scope import Scope
from dispatcher.sendtime import from_ms, to_ms

_WIPE_BATCH = 500


class Reserved(NamedTuple):
    """A reservation as the store knows it, in all scopes that the message counts against."""

    message_id: UUID
    scopes: tuple[Scope, ...]
    send_at: datetime


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

    A rebuild is ``begin``, ``wipe``, ``restore`` and ``hold`` as often as needed, ``open``. Each
    step is guarded by the marker, so that a rebuilder that was overtaken fills and opens nothing
    more. A marker that nobody holds ends after ``marker_life``: then another process may begin.
    """

    def __init__(
        self, client: redis.Redis, fence: Fence, *, marker_life: timedelta = timedelta(seconds=15)
    ) -> None:
        self._client = client
        self._marker_life_ms = marker_life // timedelta(milliseconds=1)
        self._fence = fence
        self._keep_ms = max(fence.reaches_ms.values()) + KEEP_MS
        self._begin = client.register_script(source("begin_rebuild"))
        self._wipe = client.register_script(source("wipe"))
        self._restore = client.register_script(source("restore"))
        self._orphan = client.register_script(source("release_orphan"))
        self._confirm = client.register_script(source("confirm"))
        self._tidy = client.register_script(source("tidy"))
        self._open = client.register_script(source("open"))
        self._mark_checked = client.register_script(source("mark_checked"))

    @property
    def memory(self) -> timedelta:
        """How far back reservations still matter."""
        return timedelta(milliseconds=self._keep_ms)

    def begin(self) -> Rebuild | None:
        """Check every part; return the rebuild of those that are closed and not being rebuilt.

        On a server that evicts, every part is closed and ReservationsUnavailable raised.
        """
        with translated():
            try:
                server, closed = self._fence.incomplete(self._client)
            except EvictingServer:
                self._fence.close(self._client)
                raise
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

    def wipe(self, rebuild: Rebuild) -> None:
        """Delete what is left of the parts being rebuilt."""
        with translated():
            self._delete(
                rebuild, {part.contents.encode(): [part.pending] for part in rebuild.shards}
            )
            ours: dict[bytes, list[bytes | str]] = defaultdict(list)
            strange: dict[str, list[bytes | str]] = defaultdict(list)
            known = {part.tag for part in self._fence.parts}
            names = self._client.scan_iter(match=all_of(self._fence.namespace), count=_WIPE_BATCH)
            for number, name in enumerate(names, start=1):
                if tag_of(name) in known:
                    ours[start_of(name)].append(name)
                else:
                    strange[tag_of(name)].append(name)
                if number % _WIPE_BATCH == 0:
                    self._delete(rebuild, ours)
                    self._delete_strange(strange)
            self._delete(rebuild, ours)
            self._delete_strange(strange)

    def _delete(self, rebuild: Rebuild, names: dict[bytes, list[bytes | str]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for part in rebuild.parts:
            found = names.get(part.contents.encode())
            if found:
                arguments: list[str | int] = [rebuild.marker, self._marker_life_ms]
                self._wipe(keys=[part.rebuild, *found], args=arguments, client=pipeline)
        pipeline.execute()
        names.clear()

    def _delete_strange(self, names: dict[str, list[bytes | str]]) -> None:
        """Delete what another number of shards left behind.

        Each batch takes the epoch along in one transaction, so that a part which others may just
        have opened is never open with something missing.
        """
        for tag, found in names.items():
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.delete(epoch_of(tag))
                pipeline.unlink(*found)
                pipeline.execute()
        names.clear()

    def hold(self, rebuild: Rebuild) -> None:
        """Keep the marker alive while other work goes on; once a second is often enough."""
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for part in rebuild.parts:
                arguments: list[str | int] = [rebuild.marker, self._marker_life_ms]
                self._wipe(keys=[part.rebuild], args=arguments, client=pipeline)
            pipeline.execute()

    def restore(self, rebuild: Rebuild, rows: Sequence[Reserved]) -> None:
        """Put the rows that belong to these shards back into their windows."""
        ours = set(rebuild.shards)
        members: dict[Scope, list[Any]] = defaultdict(list)
        for row in rows:
            for scope in row.scopes:
                members[scope] += [to_ms(row.send_at), row.message_id.bytes]
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for scope, flat in members.items():
                keys = self._keys(scope)
                if keys in ours:
                    self._restore(
                        keys=[keys.rebuild, keys.window(scope.name, scope.kind), keys.pending],
                        args=[rebuild.marker, self._marker_life_ms, *flat],
                        client=pipeline,
                    )
            pipeline.execute()

    def open(self, rebuild: Rebuild) -> int:
        """Declare the parts complete; return how many were still this rebuild's to declare."""
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for part in rebuild.parts:
                facts = [rebuild.marker, rebuild.server, *self._fence.layout(part)]
                self._open(keys=[part.epoch, part.rebuild], args=facts, client=pipeline)
            return sum(pipeline.execute())

    def unconfirmed(self, *, older_than: timedelta, at_most: int) -> list[Unconfirmed]:
        """Return reservations that have waited for the store longer than ``older_than``."""
        with translated():
            before = self._now_ms() - older_than // timedelta(milliseconds=1)
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._fence.keys:
                pipeline.zrangebyscore(keys.pending, "-inf", before, start=0, num=at_most)
            replies = pipeline.execute()
        return [
            Unconfirmed(UUID(bytes=entry[:16]), entry[:start], entry[start:], keys, before)
            for keys, entries in zip(self._fence.keys, replies, strict=True)
            for entry in entries
            for start in (entry.index(b"{", 16),)
        ][:at_most]

    def confirm(self, found: Sequence[Unconfirmed], send_at: Mapping[UUID, datetime]) -> int:
        """Let the windows agree with the store; return how many places had to be put right.

        ``send_at`` has the times of those messages that hold a place; the places of all others
        are given back.
        """
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            known = [each for each in found if each.message_id in send_at]
            for each in known:
                words: list[bytes | int] = [each.member, each.message_id.bytes]
                words += [to_ms(send_at[each.message_id]), each.before_ms]
                names: list[bytes | str] = [each.window, each.keys.pending]
                self._confirm(keys=names, args=words, client=pipeline)
            for each in found:
                if each.message_id not in send_at:
                    names, words = [each.window, each.keys.pending], [each.member, each.before_ms]
                    self._orphan(keys=names, args=words, client=pipeline)
            for window, keys in {(each.window, each.keys) for each in found}:
                reach = f"reach:{kind_of(window)}"
                self._tidy(keys=[window, keys.epoch], args=[KEEP_MS, reach], client=pipeline)
            return sum(pipeline.execute()[: len(known)])

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
        """Add reservations that are missing in open windows; return how many were."""
        with translated():
            now = self._now_ms()
            pipeline = self._client.pipeline(transaction=False)
            for row, scope in [(each, scope) for each in rows for scope in each.scopes]:
                keys = self._keys(scope)
                window, member = keys.window(scope.name, scope.kind), row.message_id.bytes
                pipeline.zadd(window, {member: to_ms(row.send_at)}, nx=True)
                pipeline.zadd(keys.pending, {member + window.encode(): now}, nx=True)
                pipeline.persist(window)
            return sum(pipeline.execute()[::3])

    def unchecked(self, *, older_than: timedelta) -> dict[ShardKeys, datetime]:
        """Return the shards opened longer ago than that whose stragglers were not looked for."""
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

    def mark_checked(self, shards: Sequence[ShardKeys]) -> None:
        """Remember that the stragglers of these shards were looked for."""
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for keys in shards:
                self._mark_checked(keys=[keys.epoch], client=pipeline)
            pipeline.execute()

    def _keys(self, scope: Scope) -> ShardKeys:
        return self._fence.keys[shard_of(scope.home, len(self._fence.keys))]

    def _now_ms(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1_000 + int(micros) // 1_000
