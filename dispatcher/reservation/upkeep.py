"""Upkeep of the windows: rebuild lost ones, settle unconfirmed reservations, delete old ones.

Windows do not expire by themselves: an expiry would cost each small window half its weight again,
and every booking a command that takes it back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.cluster import by_server, masters_of
from dispatcher.redis.errors import FOREIGN_KEY, EvictingServer, is_hash_slot_moving, translated
from dispatcher.redis.keys import (
    PermitKeys,
    ShardKeys,
    all_of,
    epoch_of,
    scope_kind_of,
    start_of,
    tag_of,
)
from dispatcher.redis.scripts import Call, replies_of, script
from dispatcher.reservation.contents import Contents
from dispatcher.reservation.encoding import ID_BYTES, id_of, longest_ms, member_of
from dispatcher.reservation.fence import Fence, Part
from dispatcher.reservation.plan import LIFE_MS
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.scope import Scope, scope_named
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.send_time import from_ms, to_ms

KEEP_MS = 86_400_000
"""How much longer than the longest quota a reservation is kept: room for clocks that are wrong."""

_MOST_RESTORED = 250
"""Most reservations that one script restores; it then runs for a few milliseconds at most."""
_MOST_DELETED = 1_000
"""Most keys of one page of a wipe, or members of a window, that are deleted together."""
_MOST_SCANNED = 5_000
"""How many keys are looked at in one step, which takes Redis a few milliseconds at most."""
_FOR_EVER = -1

_Step = tuple[Part, Sequence[bytes | str], Sequence[Any]]


class Reserved(NamedTuple):
    message_id: UUID
    scopes: tuple[Scope, ...]
    send_at: datetime
    tail: str = ""

    @property
    def member(self) -> bytes:
        return member_of(self.message_id, self.tail)


class Unconfirmed(NamedTuple):
    """A reservation, or a hold, that the store has not confirmed, and the window that has it.

    ``member`` is what stands in the window: the message's id, and a tail if it is of a move or the
    hold of a submit. ``before_ms`` is the time, by Redis, up to which its entry is as old as asked.
    """

    message_id: UUID
    member: bytes
    window: bytes
    keys: ShardKeys
    before_ms: int

    @property
    def tail(self) -> str:
        return self.member[ID_BYTES:].decode()


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A rebuild under way: its parts, each with the marker that lets one process fill it.

    A marker begins with the identity of the server process that holds the part, and ends with it.
    ``failure`` is the error of a server whose parts could not be checked or marked; they stay as
    they are. ``began_ms`` is when it began, in ms since 1970.
    """

    markers: Mapping[Part, str]
    failure: ReservationsUnavailable | None = None
    began_ms: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.markers)

    @property
    def shards(self) -> tuple[ShardKeys, ...]:
        return tuple(part for part in self.markers if isinstance(part, ShardKeys))

    @property
    def permit_markers(self) -> dict[PermitKeys, str]:
        return {
            part: marker for part, marker in self.markers.items() if isinstance(part, PermitKeys)
        }

    def of(self, kind: type[Part]) -> Rebuild:
        markers = {part: marker for part, marker in self.markers.items() if isinstance(part, kind)}
        return replace(self, markers=markers)


