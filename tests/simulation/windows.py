"""Redis in memory: windows and permit logs, by plain rules and a clock of its own.

Every message counts against its own scope only, and a channel's limits have no line: who is
refused comes back when there is room.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dispatcher.errors import (
    IdempotencyConflict,
    LimitersUnavailable,
    QuotaExceeded,
    ReservationsUnavailable,
)
from dispatcher.limiters import Permit, PermitAnswer
from dispatcher.quota import Limit, Quota
from dispatcher.redis_keys import PermitKeys, ShardKeys, shard_of
from dispatcher.reservation import (
    Booking,
    Moving,
    Rebuild,
    Reserved,
    Stored,
    Submit,
    Terms,
    Unconfirmed,
)
from dispatcher.sendtime import from_ms, to_ms
from tests.support import model

_MILLISECOND = timedelta(milliseconds=1)
_NO_AGE = timedelta(0)
_DAY_MS = 86_400_000


@dataclass(slots=True)
class Epoch:
    """Exists exactly while a part is complete."""

    opened_at_ms: int
    checked: bool = False


@dataclass(slots=True)
class Twins:
    """Submits under way with one idempotency key."""

    id: UUID
    fingerprint: str
    ends_at_ms: int
    by: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Contents:
    """What a server holds."""

    epochs: dict[Any, Epoch] = field(default_factory=dict)
    markers: dict[Any, tuple[str, int]] = field(default_factory=dict)
    windows: dict[str, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    pending: dict[Any, dict[tuple[bytes, str], int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    moved: dict[tuple[bytes, str], tuple[int, int]] = field(default_factory=dict)
    twins: dict[str, Twins] = field(default_factory=dict)
    logs: dict[str, dict[bytes, float]] = field(default_factory=lambda: defaultdict(dict))
    closings: dict[str, int] = field(default_factory=dict)


class Server:
    """One Redis, and what may happen to it."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        namespace: str,
        shards: int,
        under_way: timedelta,
    ) -> None:
        self._clock = clock
        self.under_way_ms = under_way // _MILLISECOND
        self.keys = tuple(ShardKeys(namespace, shard) for shard in range(shards))
        self.permit_keys = PermitKeys(namespace)
        self.parts: tuple[ShardKeys | PermitKeys, ...] = (*self.keys, self.permit_keys)
        self.holds = Contents()
        self.number = 1

    def now_ms(self) -> int:
        """Return the present by the server's clock."""
        return to_ms(self._clock())

    def flush(self) -> None:
        """Forget everything."""
        self.holds = Contents()

    def snapshot(self) -> Contents:
        """Return a copy of everything, as a replica that lags behind has it."""
        return copy.deepcopy(self.holds)

    def fail_over(self, replica: Contents) -> None:
        """Become another server with older data. Whoever connects takes the epochs back."""
        self.holds = replica
        self.holds.epochs.clear()
        self.holds.markers.clear()
        self.number += 1

    def last_moved(self, own: tuple[bytes, str]) -> int:
        """Return the token of the last move of a message that was taken in a window, or -1."""
        token, ends_at_ms = self.holds.moved.get(own, (-1, 0))
        return token if ends_at_ms > self.now_ms() else -1

    def mark_moved(self, own: tuple[bytes, str], token: int) -> None:
        """Remember it for as long as a hold can be taken."""
        self.holds.moved[own] = token, self.now_ms() + self.under_way_ms

    def has_marker(self, part: Any, marker: str) -> bool:
        """Tell whether the marker of a rebuild still is on this part."""
        found = self.holds.markers.get(part)
        return found is not None and found[0] == marker and found[1] > self.now_ms()

    def window_of(self, keys: ShardKeys, scope: str) -> tuple[str, dict[bytes, int]]:
        """Return the name and the members of a window."""
        name = keys.window(scope)
        return name, self.holds.windows[name]


