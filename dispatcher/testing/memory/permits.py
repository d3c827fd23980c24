"""The permits of Redis in memory: logs and lines, by the rules of ``take_permits.lua``."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters import Permit, PermitAnswer
from dispatcher.limiters.permit_logs import CLOSED, InHand, LogLimit
from dispatcher.limiters.permits import reaches_ms
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.redis.keys import PermitKeys
from dispatcher.scope import NO_SCOPE
from dispatcher.testing.memory.server import Log, ScoredSet, Server
from dispatcher.times.lengths import MILLISECOND

_LATE_MS, _LATE_ENOUGH_MS = 60_000, 100
_BUSY_MS = 20
_SLACK = 1.02
_ROOM_KEPT_MS = 3_600_000
_PERIODS = 4
"""The present one, and those in which turns are looked for."""
_NO_AGE = timedelta(0)


class _Kind:
    """The limits of some logs. ``most`` is how many permits may be in hand, 0 for any number."""

    def __init__(self, limits: Sequence[LogLimit]) -> None:
        self.limits = [each for each in limits if isinstance(each, Limit)]
        self.calendars = [each for each in limits if isinstance(each, CalendarLimit)]
        self.most = min((each.count for each in limits if isinstance(each, InHand)), default=0)
        [self.reach_ms] = reaches_ms(limits, {}).values() if limits else [0]


@dataclass(slots=True)
class _Period:
    """The present period of a calendar limit: where it and the next ones begin, and its sends."""

    count: int
    bounds: tuple[int, ...]
    taken: int


@dataclass(slots=True)
class _LogState:
    """A log as one call sees it. ``line`` is None where no message gets a turn.

    ``note`` has the waiting messages: it is the line, where there is one.
    """

    log: Log
    kind: _Kind
    note: Log
    line: Log | None
    taken: list[int]
    periods: list[_Period]
    in_hand: int
    behind: int = 0
    joined: bool = False
    touched: bool = False
    was_empty: bool = False

    @property
    def waiting(self) -> int:
        return len(self.line.scores) if self.line else 0

    def turn_of(self, member: bytes) -> int | None:
        found = self.line.scores.get(member) if self.line else None
        return None if found is None else int(found)

    def free_at(self, ahead: int, now_ms: int) -> tuple[int, float]:
        """Return when the log has room for a message behind ``ahead`` others, and its room now."""
        at_ms, room = now_ms, math.inf
        for limit, taken in zip(self.kind.limits, self.taken, strict=True):
            room = min(room, limit.count - taken)
            if taken >= limit.count:
                nth_ms = _ranked(self.log, limit.count - 1 - ahead % limit.count)
                many = 1 + ahead // limit.count
                at_ms = max(at_ms, min(nth_ms, now_ms) + many * limit.length_ms)
        for period in self.periods:
            room = min(room, period.count - period.taken)
            if period.taken >= period.count:
                at_ms = max(at_ms, period.bounds[1])
        if self.kind.most:
            room = min(room, self.kind.most - self.in_hand)
            if self.in_hand >= self.kind.most:
                at_ms = max(at_ms, now_ms + _BUSY_MS)
        return at_ms, room

    def turn_behind(self, start_ms: int, now_ms: int) -> int:
        """Return the turn behind the line, from ``start_ms`` on."""
        turn_ms = start_ms
        for limit, taken in zip(self.kind.limits, self.taken, strict=True):
            if self.line and self.waiting >= limit.count:
                before_ms = max(_ranked(self.line, limit.count - 1), now_ms)
                turn_ms = max(turn_ms, before_ms + math.ceil(limit.length_ms * _SLACK))
            elif taken + self.waiting >= limit.count:
                nth_ms = _ranked(self.log, limit.count - self.waiting - 1)
                turn_ms = max(turn_ms, min(nth_ms, now_ms) + limit.length_ms)
        most = self.kind.most
        if most and self.in_hand + self.waiting >= most:
            turn_ms = max(turn_ms, now_ms + _BUSY_MS * (1 + self.waiting // most))
        for period in self.periods:
            turn_ms = max(turn_ms, self._free_period(period, turn_ms))
        return turn_ms

    def _free_period(self, period: _Period, turn_ms: int) -> int:
        """When the first period begins that has room, of those that end after ``turn_ms``."""
        for index, (begins_ms, ends_ms) in enumerate(pairwise(period.bounds)):
            if turn_ms < ends_ms:
                taken = 0 if index else period.taken
                if self.line:
                    least = begins_ms if index else -math.inf
                    taken += self.line.scores.between(least, ends_ms)
                if taken < period.count:
                    return begins_ms
        return period.bounds[-1]

    def leave_line(self, member: bytes) -> None:
        if self.line is not None:
            self.line.scores.pop(member, None)

    def late_one(self, now_ms: int) -> bytes | None:
        """Return a message that did not come at its turn.

        The message that takes its room gives it another turn.
        """
        if self.line is None or not self.line.scores:
            return None
        turn_ms, first = self.line.scores.ordered[0]
        return first if turn_ms < now_ms - _LATE_ENOUGH_MS else None

    def turn(
        self, member: bytes, own_ms: int | None, *, now_ms: int, closed_ms: int
    ) -> tuple[int, bytes | None, float]:
        """Return when it may have a permit, who is late and gives it its turn, and the room."""
        ahead = self.behind
        if own_ms is not None and self.line is not None:
            ahead = _rank_of(self.line, member)
        free_ms, room = self.free_at(ahead, now_ms)
        if self.line is None:
            return max(free_ms, closed_ms), None, room
        if own_ms is not None and own_ms <= now_ms == closed_ms:
            return free_ms, None, room
        if own_ms is None or own_ms <= now_ms or own_ms < closed_ms:
            self.leave_line(member)
            own_ms = None
        late = self.late_one(now_ms) if free_ms == now_ms == closed_ms else None
        if late is not None:
            return now_ms, late, room
        turn_ms = self.turn_behind(closed_ms, now_ms) if own_ms is None else own_ms
        return turn_ms, None, room

    def keep(self, now_ms: int) -> None:
        """Forget what no limit counts, and say how long log and line live."""
        if self.joined and self.note.scores:
            self.note.ends_at_ms = _ranked(self.note, 0) + _LATE_MS
        if not self.touched:
            return
        if not self.was_empty:
            self.log.scores.drop_to(now_ms - self.kind.reach_ms)
        self.log.ends_at_ms = _ranked(self.log, 0) + self.kind.reach_ms

    def forget_restored(self, known: bytes, now_ms: int) -> None:
        """Forget a permit that a rebuild restored: the message that asks for it is judged anew."""
        at_ms = self.log.scores.get(known, 0)
        if at_ms % 1:
            del self.log.scores[known]
            for place, limit in enumerate(self.kind.limits):
                self.taken[place] -= at_ms > now_ms - limit.length_ms
            for period in self.periods:
                period.taken -= at_ms >= period.bounds[0]
            self.in_hand -= at_ms > now_ms + 1


class MemoryPermits:
    """Stands in for ``dispatcher.limiters.Permits`` on one shard."""

    def __init__(
        self,
        server: Server,
        *,
        scope_limits: Sequence[LogLimit],
        channel_limits: Mapping[str, Sequence[LogLimit]],
    ) -> None:
        self._server = server
        self._of_scopes = _Kind(scope_limits)
        self._of_channels = {name: _Kind(some) for name, some in channel_limits.items() if some}
        kinds = [self._of_scopes, *self._of_channels.values()]
        self.memory = timedelta(milliseconds=max(each.reach_ms for each in kinds))

    def acquire(self, wanted: Sequence[Permit], *, within: timedelta) -> list[PermitAnswer]:
        if self._server.permit_keys not in self._server.holds.epochs:
            raise LimitersUnavailable(CLOSED)
        now_ms, within_ms = self._server.now_ms(), within // MILLISECOND
        states: dict[str, _LogState] = {}
        seen: list[list[_LogState]] = []
        for permit in wanted:
            seen.append([])
            for name, kind in self._logs(permit):
                if name not in states:
                    states[name] = self._state(permit, name, kind, now_ms)
                seen[-1].append(states[name])
        answers = [
            self._judged(permit, mine, now_ms, within_ms)
            for permit, mine in zip(wanted, seen, strict=True)
        ]
        for state in states.values():
            state.keep(now_ms)
        return answers

    def _state(self, permit: Permit, name: str, kind: _Kind, now_ms: int) -> _LogState:
        logs, lines = self._server.holds.logs, self._server.holds.lines
        log, note = _present(logs, name, now_ms), _present(lines, name, now_ms)
        line = note if name == self._server.permit_keys.channel(permit.channel) else None
        if line is not None:
            line.scores.drop_to(now_ms - _LATE_MS)
        sends = log.scores
        taken = [sends.above(now_ms - each.length_ms) for each in kind.limits]
        periods = []
        for limit in kind.calendars:
            bounds = limit.bounds(now_ms, _PERIODS)
            periods.append(_Period(limit.count, bounds, sends.between(bounds[0], math.inf)))
        in_hand = sends.above(now_ms + 1) if kind.most else 0
        return _LogState(log, kind, note, line, taken, periods, in_hand)

    def _judged(
        self, permit: Permit, mine: Sequence[_LogState], now_ms: int, within_ms: int
    ) -> PermitAnswer:
        known, member = permit_id(permit), permit.message_id.bytes
        closed_ms = max(now_ms, self._server.holds.closings.get(permit.channel, now_ms))
        for state in mine:
            state.forget_restored(known, now_ms)
        own = [state.turn_of(member) for state in mine]
        at_ms, binding, late, left = closed_ms, -1, [], math.inf
        for place, state in enumerate(mine):
            mine_ms, other, room = state.turn(
                member, own[place], now_ms=now_ms, closed_ms=closed_ms
            )
            left = min(left, room)
            own[place] = state.turn_of(member)
            late.append(other)
            if binding < 0 or mine_ms > at_ms or (mine_ms == at_ms and state.line is not None):
                binding = place
            at_ms = max(at_ms, mine_ms)
        wait_ms = at_ms - now_ms
        if mine and known in mine[0].log.scores:
            wait_ms = 0
        elif wait_ms == 0:
            _take(mine, known, own, late, now_ms=now_ms, within_ms=within_ms)
            left -= 1
        elif mine:
            _join_line(mine, member, own, binding, turn_ms=at_ms, now_ms=now_ms)
        wait = wait_ms * MILLISECOND
        remaining = max(0, int(left)) if mine else 0
        return PermitAnswer(allowed=not wait_ms, remaining=remaining, retry_after=wait)

    def close(self, channel: str, length: timedelta) -> None:
        now_ms, closings = self._server.now_ms(), self._server.holds.closings
        until_ms = now_ms + length // MILLISECOND
        if until_ms > max(now_ms, closings.get(channel, 0)):
            closings[channel] = until_ms

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        now_ms = self._server.now_ms() + 1
        for permit, since in used:
            at_ms = now_ms - since // MILLISECOND
            known = permit_id(permit)
            for name, _ in self._logs(permit):
                log = self._log(name)
                if log is None or known not in log.scores:
                    continue
                last_ms = log.scores.ordered[-1][0]
                is_moved = log.scores[known] != at_ms
                log.scores[known] = at_ms
                if is_moved and at_ms > now_ms and at_ms > last_ms:
                    log.ends_at_ms += math.ceil(at_ms - last_ms)

    def extend(self, in_hand: Sequence[Permit], *, within: timedelta) -> None:
        self.settle([(permit, -within) for permit in in_hand])

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

    def give_turns(self, waiting: Mapping[str, Sequence[UUID]], come: Collection[UUID]) -> None:
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
                log.scores.update(some)
                log.ends_at_ms = math.ceil(max(log.scores.values()) + longest_ms)

    def scope_log(self, scope: str) -> ScoredSet:
        """Return the log of a scope."""
        found = self._log(self._server.permit_keys.scope(scope))
        return found.scores if found else ScoredSet()

    def _log(self, name: str) -> Log | None:
        logs = self._server.holds.logs
        if name in logs and logs[name].ends_at_ms < self._server.now_ms():
            del logs[name]
        return logs.get(name)

    def _line(self, name: str) -> ScoredSet:
        line = self._server.holds.lines.get(name)
        is_there = line is not None and line.ends_at_ms >= self._server.now_ms()
        return line.scores if line is not None and is_there else ScoredSet()

    def _room(self) -> Log:
        room = self._server.holds.room
        if room.ends_at_ms < self._server.now_ms():
            room.scores.clear()
        return room

    def _logs(self, permit: Permit) -> list[tuple[str, _Kind]]:
        keys, logs = self._server.permit_keys, []
        if permit.scope != NO_SCOPE and self._of_scopes.reach_ms:
            logs.append((keys.scope(permit.scope), self._of_scopes))
        kind = self._of_channels.get(permit.channel)
        if kind is not None:
            logs.append((keys.channel(permit.channel), kind))
        return logs


def _present(logs: dict[str, Log], name: str, now_ms: int) -> Log:
    """Return a log, or a new one where it is empty or has ended."""
    log = logs.get(name)
    if log is None or log.ends_at_ms < now_ms or not log.scores:
        log = logs[name] = Log()
    return log


def permit_id(permit: Permit) -> bytes:
    """Return the member of a log that a permit is."""
    return permit.message_id.bytes + permit.token.to_bytes(4, "big")


def _take(
    mine: Sequence[_LogState],
    known: bytes,
    own: Sequence[int | None],
    late: Sequence[bytes | None],
    *,
    now_ms: int,
    within_ms: int,
) -> None:
    for place, state in enumerate(mine):
        other, turn_ms = late[place], own[place]
        if other is not None and state.line is not None:
            again_ms = state.turn_behind(now_ms, now_ms) if turn_ms is None else turn_ms
            state.line.scores[other] = again_ms
            state.joined = True
        state.was_empty = state.was_empty or not state.log.scores
        state.log.scores[known] = now_ms + within_ms
        state.taken = [each + 1 for each in state.taken]
        for period in state.periods:
            period.taken += 1
        state.in_hand += 1
        state.touched = True
        if turn_ms is not None:
            state.leave_line(known[:16])
        elif state.line is None:
            state.note.scores.pop(known[:16], None)


def _join_line(
    mine: Sequence[_LogState],
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
            state.note.scores.drop_to(now_ms)
            state.note.scores[member] = turn_ms
            state.joined = True
        elif at_ms != turn_ms and not (at_ms is not None and at_ms <= now_ms):
            state.line.scores[member] = turn_ms
            state.joined = True


def _ranked(log: Log, rank: int) -> int:
    """Return a time in a log, the latest one first."""
    return math.ceil(log.scores.ordered[-1 - rank][0])


def _rank_of(line: Log, member: bytes) -> int:
    return bisect_left(line.scores.ordered, (line.scores[member], member))
