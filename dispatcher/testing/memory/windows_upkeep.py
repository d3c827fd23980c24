"""What keeps the windows of Redis true, in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dispatcher.redis.keys import PermitKeys, ShardKeys, shard_of
from dispatcher.reservation import Rebuild, Reserved, Unconfirmed
from dispatcher.testing.memory.server import Epoch, Server
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.send_time import from_ms, to_ms

_DAY_MS = 86_400_000


class MemoryUpkeep:
    """Stands in for ``dispatcher.reservation.Upkeep``."""

    def __init__(
        self,
        server: Server,
        *,
        longest_ms: int,
        marker_life: timedelta,
        under_way: timedelta,
        new_marker: Callable[[], str],
    ) -> None:
        self._server = server
        self._marker_life_ms = marker_life // MILLISECOND
        self._under_way_ms = under_way // MILLISECOND
        self._new_marker = new_marker
        self.memory = timedelta(milliseconds=longest_ms + _DAY_MS)

    def begin(self) -> Rebuild | None:
        epochs = self._server.holds.epochs
        return self._begun([part for part in self._server.parts if part not in epochs])

    def close(self, shards: Collection[int]) -> Rebuild | None:
        wanted = [keys for keys in self._server.keys if keys.shard in shards]
        free = [keys for keys in wanted if self._server.marker_of(keys) is None]
        for keys in free:
            self._server.holds.epochs.pop(keys, None)
        return self._begun(free)

    def _begun(self, closed: Sequence[ShardKeys | PermitKeys]) -> Rebuild | None:
        ours = [part for part in closed if self._server.marker_of(part) is None]
        rebuild = Rebuild(self._new_marker(), dict.fromkeys(ours, str(self._server.number)))
        for part in ours:
            ends_at_ms = self._server.now_ms() + self._marker_life_ms
            self._server.holds.markers[part] = rebuild.marker(part), ends_at_ms
        return rebuild if ours else None

    def wipe(self, rebuild: Rebuild) -> None:
        holds = self._server.holds
        for part in rebuild.parts:
            # Where there is nothing to delete the marker is not checked.
            if isinstance(part, PermitKeys):
                if part != self._server.permit_keys:
                    continue
                logs, now_ms = holds.logs.values(), self._server.now_ms()
                is_there = any(log.scores and log.ends_at_ms >= now_ms for log in logs)
                if is_there and self._may_wipe(part, rebuild):
                    holds.logs.clear()
            elif self._may_wipe(part, rebuild):
                holds.pending.pop(part, None)
                for name in [name for name in holds.windows if name.startswith(part.contents)]:
                    del holds.windows[name]

    def restore(self, rebuild: Rebuild, rows: Sequence[Reserved]) -> None:
        for part in rebuild.parts:
            self._fills(part, rebuild)
        now_ms = self._server.now_ms()
        for row, keys, name in self._each(rows):
            if keys in rebuild.parts and self._fills(keys, rebuild):
                member = row.message_id.bytes
                self._server.holds.windows[name][member] = to_ms(row.send_at)
                self._server.holds.pending[keys].setdefault((member, name), now_ms)

    def open(self, rebuild: Rebuild) -> int:
        ours = [part for part in rebuild.parts if self._is_ours(part, rebuild)]
        for part in ours:
            self._server.holds.epochs[part] = Epoch(self._server.now_ms(), rebuild.marker(part))
            del self._server.holds.markers[part]
        found = [(part, self._server.holds.epochs.get(part)) for part in rebuild.parts]
        return sum(each is not None and each.marker == rebuild.marker(part) for part, each in found)

    def unconfirmed(
        self, *, older_than: timedelta, limit: int, skip: Mapping[ShardKeys, int] | None = None
    ) -> list[Unconfirmed]:
        skip = skip or {}
        before = self._server.now_ms() - older_than // MILLISECOND
        found = []
        for keys in self._server.keys:
            waiting = self._server.holds.pending[keys].items()
            entries = ((at, member, name.encode()) for (member, name), at in waiting)
            ordered = sorted(
                (each for each in entries if each[0] <= before),
                key=lambda each: (each[0], each[1] + each[2]),
            )
            found += [
                Unconfirmed(UUID(bytes=member[:16]), member, name, keys, before)
                for _, member, name in ordered[skip.get(keys, 0) :][:limit]
            ]
        return found[:limit]

    def confirm(
        self, found: Sequence[Unconfirmed], stored: Mapping[UUID, tuple[datetime, int]]
    ) -> int:
        known = [each for each in found if each.message_id in stored]
        corrected = sum(self._is_corrected(each, stored[each.message_id]) for each in known)
        for each in found:
            if each.message_id not in stored and self._is_waiting(each):
                self._end(each)
        return corrected

    def _is_corrected(self, each: Unconfirmed, kept: tuple[datetime, int]) -> bool:
        name, own = each.window.decode(), each.message_id.bytes
        send_at, token = kept
        asked_ms = self._server.holds.pending[each.keys].get((own, name), each.before_ms)
        if not self._is_waiting(each) or asked_ms > each.before_ms:
            return False
        is_old = self._server.move_token(each.keys, each.message_id, name) > token
        if is_old and not each.is_hold:
            return False
        if each.is_hold:
            self._end(each)
            if not is_old:
                self._server.tell(
                    each.keys, each.message_id, name, token, life_ms=self._under_way_ms
                )
        else:
            del self._server.holds.pending[each.keys][own, name]
        window = self._server.holds.windows[name]
        if is_old or window.get(own) == to_ms(send_at):
            return False
        window[own] = to_ms(send_at)
        return True

    def _is_waiting(self, each: Unconfirmed) -> bool:
        pending = self._server.holds.pending[each.keys]
        entry = each.member, each.window.decode()
        return entry in pending and pending[entry] <= each.before_ms

    def _end(self, each: Unconfirmed) -> None:
        name = each.window.decode()
        del self._server.holds.pending[each.keys][each.member, name]
        self._server.holds.windows[name].pop(each.member, None)

    def await_confirmation(
        self, found: Sequence[Unconfirmed], rows: Iterable[Reserved]
    ) -> list[Unconfirmed]:
        before_ms = max((each.before_ms for each in found), default=0)
        added = []
        for row, keys, name in self._each(list(rows)):
            self._server.holds.pending[keys].setdefault((row.message_id.bytes, name), before_ms)
            added.append(
                Unconfirmed(row.message_id, row.message_id.bytes, name.encode(), keys, before_ms)
            )
        return added

    def set_aside(self) -> int:
        """Find nothing: no other program writes here."""
        return 0

    def tidy(self, *, keys_at_once: int) -> int:
        del keys_at_once  # no reservation gets that old here
        return 0

    def release(self, rows: Sequence[Reserved]) -> None:
        for row, _, name in self._each(rows):
            self._server.holds.windows[name].pop(row.message_id.bytes, None)

    def restore_missing(self, rows: Sequence[Reserved]) -> int:
        added = 0
        for row, keys, name in self._each(rows):
            window, member = self._server.holds.windows[name], row.message_id.bytes
            added += member not in window
            window.setdefault(member, to_ms(row.send_at))
            self._server.holds.pending[keys].setdefault((member, name), self._server.now_ms())
        return added

    def unchecked(self, *, older_than: timedelta) -> dict[ShardKeys, datetime]:
        before = self._server.now_ms() - older_than // MILLISECOND
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

    def _may_wipe(self, part: Any, rebuild: Rebuild) -> bool:
        return self._server.marker_of(part) == rebuild.marker(part) and self._is_ours(part, rebuild)

    def _fills(self, part: Any, rebuild: Rebuild) -> bool:
        return self._server.fill(part, rebuild.marker(part), life_ms=self._marker_life_ms)

    def _is_ours(self, part: Any, rebuild: Rebuild) -> bool:
        return self._server.keep_marker(part, rebuild.marker(part), life_ms=self._marker_life_ms)

    def _each(self, rows: Sequence[Reserved]) -> list[tuple[Reserved, ShardKeys, str]]:
        found = []
        for row in rows:
            for scope in row.scopes:
                keys = self._server.keys[shard_of(scope.home, len(self._server.keys))]
                found.append((row, keys, keys.window(scope.name, scope.kind)))
        return found