class Upkeep(Contents):
    """Looks after the windows as a whole. Every call raises ReservationsUnavailable like Windows.

    A rebuild is ``begin`` for what is closed, or ``close`` for what is open; then ``wipe``,
    ``restore`` as often as needed, ``open``. A rebuilder that was overtaken fills and opens nothing
    more. A marker that is not kept alive ends after ``marker_life``: then another may begin.
    """

    def __init__(
        self,
        client: redis.Redis,
        fence: Fence,
        rules: RuleBook,
        *,
        marker_life: timedelta = timedelta(seconds=15),
    ) -> None:
        super().__init__(client, fence)
        self._rules = rules
        self._marker_life_ms = marker_life // MILLISECOND
        self._tidy_cursors: dict[str, int] = {}
        self._rebuild = script("reservation/rebuild")
        self._confirm = script("reservation/confirm")

    @property
    def memory(self) -> timedelta:
        """How far back reservations still matter. Raises StoreUnavailable."""
        return timedelta(milliseconds=self._rules.fresh().longest_ms + KEEP_MS)

    # Rebuild

    def begin(self) -> Rebuild | None:
        """Check every part; return the rebuild of those that are closed and not being rebuilt.

        A server that cannot be reached, takes no writes or evicts does not keep others from being
        rebuilt, nor does a part whose hash slot is moving. Its error is raised where nothing is to
        be rebuilt.
        """
        token, markers = uuid4().hex, dict[Part, str]()
        failure: ReservationsUnavailable | None = None
        with translated(ReservationsUnavailable):
            numbers = by_server(self._client, [part.epoch for part in self.fence.parts]).values()
        left = [[self.fence.parts[number] for number in group] for group in numbers]
        while left:
            parts = left.pop()
            try:
                with translated(ReservationsUnavailable):
                    markers |= self._begun("begin", token, self._checked(parts))
            except ReservationsUnavailable as error:
                if len(parts) > 1 and is_hash_slot_moving(error):
                    # One part fails the call for all on its server: each is asked for alone.
                    left += [[part] for part in parts]
                else:
                    failure = failure or error
        if markers:
            return Rebuild(markers, failure, self.now_ms())
        if failure is not None:
            raise failure
        return None

    def close(self, shards: Collection[int]) -> Rebuild | None:
        """Close shards, and return the rebuild of those that are not being rebuilt."""
        parts = [keys for keys in self.fence.keys if keys.shard in shards]
        with translated(ReservationsUnavailable):
            self._checked(self.fence.parts)
            holders = self.fence.holders(self._client, parts)
            markers = self._begun("close", uuid4().hex, holders)
        return Rebuild(markers, began_ms=self.now_ms()) if markers else None

    def _checked(self, parts: Sequence[Part]) -> dict[Part, str]:
        try:
            return self.fence.incomplete(self._client, parts)
        except EvictingServer:
            self.fence.close(self._client, parts)
            raise

    def _begun(self, step: str, token: str, holders: Mapping[Part, str]) -> dict[Part, str]:
        """Put markers; return those that were put, or had been before by this token."""
        markers = {part: f"{server}:{token}" for part, server in holders.items()}
        replies = self._run(step, Rebuild(markers), [(part, (), ()) for part in markers])
        return {part: markers[part]
                for part, begun in zip(markers, replies, strict=True) if begun}  # fmt: skip

    def _run(self, step: str, rebuild: Rebuild, calls: Iterable[_Step]) -> list[int]:
        return replies_of(
            self._client,
            self._rebuild,
            [
                (
                    [part.rebuild, part.epoch, *names],
                    [step, rebuild.markers[part], self._marker_life_ms, *words],
                )
                for part, names, words in calls
            ],
        )

    def wipe(self, rebuild: Rebuild) -> None:
        parts = {part.contents.encode(): part for part in rebuild.parts}
        known = {part.tag for part in self.fence.parts}
        with translated(ReservationsUnavailable):
            self._run("wipe", rebuild, [(keys, [keys.pending], ()) for keys in rebuild.shards])
            for server in by_server(self._client, [part.epoch for part in rebuild.parts]):
                keys = server.scan_iter(match=all_of(self.fence.namespace), count=_MOST_SCANNED)
                while names := [*islice(keys, _MOST_DELETED)]:
                    ours: dict[Part, list[bytes]] = defaultdict(list)
                    of_no_part: dict[str, list[bytes]] = defaultdict(list)
                    for name in names:
                        if part := parts.get(start_of(name)):
                            ours[part].append(name)
                        elif tag_of(name) not in known:
                            of_no_part[tag_of(name)].append(name)
                    self._run("wipe", rebuild, [(part, ours[part], ()) for part in ours])
                    # Left behind by another number of shards. The epoch goes along, so that a part
                    # which others may just have opened is never open with something missing.
                    for tag, left_behind in of_no_part.items():
                        self._client.unlink(epoch_of(tag), *left_behind)

    def restore(self, rebuild: Rebuild, rows: Sequence[Reserved]) -> None:
        """Put rows back where they count in these shards, and keep the markers alive."""
        entries: dict[ShardKeys, list[tuple[bytes, int, bytes]]]
        entries = {keys: [] for keys in rebuild.shards}
        since_ms, rules = rebuild.began_ms - KEEP_MS, self._rules.latest
        for row in rows:
            at_ms = to_ms(row.send_at)
            for scope in row.scopes:
                keys, window = self.fence.window_of(scope)
                own_ms = longest_ms(rules.quotas(scope.kind, scope.name))
                reach_ms = max(own_ms, self.fence.reaches_ms[scope.kind])
                if keys in entries and at_ms >= since_ms - reach_ms:
                    entries[keys].append((window, at_ms, row.member))
        steps: list[_Step] = []
        for keys, places in entries.items():
            for start in range(0, len(places), _MOST_RESTORED):
                words_of: dict[bytes, list[bytes | int]] = defaultdict(list)
                for window, at_ms, member in places[start : start + _MOST_RESTORED]:
                    words_of[window] += (at_ms, member)
                words = [word for of_one in words_of.values() for word in (len(of_one), *of_one)]
                steps.append((keys, [keys.pending, *words_of], words))
        called = {part for part, _, _ in steps}
        steps += [(part, (), ()) for part in rebuild.parts if part not in called]
        with translated(ReservationsUnavailable):
            self._run("restore", rebuild, steps)

    def open(self, rebuild: Rebuild) -> int:
        """Declare the parts complete; return how many were still this rebuild's to declare."""
        own = self._rules.latest.own.items()
        self.keep_longer((scope_named(*named), longest_ms(of.quotas)) for named, of in own)
        steps: list[_Step] = [
            (part, (), (marker.rpartition(":")[0], *self.fence.layout(part)))
            for part, marker in rebuild.markers.items()
        ]
        with translated(ReservationsUnavailable):
            return sum(self._run("open", rebuild, steps))

    def unchecked(self, *, older_than: timedelta) -> dict[ShardKeys, datetime]:
        """Return the shards, and when they were opened, whose stragglers were not looked for."""
        before = self.now_ms() - older_than // MILLISECOND
        checked = self._ask(("GET", keys.checked) for keys in self.fence.keys)
        times = dict(zip(self.fence.keys, checked, strict=True))
        return {
            keys: from_ms(opened_ms)
            for keys, opened_ms in self.opened().items()
            if opened_ms <= before and times[keys] != b"%d" % opened_ms
        }

    def mark_checked(self, shards: Mapping[ShardKeys, datetime]) -> None:
        """Remember of which rebuilds the stragglers were looked for; those of later ones differ."""
        self._ask(("SET", keys.checked, to_ms(opened_at)) for keys, opened_at in shards.items())

    # Reservations

    def unconfirmed(
        self, *, older_than: timedelta, limit: int, skip: Mapping[ShardKeys, int] | None = None
    ) -> list[Unconfirmed]:
        """Return reservations that have waited for the store longer than that.

        The longest come first in each shard; ``skip`` leaves out so many of them.
        """
        skip = skip or {}
        before = self.now_ms() - older_than // MILLISECOND
        first = [(skip.get(keys, 0), limit) for keys in self.fence.keys]
        replies = self._ask(
            ("ZRANGEBYSCORE", keys.pending, "-inf", before, "LIMIT", *page)
            for keys, page in zip(self.fence.keys, first, strict=True)
        )
        unconfirmed: list[Unconfirmed] = []
        for keys, entries in zip(self.fence.keys, replies, strict=True):
            for entry in entries[: limit - len(unconfirmed)]:
                start = entry.find(b"{", ID_BYTES)
                if start < 0:
                    problem = f"another program wrote into {keys.pending}"
                    raise ReservationsUnavailable(problem, remedy=FOREIGN_KEY)
                unconfirmed.append(
                    Unconfirmed(id_of(entry), entry[:start], entry[start:], keys, before)
                )
        return unconfirmed

    def confirm(
        self, entries: Sequence[Unconfirmed], stored: Mapping[UUID, tuple[datetime, str]]
    ) -> int:
        """Let the windows agree with the store; return how many reservations had to be corrected.

        ``stored`` has the send time and the tail of those messages that need a reservation; the
        reservations of all others are released, and so is what has another tail.
        """
        calls: list[Call] = []
        for entry in entries:
            kept: list[bytes | int | str] = ["", 0]
            if entry.message_id in stored:
                send_at, tail = stored[entry.message_id]
                kept = [member_of(entry.message_id, tail), to_ms(send_at)]
            words = [entry.member, entry.before_ms, *kept]
            calls.append(([entry.window, entry.keys.pending], words))
        with translated(ReservationsUnavailable):
            corrected: int = sum(replies_of(self._client, self._confirm, calls))
        self._delete_old({(entry.window, entry.keys) for entry in entries})
        return corrected

    def release(self, rows: Sequence[Reserved]) -> None:
        self._ask(("ZREM", window, row.member) for row, _, window in self._places(rows))

    def forget(
        self, scope: Scope, counting: Callable[[Sequence[UUID]], Mapping[UUID, bool]]
    ) -> None:
        """Delete from the window of a scope what does not count against it by the store.

        ``counting`` returns it of the messages that are stored. A reservation that is not
        confirmed, of a message that is not stored, stays: its submit is under way.
        """
        keys, window = self.fence.window_of(scope)
        [members] = self._ask([("ZRANGE", window, 0, -1)])
        states = self.look([(window, member) for member in members])
        stored = counting([id_of(member) for member in members]) if members else {}
        self._ask(
            command
            for member, (_, pending_since_ms) in zip(members, states, strict=True)
            if not stored.get(id_of(member), pending_since_ms is not None)
            for command in (("ZREM", window, member), ("ZREM", keys.pending, member + window))
        )
        self._ask([("HDEL", keys.reaches, window)])

    def restore_missing(self, rows: Sequence[Reserved]) -> int:
        """Add reservations that are missing; return how many were.

        Also in shards that are closed: a rebuild that has read the store may have missed them.
        What it has yet to wipe, it reads.
        """
        now = self.now_ms()
        replies = self._ask(
            command
            for row, keys, window in self._places(rows)
            for command in (
                ("ZADD", window, "NX", to_ms(row.send_at), row.member),
                ("ZADD", keys.pending, "NX", now, row.member + window),
            )
        )
        return sum(replies[::2])

    def keep_longer(self, reaches: Iterable[tuple[Scope, int]]) -> timedelta:
        """Let windows keep as much as their own quotas count, in ms, if that is more than usual.

        Return the longest of these. A window that kept more goes on: others may still count it.
        """
        longer = [(scope, ms) for scope, ms in reaches if ms > self.fence.reaches_ms[scope.kind]]
        places = [(*self.fence.window_of(scope), reach_ms) for scope, reach_ms in longer]
        kept = self._ask(("HGET", keys.reaches, window) for keys, window, _ in places)
        self._ask(
            ("HSET", keys.reaches, window, max(reach_ms, int(before or 0)))
            for (keys, window, reach_ms), before in zip(places, kept, strict=True)
        )
        return max((reach_ms for _, reach_ms in longer), default=0) * MILLISECOND

    def _places(self, rows: Iterable[Reserved]) -> Iterator[tuple[Reserved, ShardKeys, bytes]]:
        for row in rows:
            for scope in row.scopes:
                yield row, *self.fence.window_of(scope)

    def tidy(self, *, keys_at_once: int) -> int:
        """Delete what no quota counts any more; return how many members that were.

        In the windows among the next so many keys of each server: it goes on where it ended.
        """
        windows: list[tuple[bytes, ShardKeys]] = []
        with translated(ReservationsUnavailable):
            for server, client in masters_of(self._client).items():
                self._tidy_cursors[server], names = client.scan(
                    self._tidy_cursors.get(server, 0),
                    match=all_of(self.fence.namespace),
                    count=keys_at_once,
                )
                for name in cast("list[bytes]", names):
                    if keys := self.fence.shard_of(name):
                        windows.append((name, keys))
                    elif b"}:plan:" in name and self._client.pttl(name) == _FOR_EVER:
                        # What a killed plan left behind gets a life that ends.
                        self._client.pexpire(name, LIFE_MS)
        return self._delete_old(windows)

    def _delete_old(self, windows: Collection[tuple[bytes, ShardKeys]]) -> int:
        """Delete what is older than the epoch promises: others may have longer quotas than we."""
        now = self.now_ms()
        of_kind = self._ask(
            ("HGET", keys.epoch, f"reach:{scope_kind_of(window)}") for window, keys in windows
        )
        of_own = self._ask(("HGET", keys.reaches, window) for window, keys in windows)
        before = {
            window: now - max(int(reach), int(own or 0)) - KEEP_MS
            for (window, _), reach, own in zip(windows, of_kind, of_own, strict=True)
            if reach is not None
        }
        pages = self._ask(
            ("ZRANGEBYSCORE", window, "-inf", f"({at_ms}", "LIMIT", 0, _MOST_DELETED)
            for window, at_ms in before.items()
        )
        old = zip(before, pages, strict=True)
        return sum(self._ask(("ZREM", window, *members) for window, members in old if members))