class MemoryWindows:
    """Stands in for ``dispatcher.reservation.Windows`` where all have one scope."""

    def __init__(
        self,
        server: Server,
        quotas: Sequence[Quota],
        *,
        twins_life: timedelta,
        new_hold: Callable[[UUID], bytes],
    ) -> None:
        self._server = server
        self._quotas = [(quota.count, quota.length_ms) for quota in quotas]
        self._life_ms = twins_life // _MILLISECOND
        self._new_hold = new_hold

    def reserve(
        self,
        message_id: UUID,
        *,
        terms: Terms,
        send_at: datetime,
        latest: datetime | None = None,
        submit: Submit | None = None,
        pending_ahead: timedelta = timedelta(0),
        is_stored: bool = False,
    ) -> Booking:
        del is_stored  # one shard: nothing is given back in another one
        keys = self._opened(terms)
        now_ms = self._server.now_ms()
        twins = self._twins(keys, submit)
        name, window = self._server.window_of(keys, terms.scopes[0].name)
        if (
            twins is not None
            and submit is not None
            and twins.fingerprint == submit.fingerprint
            and twins.id != message_id
            and twins.id.bytes not in window
        ):  # given up: its id is never stored
            del self._server.holds.twins[keys.twins(submit.key)]
            twins = None
        if twins is not None and submit is not None:
            if twins.fingerprint != submit.fingerprint:
                raise IdempotencyConflict(submit.key, twins.id)
            message_id = twins.id
        at_ms = window.get(message_id.bytes)
        if at_ms is None:
            at_ms = self._found(terms, sorted(window.values()), send_at, latest)
            window[message_id.bytes] = at_ms
        ahead_ms = now_ms + pending_ahead // _MILLISECOND
        pending = self._server.holds.pending[keys]
        entry = message_id.bytes, name
        pending[entry] = max(pending.get(entry, ahead_ms), ahead_ms)
        if submit is not None:
            ends_at_ms = ahead_ms + self._life_ms
            if twins is None:
                twins = Twins(message_id, submit.fingerprint, ends_at_ms)
                self._server.holds.twins[keys.twins(submit.key)] = twins
            twins.ends_at_ms = max(twins.ends_at_ms, ends_at_ms)
            twins.by.add(submit.token)
        return Booking(message_id, terms, from_ms(at_ms), submit)

    def release(self, message_id: UUID, terms: Terms) -> None:
        self._remove(self.keys_of(terms), terms, message_id.bytes)

    def withdraw(self, booking: Booking) -> bool:
        keys, submit = self.keys_of(booking.terms), booking.submit
        member = booking.message_id.bytes
        if submit is not None:
            twins = self._twins(keys, submit)
            if twins is None or submit.token not in twins.by:
                _, window = self._server.window_of(keys, booking.terms.scopes[0].name)
                return member not in window
            twins.by.remove(submit.token)
            if twins.by:
                return False
            del self._server.holds.twins[keys.twins(submit.key)]
        self._remove(keys, booking.terms, member)
        return True

    def move(
        self,
        message_id: UUID,
        *,
        terms: Terms,
        send_at: datetime,
        latest: datetime | None = None,
    ) -> Moving:
        keys = self._opened(terms)
        name, window = self._server.window_of(keys, terms.scopes[0].name)
        others = sorted(at for member, at in window.items() if member != message_id.bytes)
        at_ms = self._found(terms, others, send_at, latest)
        hold = self._new_hold(message_id)
        window[hold] = at_ms
        self._server.holds.pending[keys][hold, name] = self._server.now_ms()
        return Moving(message_id, terms, from_ms(at_ms), hold)

    def hold_again(self, moving: Moving) -> None:
        keys = self._opened(moving.terms)
        name, window = self._server.window_of(keys, moving.terms.scopes[0].name)
        if moving.hold in window:
            return
        others = sorted(at for member, at in window.items() if member != moving.message_id.bytes)
        window[moving.hold] = self._found(moving.terms, others, moving.send_at, None)
        self._server.holds.pending[keys][moving.hold, name] = self._server.now_ms()

    def take(self, moving: Moving, *, token: int, partly: bool = False) -> bool:
        del partly  # there is one shard
        keys = self.keys_of(moving.terms)
        name, window = self._server.window_of(keys, moving.terms.scopes[0].name)
        own, held = (moving.message_id.bytes, name), (moving.hold, name)
        pending, now_ms = self._server.holds.pending[keys], self._server.now_ms()
        if self._server.last_moved(own) >= token:
            self.drop(moving)
            return True
        if moving.hold not in window or pending.get(held, 0) <= now_ms - self._server.under_way_ms:
            return False
        window[own[0]] = window.pop(moving.hold)
        pending.pop(held, None)
        pending[own] = now_ms
        self._server.mark_moved(own, token)
        return True

    def drop(self, moving: Moving) -> None:
        self._remove(self.keys_of(moving.terms), moving.terms, moving.hold)

    def _found(
        self, terms: Terms, members: Sequence[int], send_at: datetime, latest: datetime | None
    ) -> int:
        asked_ms = to_ms(send_at)
        if model.fits(members, asked_ms, self._quotas):
            return asked_ms
        slot_ms = model.next_slot_by_runs(members, asked_ms, self._quotas)
        if latest is not None and slot_ms <= to_ms(latest):
            return slot_ms
        scope = str(terms.scopes[0])
        raise QuotaExceeded(
            quota="a quota", scope=scope, send_at=send_at, conflicting=(),
            next_slot=from_ms(slot_ms),
        )  # fmt: skip

    def _twins(self, keys: ShardKeys, submit: Submit | None) -> Twins | None:
        if submit is None:
            return None
        found = self._server.holds.twins.get(keys.twins(submit.key))
        return found if found and found.ends_at_ms > self._server.now_ms() else None

    def _remove(self, keys: ShardKeys, terms: Terms, member: bytes) -> None:
        name, window = self._server.window_of(keys, terms.scopes[0].name)
        window.pop(member, None)
        self._server.holds.pending[keys].pop((member, name), None)

    def keys_of(self, terms: Terms) -> ShardKeys:
        """Return the shard of these terms."""
        return self._server.keys[shard_of(terms.scopes[0].home, len(self._server.keys))]

    def _opened(self, terms: Terms) -> ShardKeys:
        keys = self.keys_of(terms)
        if keys not in self._server.holds.epochs:
            raise ReservationsUnavailable("the windows are not complete")
        return keys


