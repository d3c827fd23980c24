"""Upkeep of the windows: rebuild lost ones, settle unconfirmed reservations, delete old ones.

Windows do not expire by themselves: an expiry would cost each small window half its weight again,
and every booking a command that takes it back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.clock import now_ms
from dispatcher.redis.errors import EvictingServer, translated
from dispatcher.redis.keys import (
    PermitKeys,
    ShardKeys,
    all_of,
    epoch_of,
    kind_of,
    shard_of,
    start_of,
    tag_of,
)
from dispatcher.redis.scripts import Call, replies_of, source
from dispatcher.reservation.fence import Fence, Part
from dispatcher.reservation.foreign_keys import ForeignKeys
from dispatcher.scope import Scope
from dispatcher.times.send_time import from_ms, to_ms

KEEP_MS = 86_400_000
"""How much longer than the longest quota a reservation is kept: room for clocks that are wrong."""

_MOST_RESTORED = 250
"""Most reservations that one script restores; it then runs for a few milliseconds at most."""
_MOST_DELETED = 1_000
"""Most keys, or members of a window, that one script deletes."""
_MOST_SCANNED = 5_000
"""How many keys are looked at in one step, which takes Redis a few milliseconds at most."""
_FOR_EVER = -1
_PLAN_LIFE_MS = 600_000
_MILLISECOND = timedelta(milliseconds=1)


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
    """A reservation, or a hold, that the store has not confirmed, and the window that has it.

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
    that a rebuilder that was overtaken fills and opens nothing more. A marker that is not kept
    alive ends after ``marker_life``: then another process may begin. ``under_way`` is that of
    Windows.
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
        self._fence = fence
        self._foreign_keys = ForeignKeys(client, fence)
        self._shard_by_start = {keys.contents.encode(): keys for keys in fence.keys}
        self._under_way_ms = under_way // _MILLISECOND
        self._marker_life_ms = marker_life // _MILLISECOND
        self._keep_ms = max(fence.reaches_ms.values()) + KEEP_MS
        self._tidy_cursor = 0
        self._begin = client.register_script(source("reservation/begin_rebuild"))
        self._close = client.register_script(source("reservation/close"))
        self._wipe = client.register_script(source("reservation/wipe"))
        self._restore = client.register_script(source("reservation/restore"))
        self._open = client.register_script(source("reservation/open"))
        self._mark_checked = client.register_script(source("reservation/mark_checked"))
        self._orphan = client.register_script(source("reservation/release_orphan"))
        self._confirm = client.register_script(source("reservation/confirm"))
        self._tidy = client.register_script(source("reservation/tidy"))

    @property
    def memory(self) -> timedelta:
        """How far back reservations still matter."""
        return timedelta(milliseconds=self._keep_ms)

    # Rebuild

    def begin(self) -> Rebuild | None:
        """Check every part; return the rebuild of those that are closed and not being rebuilt.

        On a server that evicts, every part is closed and ReservationsUnavailable raised.
        """
        with translated(ReservationsUnavailable):
            server, closed = self._checked()
            return self._begun(self._begin, server, closed) if closed else None

    def close(self, shards: Collection[int]) -> Rebuild | None:
        """Close these shards, and return the rebuild of those that are not being rebuilt."""
        wanted = [keys for keys in self._fence.keys if keys.shard in shards]
        with translated(ReservationsUnavailable):
            server, _ = self._checked()
            return self._begun(self._close, server, wanted)

    def _checked(self) -> tuple[str, list[Part]]:
        try:
            return self._fence.incomplete(self._client)
        except EvictingServer:
            self._fence.close(self._client)
            raise

    def _begun(self, script: Any, server: str, parts: Sequence[Part]) -> Rebuild | None:
        marker = f"{server}:{uuid4().hex}"
        words = [marker, self._marker_life_ms]
        replies = replies_of(
            self._client, script, [([part.epoch, part.rebuild], words) for part in parts]
        )
        ours = tuple(part for part, begun in zip(parts, replies, strict=True) if begun)
        return Rebuild(marker, server, ours) if ours else None

    def wipe(self, rebuild: Rebuild) -> None:
        """Delete what is left of the parts being rebuilt, and what belongs to no part."""
        parts = {part.tag: part for part in rebuild.parts}
        known = {part.tag for part in self._fence.parts}
        with translated(ReservationsUnavailable):
            self._delete(rebuild, {keys: [keys.pending] for keys in rebuild.shards})
            cursor = -1
            while cursor:
                cursor, names = self._client.scan(
                    max(0, cursor), match=all_of(self._fence.namespace), count=_MOST_SCANNED
                )
                ours: dict[Part, list[bytes | str]] = defaultdict(list)
                of_no_part: dict[str, list[bytes]] = defaultdict(list)
                for name in cast("list[bytes]", names):
                    tag = tag_of(name)
                    if tag not in known:
                        of_no_part[tag].append(name)
                    elif tag in parts and start_of(name) == parts[tag].contents.encode():
                        ours[parts[tag]].append(name)
                self._delete(rebuild, ours)
                self._delete_of_no_part(of_no_part)

    def _delete(self, rebuild: Rebuild, found: Mapping[Part, Sequence[bytes | str]]) -> None:
        words = [rebuild.marker, self._marker_life_ms]
        replies_of(
            self._client,
            self._wipe,
            [
                ([part.rebuild, *names[start : start + _MOST_DELETED]], words)
                for part, names in found.items()
                for start in range(0, len(names), _MOST_DELETED)
            ],
        )

    def _delete_of_no_part(self, found: Mapping[str, Sequence[bytes]]) -> None:
        """Delete what another number of shards left behind.

        Each step takes the epoch along in one transaction, so that a part which others may just
        have opened is never open with something missing.
        """
        for tag, names in found.items():
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.delete(epoch_of(tag))
                pipeline.unlink(*names)
                pipeline.execute()

    def hold(self, rebuild: Rebuild) -> None:
        """Keep the marker alive while other work goes on; once a second is often enough."""
        self.restore(rebuild, ())

    def restore(self, rebuild: Rebuild, rows: Sequence[Reserved]) -> None:
        """Put the rows that belong to these shards back into their windows, in one round trip.

        Keeps the marker alive in all parts.
        """
        start = [rebuild.marker, self._marker_life_ms]
        calls: list[Call] = [
            (
                [keys.rebuild, keys.pending, *(self._window(keys, scope) for scope in entries)],
                [*start, *(b"".join(each) for each in entries.values())],
            )
            for keys, entries in self._restored(rebuild, rows)
        ]
        told = {names[0] for names, _ in calls}
        calls += [([part.rebuild], start) for part in rebuild.parts if part.rebuild not in told]
        with translated(ReservationsUnavailable):
            replies_of(self._client, self._restore, calls)

    def _restored(
        self, rebuild: Rebuild, rows: Sequence[Reserved]
    ) -> Iterator[tuple[ShardKeys, dict[Scope, list[bytes]]]]:
        """Yield what one script restores: a shard, and the entries of each of its windows."""
        ours = {keys.shard: keys for keys in rebuild.shards}
        shards = len(self._fence.keys)
        shard_in: dict[str, int] = {}
        waiting: dict[int, dict[Scope, list[bytes]]] = defaultdict(dict)
        counts: dict[int, int] = defaultdict(int)
        for message_id, scopes, send_at in rows:
            entry = b"%015d%b" % (to_ms(send_at), message_id.bytes)
            for scope in scopes:
                shard = shard_in.get(scope.home)
                if shard is None:
                    shard = shard_in[scope.home] = shard_of(scope.home, shards)
                if shard not in ours:
                    continue
                waiting[shard].setdefault(scope, []).append(entry)
                counts[shard] += 1
                if counts[shard] == _MOST_RESTORED:
                    yield ours[shard], waiting.pop(shard)
                    counts[shard] = 0
        for shard, entries in waiting.items():
            yield ours[shard], entries

    def open(self, rebuild: Rebuild) -> int:
        """Declare the parts complete; return how many were still this rebuild's to declare."""
        facts = [rebuild.marker, rebuild.server]
        with translated(ReservationsUnavailable):
            replies = replies_of(
                self._client,
                self._open,
                [
                    ([part.epoch, part.rebuild], [*facts, *self._fence.layout(part)])
                    for part in rebuild.parts
                ],
            )
            return sum(replies)

    def unchecked(self, *, older_than: timedelta) -> dict[ShardKeys, datetime]:
        """Return the shards opened longer ago than that whose stragglers were not looked for.

        Each comes with the time at which it was opened.
        """
        with translated(ReservationsUnavailable):
            before = now_ms(self._client) - older_than // _MILLISECOND
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
        with translated(ReservationsUnavailable):
            replies_of(
                self._client,
                self._mark_checked,
                [([keys.epoch], [to_ms(opened_at)]) for keys, opened_at in shards.items()],
            )

    def set_aside(self) -> int:
        """Set aside what stands under the names of windows and is none; return how many keys.

        Their shards are closed in the same step, and rebuilt by the next :meth:`begin`.
        """
        with translated(ReservationsUnavailable):
            return self._foreign_keys.set_all_aside()

    # Reservations

    def unconfirmed(
        self, *, older_than: timedelta, at_most: int, skip: Mapping[ShardKeys, int] | None = None
    ) -> list[Unconfirmed]:
        """Return reservations that have waited for the store longer than ``older_than``.

        Those that have waited longest come first in each shard; ``skip`` leaves out so many of
        them.
        """
        skip = skip or {}
        with translated(ReservationsUnavailable):
            before = now_ms(self._client) - older_than // _MILLISECOND
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

    def confirm(self, found: Sequence[Unconfirmed], stored: Mapping[UUID, Stored]) -> int:
        """Let the windows agree with the store; return how many reservations had to be corrected.

        ``stored`` has those messages that need a reservation; those of all others are released.
        A hold ends: the store was told before it was read to take no time that this hold is for.
        """
        with translated(ReservationsUnavailable):
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
            for window, keys in {(each.window, each.keys) for each in found}:
                self._tidy_window(window, keys, pipeline)
            return sum(pipeline.execute()[: len(known)])

    def places(self, found: Sequence[Unconfirmed], rows: Iterable[Reserved]) -> list[Unconfirmed]:
        """Let the reservations of some messages be confirmed in all their windows; return them.

        ``rows`` are those of whose holds some are among ``found``: where a hold is left in one
        window, another may have lost it.
        """
        before_ms = max((each.before_ms for each in found), default=0)
        added = []
        with translated(ReservationsUnavailable):
            pipeline = self._client.pipeline(transaction=False)
            for message_id, scope in [
                (row.message_id, each) for row in rows for each in row.scopes
            ]:
                keys, member = self._keys(scope), message_id.bytes
                window = self._window(keys, scope).encode()
                pipeline.zadd(keys.pending, {member + window: before_ms}, nx=True)
                added.append(Unconfirmed(message_id, member, window, keys, before_ms))
            pipeline.execute()
        return added

    def release(self, rows: Sequence[Reserved]) -> None:
        """Release the reservations of messages that the store knows to need none."""
        with translated(ReservationsUnavailable):
            pipeline = self._client.pipeline(transaction=False)
            for row in rows:
                for scope in row.scopes:
                    pipeline.zrem(self._window(self._keys(scope), scope), row.message_id.bytes)
            pipeline.execute()

    def put_back(self, rows: Sequence[Reserved]) -> int:
        """Add reservations that are missing; return how many were.

        Also in shards that are closed: a rebuild that has read the store may have missed them.
        What it has yet to wipe, it reads.
        """
        with translated(ReservationsUnavailable):
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            for row, scope in [(each, scope) for each in rows for scope in each.scopes]:
                keys = self._keys(scope)
                window, member = self._window(keys, scope), row.message_id.bytes
                pipeline.zadd(window, {member: to_ms(row.send_at)}, nx=True)
                pipeline.zadd(keys.pending, {member + window.encode(): now}, nx=True)
            return sum(pipeline.execute()[::2])

    def tidy(self, *, keys_at_once: int) -> int:
        """Delete what no quota counts any more in the windows among the next so many keys.

        Goes on where the last call ended. Foreign keys among them are set aside. Return how many
        members were deleted.
        """
        with translated(ReservationsUnavailable):
            self._tidy_cursor, names = self._client.scan(
                self._tidy_cursor, match=all_of(self._fence.namespace), count=keys_at_once
            )
            found = [
                (name, self._shard_by_start.get(start_of(name)))
                for name in cast("list[bytes]", names)
            ]
            windows = [(name, keys) for name, keys in found if keys is not None]
            self._foreign_keys.set_aside(windows)
            pipeline = self._client.pipeline(transaction=False)
            for each in windows:
                self._tidy_window(*each, pipeline)
            deleted: int = sum(pipeline.execute())
            for name, keys in found:
                # What a killed plan left behind gets a life that ends.
                is_of_plan = keys is None and b"}:plan:" in name
                if is_of_plan and self._client.pttl(name) == _FOR_EVER:
                    self._client.pexpire(name, _PLAN_LIFE_MS)
        return deleted

    def _tidy_window(self, window: bytes, keys: ShardKeys, pipeline: Any) -> None:
        words: list[int | str] = [KEEP_MS, f"reach:{kind_of(window)}", _MOST_DELETED]
        self._tidy(keys=[window, keys.epoch], args=words, client=pipeline)

    def _keys(self, scope: Scope) -> ShardKeys:
        return self._fence.keys[shard_of(scope.home, len(self._fence.keys))]

    @staticmethod
    def _window(keys: ShardKeys, scope: Scope) -> str:
        return keys.window(scope.name, scope.kind)
