"""The permits of Redis in memory: logs and lines, by the rules of ``take_permits.lua``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters import Permit, PermitAnswer
from dispatcher.limiters.permit_logs import CLOSED
from dispatcher.quota import Limit
from dispatcher.redis.keys import PermitKeys
from tests.simulation.server import MILLISECOND, Log, Server

_LATE_MS, _LATE_ENOUGH_MS = 60_000, 100
_SLACK = 1.02
_ROOM_KEPT_MS = 3_600_000
_NO_AGE = timedelta(0)


@dataclass(slots=True)
class _State:
    """A log as one call sees it. ``line`` is None where nobody gets a turn.

    ``note`` has those who wait: it is the line, where there is one.
    """

    log: Log
    limits: Sequence[Limit]
    note: Log
    line: Log | None
    taken: list[int]
    behind: int = 0
    joined: bool = False
    touched: bool = False
    was_empty: bool = False

    @property
    def waiting(self) -> int:
        return len(self.line.scores) if self.line else 0

    @property
    def reach_ms(self) -> int:
        return max(limit.length_ms for limit in self.limits)

    def turn_of(self, member: bytes) -> int | None:
        found = self.line.scores.get(member) if self.line else None
        return None if found is None else int(found)

    def free_at(self, ahead: int, now_ms: int) -> tuple[int, int]:
        """When the log alone has room for whoever comes after ``ahead`` others, and its room."""
        at_ms = now_ms
        for limit, taken in zip(self.limits, self.taken, strict=True):
            if taken >= limit.count:
                nth_ms = _ranked(self.log, limit.count - 1 - ahead % limit.count)
                many = 1 + ahead // limit.count
                at_ms = max(at_ms, min(nth_ms, now_ms) + many * limit.length_ms)
        room = min(each.count - taken for each, taken in zip(self.limits, self.taken, strict=True))
        return at_ms, room

    def turn_behind(self, start_ms: int, now_ms: int) -> int:
        """The turn behind the line, from ``start_ms`` on."""
        turn_ms = start_ms
        for limit, taken in zip(self.limits, self.taken, strict=True):
            if self.line and self.waiting >= limit.count:
                before_ms = max(_ranked(self.line, limit.count - 1), now_ms)
                turn_ms = max(turn_ms, before_ms + math.ceil(limit.length_ms * _SLACK))
            elif taken + self.waiting >= limit.count:
                nth_ms = _ranked(self.log, limit.count - self.waiting - 1)
                turn_ms = max(turn_ms, min(nth_ms, now_ms) + limit.length_ms)
        return turn_ms

    def leave_line(self, member: bytes) -> None:
        if self.line is not None:
            self.line.scores.pop(member, None)

    def late_one(self, now_ms: int) -> bytes | None:
        """Who has not come at its turn; whoever takes that room gives it another."""
        if self.line is None or not self.line.scores:
            return None
        turn_ms, first = min((at, member) for member, at in self.line.scores.items())
        return first if turn_ms < now_ms - _LATE_ENOUGH_MS else None

    def turn(
        self, member: bytes, own_ms: int | None, *, now_ms: int, closed_ms: int
    ) -> tuple[int, bytes | None]:
        """Return when it may have a permit, and who is late and gives it its turn."""
        ahead = self.behind
        if own_ms is not None and self.line is not None:
            ahead = _rank_of(self.line, member)
        free_ms, _ = self.free_at(ahead, now_ms)
        if self.line is None:
            return max(free_ms, closed_ms), None
        if own_ms is not None and own_ms <= now_ms == closed_ms:
            return free_ms, None
        if own_ms is None or own_ms <= now_ms or own_ms < closed_ms:
            self.leave_line(member)
            own_ms = None
        late = self.late_one(now_ms) if free_ms == now_ms == closed_ms else None
        if late is not None:
            return now_ms, late
        return self.turn_behind(closed_ms, now_ms) if own_ms is None else own_ms, None

    def keep(self, now_ms: int, hold_ms: int) -> None:
        """Forget what no limit counts, and say how long log and line live."""
        if self.joined and self.note.scores:
            self.note.ends_at_ms = _ranked(self.note, 0) + _LATE_MS
        if not self.touched:
            return
        if not self.was_empty:
            last_ms = now_ms - self.reach_ms
            for known in [each for each, at in self.log.scores.items() if at <= last_ms]:
                del self.log.scores[known]
        self.log.ends_at_ms = now_ms + hold_ms + self.reach_ms

    def forget_restored(self, known: bytes, now_ms: int) -> None:
        """Let a permit that a rebuild put there count no more; whoever asks for it is judged."""
        at_ms = self.log.scores.get(known, 0)
        if at_ms % 1:
            del self.log.scores[known]
            for place, limit in enumerate(self.limits):
                self.taken[place] -= at_ms > now_ms - limit.length_ms


class MemoryPermits:
    """Stands in for ``dispatcher.limiters.Permits`` where all limits are rolling."""

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
        if self._server.permit_keys not in self._server.holds.epochs:
            raise LimitersUnavailable(CLOSED)
        now_ms, hold_ms = self._server.now_ms(), hold // MILLISECOND
        states: dict[str, _State] = {}
        for permit in wanted:
            for name, limits in self._logs(permit):
                if name not in states:
                    states[name] = self._state(permit, name, limits, now_ms)
        answers = []
        for permit in wanted:
            mine = [states[name] for name, _ in self._logs(permit)]
            answers.append(self._judged(permit, mine, now_ms, hold_ms))
        for state in states.values():
            state.keep(now_ms, hold_ms)
        return answers

    def _state(self, permit: Permit, name: str, limits: Sequence[Limit], now_ms: int) -> _State:
        logs, lines = self._server.holds.logs, self._server.holds.lines
        for each in (logs, lines):
            if name in each and (each[name].ends_at_ms < now_ms or not each[name].scores):
                del each[name]
        log, note = logs.setdefault(name, Log()), lines.setdefault(name, Log())
        line = note if name == self._server.permit_keys.channel(permit.channel) else None
        if line is not None:
            for member in [each for each, at in line.scores.items() if at <= now_ms - _LATE_MS]:
                del line.scores[member]
        taken = [sum(at > now_ms - each.length_ms for at in log.scores.values()) for each in limits]
        return _State(log, limits, note, line, taken)

    def _judged(
        self, permit: Permit, mine: Sequence[_State], now_ms: int, hold_ms: int
    ) -> PermitAnswer:
        known, member = permit_id(permit), permit.message_id.bytes
        closed_ms = max(now_ms, self._server.holds.closings.get(permit.channel, now_ms))
        for state in mine:
            state.forget_restored(known, now_ms)
        own = [state.turn_of(member) for state in mine]
        left = min(state.free_at(0, now_ms)[1] for state in mine)
        at_ms, binding, late = closed_ms, -1, []
        for place, state in enumerate(mine):
            mine_ms, other = state.turn(member, own[place], now_ms=now_ms, closed_ms=closed_ms)
            own[place] = state.turn_of(member)
            late.append(other)
            if binding < 0 or mine_ms > at_ms or (mine_ms == at_ms and state.line is not None):
                binding = place
            at_ms = max(at_ms, mine_ms)
        wait_ms = at_ms - now_ms
        if known in mine[0].log.scores:
            wait_ms = 0
        elif wait_ms == 0:
            _take(mine, known, own, late, now_ms=now_ms, hold_ms=hold_ms)
            left -= 1
        else:
            _join_line(mine, member, own, binding, turn_ms=at_ms, now_ms=now_ms)
        wait = wait_ms * MILLISECOND
        return PermitAnswer(allowed=not wait_ms, remaining=max(0, left), retry_after=wait)

    def close(self, channel: str, length: timedelta) -> None:
        now_ms, closings = self._server.now_ms(), self._server.holds.closings
        until_ms = now_ms + length // MILLISECOND
        if until_ms > max(now_ms, closings.get(channel, 0)):
            closings[channel] = until_ms

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        now_ms = self._server.now_ms() + 1
        for permit, since in used:
            at_ms = now_ms - since // MILLISECOND
            for name, _ in self._logs(permit):
                log = self._log(name)
                if log is None or permit_id(permit) not in log.scores:
                    continue
                last_ms = max(log.scores.values())
                is_moved = log.scores[permit_id(permit)] != at_ms
                log.scores[permit_id(permit)] = at_ms
                if is_moved and at_ms > now_ms and at_ms > last_ms:
                    log.ends_at_ms += int(at_ms - last_ms)

    def extend(self, in_hand: Sequence[Permit], *, hold: timedelta) -> None:
        self.settle([(permit, -hold) for permit in in_hand])

    def give_back(self, unused: Sequence[Permit]) -> None:
        made_room, room = False, self._room()
        for permit in unused:
            for name, _ in self._logs(permit):
                log = self._log(name)
                gone = None if log is None else log.scores.pop(permit_id(permit), None)
                if gone is not None and self._line(name):
                    room.scores[name.encode()] = room.scores.get(name.encode(), 0) + 1
                    made_room = True
        if made_room:
            room.ends_at_ms = self._server.now_ms() + _ROOM_KEPT_MS

    def waiting(self, *, logs: int, each: int) -> dict[str, list[UUID]]:
        now_ms = self._server.now_ms()
        rooms = sorted((many, name.decode()) for name, many in self._room().scores.items())
        return {
            name: [
                UUID(bytes=member)
                for at, member in sorted((at, known) for known, at in self._line(name).items())
                if at > now_ms
            ][: min(each, int(many))]
            for many, name in rooms[:logs]
        }

    def called(self, waiting: Mapping[str, Sequence[UUID]], come: Collection[UUID]) -> None:
        now_ms, room = self._server.now_ms(), self._room().scores
        for name, some in waiting.items():
            line, log = self._line(name), name.encode()
            called = [each for each in some if each in come]
            for message_id in some:
                if message_id not in come:
                    line.pop(message_id.bytes, None)
                elif message_id.bytes in line:
                    line[message_id.bytes] = now_ms
            if called:
                room[log] = room.get(log, 0) - len(called)
            if not some:
                room.pop(log, None)
        for log in [log for log, many in room.items() if many <= 0]:
            del room[log]

    def restore(
        self,
        taken: Sequence[tuple[Permit, timedelta]],
        markers: Mapping[PermitKeys, str],
        *,
        marker_life: timedelta,
    ) -> None:
        server = self._server
        longest_ms, now_ms = self.memory // MILLISECOND, server.now_ms() + 1
        life_ms = marker_life // MILLISECOND
        scores: dict[str, dict[bytes, float]] = defaultdict(dict)
        for permit, age in taken:
            at_ms = now_ms - age // MILLISECOND + (0.5 if age < _NO_AGE else 0)
            for name, _ in self._logs(permit):
                scores[name][permit_id(permit)] = at_ms
        filled = [
            keys for keys, marker in markers.items() if server.fill(keys, marker, life_ms=life_ms)
        ]
        if server.permit_keys in filled:
            for name, some in scores.items():
                log = self._log(name) or server.holds.logs.setdefault(name, Log())
                log.scores |= some
                log.ends_at_ms = math.ceil(max(log.scores.values()) + longest_ms)

    def scope_log(self, scope: str) -> dict[bytes, float]:
        """Return the log of a scope."""
        found = self._log(self._server.permit_keys.scope(scope))
        return found.scores if found else {}

    def _log(self, name: str) -> Log | None:
        logs = self._server.holds.logs
        if name in logs and logs[name].ends_at_ms < self._server.now_ms():
            del logs[name]
        return logs.get(name)

    def _line(self, name: str) -> dict[bytes, float]:
        line = self._server.holds.lines.get(name)
        return line.scores if line and line.ends_at_ms >= self._server.now_ms() else {}

    def _room(self) -> Log:
        room = self._server.holds.room
        if room.ends_at_ms < self._server.now_ms():
            room.scores.clear()
        return room

    def _logs(self, permit: Permit) -> list[tuple[str, Sequence[Limit]]]:
        logs = [(self._server.permit_keys.scope(permit.scope), self._scope_limits)]
        limits = self._channel_limits.get(permit.channel)
        if limits:
            logs.append((self._server.permit_keys.channel(permit.channel), limits))
        return logs


def permit_id(permit: Permit) -> bytes:
    """Return the member of a log that a permit is."""
    return permit.message_id.bytes + permit.token.to_bytes(4, "big")


def _take(
    mine: Sequence[_State],
    known: bytes,
    own: Sequence[int | None],
    late: Sequence[bytes | None],
    *,
    now_ms: int,
    hold_ms: int,
) -> None:
    for place, state in enumerate(mine):
        other, turn_ms = late[place], own[place]
        if other is not None and state.line is not None:
            again_ms = state.turn_behind(now_ms, now_ms) if turn_ms is None else turn_ms
            state.line.scores[other] = again_ms
            state.joined = True
        state.was_empty = state.was_empty or not state.log.scores
        state.log.scores[known] = now_ms + hold_ms
        state.taken = [each + 1 for each in state.taken]
        state.touched = True
        if turn_ms is not None:
            state.leave_line(known[:16])
        elif state.line is None:
            state.note.scores.pop(known[:16], None)


def _join_line(
    mine: Sequence[_State],
    member: bytes,
    own: Sequence[int | None],
    binding: int,
    *,
    turn_ms: int,
    now_ms: int,
) -> None:
    for place, state in enumerate(mine):
        at_ms = own[place]
        if place != binding:
            if at_ms is not None:
                state.leave_line(member)
        elif state.line is None:
            state.behind += 1
            scores = state.note.scores
            for gone in [each for each, at in scores.items() if at <= now_ms]:
                del scores[gone]
            scores[member] = turn_ms
            state.joined = True
        elif at_ms != turn_ms and not (at_ms is not None and at_ms <= now_ms):
            state.line.scores[member] = turn_ms
            state.joined = True


def _ranked(log: Log, rank: int) -> int:
    """Return a time in a log, the latest one first."""
    return math.ceil(sorted(log.scores.values(), reverse=True)[rank])


def _rank_of(line: Log, member: bytes) -> int:
    ordered = sorted((at, each) for each, at in line.scores.items())
    return next(place for place, (_, each) in enumerate(ordered) if each == member)