class MemoryUpkeep:
    """Stands in for ``dispatcher.reservation.Upkeep``."""

    def __init__(
        self,
        server: Server,
        *,
        longest_ms: int,
        marker_life: timedelta,
        new_marker: Callable[[], str],
    ) -> None:
        self._server = server
        self._life_ms = marker_life // _MILLISECOND
        self._new_marker = new_marker
        self.memory = timedelta(milliseconds=longest_ms + _DAY_MS)

    def begin(self) -> Rebuild | None:
        holds, now_ms = self._server.holds, self._server.now_ms()
        marker = self._new_marker()
        ours = []
        for part in self._server.parts:
            taken = part in holds.markers and holds.markers[part][1] > now_ms
            if part not in holds.epochs and not taken:
                holds.markers[part] = marker, now_ms + self._life_ms
                ours.append(part)
        return Rebuild(marker, str(self._server.number), tuple(ours)) if ours else None

    def wipe(self, rebuild: Rebuild) -> None:
        holds = self._server.holds
        for part in self._ours(rebuild):
            if isinstance(part, ShardKeys):
                holds.pending.pop(part, None)
                for name in [name for name in holds.windows if name.startswith(part.contents)]:
                    del holds.windows[name]
            else:
                holds.logs.clear()

    def hold(self, rebuild: Rebuild) -> None:
        self._ours(rebuild)

    def restore(self, rebuild: Rebuild, rows: Sequence[Reserved]) -> None:
        now_ms = self._server.now_ms()
        ours = self._ours(rebuild)
        for row, keys, name in self._each(rows):
            if keys in ours:
                member = row.message_id.bytes
                self._server.holds.windows[name][member] = to_ms(row.send_at)
                self._server.holds.pending[keys].setdefault((member, name), now_ms)

    def open(self, rebuild: Rebuild) -> int:
        ours = self._ours(rebuild)
        for part in ours:
            self._server.holds.epochs[part] = Epoch(self._server.now_ms())
            del self._server.holds.markers[part]
        return len(ours)

    def unconfirmed(
        self, *, older_than: timedelta, at_most: int, skip: Mapping[ShardKeys, int] | None = None
    ) -> list[Unconfirmed]:
        skip = skip or {}
        before = self._server.now_ms() - older_than // _MILLISECOND
        found = []
        for keys in self._server.keys:
            entries = self._server.holds.pending[keys].items()
            ordered = sorted((at, member, name) for (member, name), at in entries if at <= before)
            found += [
                Unconfirmed(UUID(bytes=member[:16]), member, name.encode(), keys, before)
                for _, member, name in ordered[skip.get(keys, 0) :][:at_most]
            ]
        return found[:at_most]

    def confirm(self, found: Sequence[Unconfirmed], stored: Mapping[UUID, Stored]) -> int:
        corrected = 0
        for each in found:
            window = self._server.holds.windows[each.window.decode()]
            pending = self._server.holds.pending[each.keys]
            entry = each.member, each.window.decode()
            if pending.get(entry, each.before_ms + 1) > each.before_ms:
                continue
            kept = stored.get(each.message_id)
            own = each.message_id.bytes, each.window.decode()
            if kept and pending.get(own, each.before_ms) > each.before_ms:
                continue
            del pending[entry]
            if not kept or each.is_hold:
                window.pop(each.member, None)
            if not kept or self._server.last_moved(own) > kept.token:
                continue
            if each.is_hold:
                self._server.mark_moved(own, kept.token)
            at_ms = to_ms(kept.send_at)
            corrected += window.get(own[0]) != at_ms
            window[own[0]] = at_ms
        return corrected

    def tidy(self, *, keys_at_once: int) -> int:
        del keys_at_once  # nothing gets as old as that
        return 0

    def release(self, rows: Sequence[Reserved]) -> None:
        for row, _, name in self._each(rows):
            self._server.holds.windows[name].pop(row.message_id.bytes, None)

    def put_back(self, rows: Sequence[Reserved]) -> int:
        added = 0
        for row, keys, name in self._each(rows):
            window, member = self._server.holds.windows[name], row.message_id.bytes
            added += member not in window
            window.setdefault(member, to_ms(row.send_at))
            self._server.holds.pending[keys].setdefault((member, name), self._server.now_ms())
        return added

    def unchecked(self, *, older_than: timedelta) -> dict[ShardKeys, datetime]:
        before = self._server.now_ms() - older_than // _MILLISECOND
        epochs = self._server.holds.epochs
        return {
            keys: from_ms(epochs[keys].opened_at_ms)
            for keys in self._server.keys
            if keys in epochs and not epochs[keys].checked and epochs[keys].opened_at_ms <= before
        }

    def mark_checked(self, shards: Mapping[ShardKeys, datetime]) -> None:
        for keys, opened_at in shards.items():
            epoch = self._server.holds.epochs.get(keys)
            if epoch is not None and epoch.opened_at_ms == to_ms(opened_at):
                epoch.checked = True

    def _ours(self, rebuild: Rebuild) -> list[Any]:
        """Return the parts that are still this rebuild's, and keep its marker on them alive."""
        ours = [part for part in rebuild.parts if self._server.has_marker(part, rebuild.marker)]
        for part in ours:
            until_ms = self._server.now_ms() + self._life_ms
            self._server.holds.markers[part] = rebuild.marker, until_ms
        return ours

    def _each(self, rows: Sequence[Reserved]) -> list[tuple[Reserved, ShardKeys, str]]:
        found = []
        for row in rows:
            for scope in row.scopes:
                keys = self._server.keys[shard_of(scope.home, len(self._server.keys))]
                found.append((row, keys, keys.window(scope.name)))
        return found


