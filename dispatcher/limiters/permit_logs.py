"""The logs of permits, and the scripts that read and change them.

A log is exact, also when a permit is used late: at most N messages are sent within any span shorter
than the period, wherever the span begins. The price is memory: one member of a ZSET per message of
the longest period. A refused request takes nothing. In a log with turns it gets one, so that a
herd comes back one after the other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple, cast
from uuid import UUID

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.limiter import translated
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.redis.client import now_ms
from dispatcher.redis.keys import PermitKeys, line_of, room_of
from dispatcher.redis.scripts import Call, replies_of, script
from dispatcher.times.clock import Clock
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.send_time import to_ms

_TRIES = 3
_MOST_AT_ONCE = 250
"""One script restores at most twice as many permits; it then runs for a few milliseconds."""
_PERIODS = 5  # the one before, the present one, and those in which turns are looked for
_ROOM_NOTED_MS = 3_600_000
CLOSED = "the permit logs are not complete; the sweep rebuilds them from the store"


class PermitAnswer(NamedTuple):
    """The answer to one request.

    ``remaining`` is how many more permits the tightest limit would give now; ``retry_after`` is
    how long to wait before asking again, zero when allowed.
    """

    allowed: bool
    remaining: int
    retry_after: timedelta


class PermitLeg(NamedTuple):
    """One permit wanted from logs of one shard, all or none.

    ``permit_id`` makes it idempotent; it begins with the 16 bytes of the message's id. ``logs`` are
    the names of the logs, each with its kind. ``closing`` names the key that says until when
    nothing is granted.
    """

    permit_id: bytes
    keys: PermitKeys
    logs: dict[str, LogKind]
    closing: str | None = None


@dataclass(frozen=True, slots=True)
class InHand:
    """At most ``count`` permits that are granted and not settled, returned or too old to use."""

    count: int


LogLimit = Limit | CalendarLimit | InHand


class LogKind:
    """What the logs of one kind have in common.

    ``reach`` is the name under which the epoch says how far back they reach, where that is further
    than these limits need. Where a log ``gives_turns`` a request that it refuses has its turn after
    ``retry_after``, behind all that were refused before. Its message should come back then; one
    that does not keeps others waiting, until a minute after its turn at most.
    """

    def __init__(
        self, limits: Sequence[LogLimit], reach: str = "", *, gives_turns: bool = False
    ) -> None:
        rolling = [each for each in limits if isinstance(each, Limit)]
        self._calendars = [each for each in limits if isinstance(each, CalendarLimit)]
        self._lengths = [word for each in rolling for word in (each.count, each.length_ms)]
        self._most = min((each.count for each in limits if isinstance(each, InHand)), default=0)
        self._last = (reach, int(gives_turns))

    def words(self, at_ms: int) -> list[object]:
        """Return what ``take_permits.lua`` reads of it, at about that time (ms since 1970)."""
        calendars = [
            [each.count, *each.bounds(each.bounds(at_ms, 1)[0] - 1, _PERIODS)]
            for each in self._calendars
        ]
        return [self._lengths, calendars, self._most, *self._last]


class PermitLogs:
    """Logs of permits, by the names of their keys. Each call runs one script in each shard.

    ``shards`` are all that there are. ``clock`` only guesses in which calendar periods the time of
    Redis lies. Raises LimitersUnavailable whenever Redis cannot be trusted to answer.
    """

    def __init__(self, client: redis.Redis, shards: Sequence[PermitKeys], *, clock: Clock) -> None:
        self._client = client
        self._shards = shards
        self._clock = clock
        # By how much the server of each shard is ahead of the clock, as far as that is known.
        self._ahead_ms: dict[str, int] = {}
        self._acquire = script("limiters/take_permits")
        self._settle = script("limiters/settle_permits")
        self._restore = script("limiters/restore_permits")
        self._close = script("limiters/limits_close")
        self._give_back = script("limiters/give_back_permits")

    def acquire(
        self, legs: Mapping[int, PermitLeg], *, within: timedelta
    ) -> dict[int, PermitAnswer]:
        """Ask for permits in order; in each shard earlier ones count against later ones.

        A permit granted must be used ``within`` that time from now or returned, and settled once it
        is used. Where this raises LimitersUnavailable any of them may be granted.
        """
        answers: dict[int, PermitAnswer] = {}
        shards: dict[str, dict[int, PermitLeg]] = defaultdict(dict)
        for number, leg in legs.items():
            shards[leg.keys.tag][number] = leg
        tries = 0
        while shards:
            if tries == _TRIES:
                raise LimitersUnavailable("the clock of Redis or of this machine keeps jumping")
            tries += 1
            local_ms = to_ms(self._clock.now())
            calls = [
                _acquire_call([*some.values()], within, local_ms + self._ahead_ms.get(tag, 0))
                for tag, some in shards.items()
            ]
            with translated:
                replies = replies_of(self._client, self._acquire, calls)
            for tag, reply in zip([*shards], replies, strict=True):
                if reply[0] == b"closed":
                    raise LimitersUnavailable(CLOSED)
                if reply[0] == b"elsewhere":
                    self._ahead_ms[tag] = reply[1] - local_ms
                    continue
                numbers = shards.pop(tag)
                for number, wait, left in zip(numbers, reply[::2], reply[1::2], strict=True):
                    answers[number] = PermitAnswer(wait == 0, left, wait * MILLISECOND)
        return answers

    def close(self, closing: str, length: timedelta) -> None:
        """Grant nothing to requests with this closing for so long; the later end holds."""
        with translated:
            replies_of(self._client, self._close, [([closing], [length // MILLISECOND, 0])])

    def settle(self, used: Sequence[tuple[PermitLeg, timedelta]]) -> None:
        """Note when permits were used: each with the time since its send ended.

        Negative: how long it may still take until it is used.
        """
        shards: dict[str, list[tuple[PermitLeg, timedelta]]] = defaultdict(list)
        for leg, since in used:
            shards[leg.keys.tag].append((leg, since))
        calls: list[Call] = []
        for some in shards.values():
            logs, numbers = _numbered([leg for leg, _ in some])
            uses = [
                [since // MILLISECOND, *map(numbers.__getitem__, leg.logs)] for leg, since in some
            ]
            calls.append(([*logs], [json.dumps(uses), *[leg.permit_id for leg, _ in some]]))
        with translated:
            replies_of(self._client, self._settle, calls)

    def give_back(self, unused: Sequence[PermitLeg]) -> None:
        """Return permits that were not used; harmless for those that were not granted.

        Room that this makes in a log for which messages wait is noted for :meth:`waiting`.
        """
        shards: dict[str, list[PermitLeg]] = defaultdict(list)
        for leg in unused:
            shards[leg.keys.tag].append(leg)
        calls: list[Call] = []
        for some in shards.values():
            logs, numbers = _numbered(some)
            numbers_of = [[*map(numbers.__getitem__, leg.logs)] for leg in some]
            ids = [leg.permit_id for leg in some]
            names = [some[0].keys.room, *logs, *map(line_of, logs)]
            calls.append((names, [_ROOM_NOTED_MS, len(logs), json.dumps(numbers_of), *ids]))
        with translated:
            replies_of(self._client, self._give_back, calls)

    def waiting(self, *, logs: int, each: int) -> dict[str, list[bytes]]:
        """Return the messages that room was made for: the first in line of each such log.

        At most ``each`` of at most so many ``logs``.
        """
        with translated:
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._shards:
                pipeline.zrange(keys.room, 0, logs - 1, withscores=True)
            rooms = [(room, name.decode()) for some in pipeline.execute() for name, room in some]
            if not rooms:
                return {}
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            first = sorted(rooms)[:logs]
            for room, name in first:
                most = min(each, int(room))
                pipeline.zrangebyscore(line_of(name), f"({now}", "+inf", start=0, num=most)
            return dict(zip([name for _, name in first], pipeline.execute(), strict=True))

    def give_turns(self, waiting: Mapping[str, Sequence[bytes]], come: Collection[bytes]) -> None:
        """Give the messages in ``come`` their turn now, in the room made for them.

        The other ``waiting`` messages leave the line. Their room is for the next ones.
        """
        with translated:
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            for log, members in waiting.items():
                called = [each for each in members if each in come]
                gone = [each for each in members if each not in come]
                if called:
                    pipeline.zadd(line_of(log), dict.fromkeys(called, now), xx=True)
                    pipeline.zincrby(room_of(log), -len(called), log)
                if gone:
                    pipeline.zrem(line_of(log), *gone)
                if not members:
                    pipeline.zrem(room_of(log), log)
            for room in {room_of(log): None for log in waiting}:
                pipeline.zremrangebyscore(room, "-inf", 0)
            pipeline.execute()

    def forget(self, log: str, counting: Callable[[Sequence[UUID]], Mapping[UUID, bool]]) -> None:
        """Delete permits of messages that do not count against the scope of this log any more."""
        with translated:
            permits = cast("list[bytes]", self._client.zrange(log, 0, -1))
            ids = {each: UUID(bytes=each[:16]) for each in permits}
            stored = counting([*ids.values()]) if permits else {}
            gone = [each for each in permits if not stored.get(ids[each], False)]
            if gone:
                self._client.zrem(log, *gone)

    def restore(
        self,
        taken: Sequence[tuple[PermitLeg, timedelta]],
        markers: Mapping[PermitKeys, str],
        *,
        marker_life: timedelta,
        longest: timedelta,
    ) -> None:
        """Put permits back into the emptied logs of some shards, and nothing into others.

        Each comes with its age, negative while it may be used. ``markers`` are those of the shards
        and are kept alive.
        """
        members: dict[str, dict[str, list[Any]]] = {keys.tag: defaultdict(list) for keys in markers}
        for leg, age in taken:
            if leg.keys.tag in members:
                for log in leg.logs:
                    members[leg.keys.tag][log] += [age // MILLISECOND, leg.permit_id]
        lengths = marker_life // MILLISECOND, longest // MILLISECOND
        calls: list[Call] = []
        for keys, marker in markers.items():
            head: list[Any] = [marker, *lengths]
            names, words = [keys.rebuild], [*head]
            for log, flat in members[keys.tag].items():
                for start in range(0, len(flat), 2 * _MOST_AT_ONCE):
                    if len(words) > 2 * _MOST_AT_ONCE:
                        calls.append((names, words))
                        names, words = [keys.rebuild], [*head]
                    some = flat[start : start + 2 * _MOST_AT_ONCE]
                    names.append(log)
                    words += [len(some) // 2, *some]
            calls.append((names, words))
        with translated:
            replies_of(self._client, self._restore, calls)


def _acquire_call(legs: Sequence[PermitLeg], within: timedelta, at_ms: int) -> Call:
    """Return the call that asks for these legs of one shard, at about that time by its server."""
    logs, numbers = _numbered(legs)
    kinds = dict(zip(dict.fromkeys(logs.values()), count(1)))
    closings = {leg.closing: None for leg in legs if leg.closing}
    names = [legs[0].keys.epoch, *logs, *map(line_of, logs), *closings]
    places = dict(zip(closings, count(2 + 2 * len(logs))))
    described = [[kind.words(at_ms) for kind in kinds], [*map(kinds.__getitem__, logs.values())]]
    wanted = [
        [places.get(leg.closing or "", 0), *map(numbers.__getitem__, leg.logs)] for leg in legs
    ]
    ids = [leg.permit_id for leg in legs]
    return names, [within // MILLISECOND, json.dumps(described), json.dumps(wanted), *ids]


def _numbered(legs: Sequence[PermitLeg]) -> tuple[dict[str, LogKind], dict[str, int]]:
    """Return the logs of some legs, and the number of each, from 1."""
    logs: dict[str, LogKind] = {}
    for leg in legs:
        logs |= leg.logs
    return logs, dict(zip(logs, count(1)))