class MemoryPermits:
    """Stands in for ``dispatcher.limiters.Permits``."""

    def __init__(
        self,
        server: Server,
        *,
        scope_limits: Sequence[Limit],
        channel_limits: Mapping[str, Sequence[Limit]],
    ) -> None:
        self._server = server
        self._scope_limits = scope_limits
        self._channel_limits = channel_limits
        longest = [*scope_limits, *(each for some in channel_limits.values() for each in some)]
        self.memory = timedelta(milliseconds=max(each.length_ms for each in longest))

    def acquire(self, wanted: Sequence[Permit], *, hold: timedelta) -> list[PermitAnswer]:
        holds, now_ms = self._server.holds, self._server.now_ms()
        if self._server.permit_keys not in holds.epochs:
            raise LimitersUnavailable("the permit logs are not complete")
        behind: dict[str, int] = defaultdict(int)
        answers = []
        for permit in wanted:
            logs = self._logs(permit)
            closed_ms = max(now_ms, holds.closings.get(permit.channel, now_ms))
            known, free = permit_id(permit), [closed_ms]
            for name, _ in logs:
                if holds.logs[name].get(known, 0) % 1:
                    del holds.logs[name][known]
            room: list[int] = []
            for name, limits in logs:
                at_ms, left = self._free(name, limits, now_ms, behind[name])
                free.append(at_ms)
                room.append(left)
            at_ms = max(free)
            if known in holds.logs[logs[0][0]]:
                at_ms = now_ms
            elif at_ms == now_ms:
                for name, _ in logs:
                    holds.logs[name][known] = now_ms + hold // _MILLISECOND
                room = [left - 1 for left in room]
            else:
                last = max(place for place, each in enumerate(free[1:]) if each == max(free[1:]))
                behind[logs[last][0]] += 1
            wait = (at_ms - now_ms) * _MILLISECOND
            answers.append(
                PermitAnswer(allowed=not wait, remaining=max(0, *room), retry_after=wait)
            )
        return answers

    def close(self, channel: str, length: timedelta) -> None:
        until_ms = self._server.now_ms() + length // _MILLISECOND
        closings = self._server.holds.closings
        closings[channel] = max(until_ms, closings.get(channel, until_ms))

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        for permit, since in used:
            for name, _ in self._logs(permit):
                log = self._server.holds.logs[name]
                if permit_id(permit) in log:
                    log[permit_id(permit)] = self._server.now_ms() + 1 - since // _MILLISECOND

    def extend(self, in_hand: Sequence[Permit], *, hold: timedelta) -> None:
        self.settle([(permit, -hold) for permit in in_hand])

    def give_back(self, unused: Sequence[Permit]) -> None:
        for permit in unused:
            for name, _ in self._logs(permit):
                self._server.holds.logs[name].pop(permit_id(permit), None)

    def restore(
        self, taken: Sequence[tuple[Permit, timedelta]], *, marker: str, marker_life: timedelta
    ) -> None:
        server = self._server
        if not server.has_marker(server.permit_keys, marker):
            return
        until_ms = server.now_ms() + marker_life // _MILLISECOND
        server.holds.markers[server.permit_keys] = marker, until_ms
        for permit, age in taken:
            for name, _ in self._logs(permit):
                at_ms = server.now_ms() + 1 - age // _MILLISECOND
                score = at_ms + (0.5 if age < _NO_AGE else 0)
                server.holds.logs[name][permit_id(permit)] = score

    def scope_log(self, scope: str) -> dict[bytes, float]:
        """Return the log of a scope."""
        return self._server.holds.logs[self._server.permit_keys.scope(scope)]

    def _logs(self, permit: Permit) -> list[tuple[str, Sequence[Limit]]]:
        logs = [(self._server.permit_keys.scope(permit.scope), self._scope_limits)]
        limits = self._channel_limits.get(permit.channel)
        if limits:
            logs.append((self._server.permit_keys.channel(permit.channel), limits))
        return logs

    def _free(self, name: str, limits: Sequence[Limit], now_ms: int, ahead: int) -> tuple[int, int]:
        """Return when the log has room for whoever comes after ``ahead`` others, and its room."""
        scores = sorted(self._server.holds.logs[name].values(), reverse=True)
        at_ms, room = now_ms, []
        for limit in limits:
            taken = sum(score > now_ms - limit.length_ms for score in scores)
            room.append(limit.count - taken)
            if taken >= limit.count:
                nth_ms = min(scores[limit.count - 1 - ahead % limit.count], now_ms)
                nth_ms = math.ceil(nth_ms)
                at_ms = max(at_ms, nth_ms + (1 + ahead // limit.count) * limit.length_ms)
        return at_ms, min(room)


def permit_id(permit: Permit) -> bytes:
    """Return the member of a log that a permit is."""
    return permit.message_id.bytes + permit.token.to_bytes(4, "big")
