"""The log of the permits of deliveries: exact, in a ZSET, also when a permit is used late.

At most N messages are sent within any span shorter than the period, wherever the span begins. The
price is memory: one member per message of the longest period. A refused request takes nothing. In
a log with a line it gets a turn, so that a herd comes back one after the other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.base import translated
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.redis.keys import line_of
from dispatcher.redis.scripts import replies_of, source
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import to_ms

_MILLISECOND = timedelta(milliseconds=1)
_NO_WAIT = timedelta(0)
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


class PermitRequest(NamedTuple):
    """One permit wanted from several logs, all or none.

    ``permit_id`` makes it idempotent; it begins with the 16 bytes of the message's id. ``closing``
    names the key that says until when nothing is granted.
    """

    permit_id: bytes
    logs: tuple[str, ...]
    closing: str | None = None


@dataclass(frozen=True, slots=True)
class InHand:
    """At most ``count`` permits that are granted and not settled, returned or too old to use."""

    count: int


LogLimit = Limit | CalendarLimit | InHand
_Words = Sequence[str | int | bytes]


class PermitLog:
    """Permits for groups, in one script.

    ``epoch_key`` names the key without which nothing is granted, ``room_key`` that of the logs in
    which permits were returned while messages waited. ``clock`` only guesses in which
    calendar periods the time of Redis lies. Raises LimitersUnavailable whenever Redis cannot be
    trusted to answer.
    """

    def __init__(self, client: redis.Redis, *, epoch_key: str, room_key: str, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._ahead_ms = 0  # by how much Redis is ahead of the clock, as far as that is known
        self._epoch_key = epoch_key
        self._room_key = room_key
        self._acquire = client.register_script(source("limiters/take_permits"))
        self._settle = client.register_script(source("limiters/settle_permits"))
        self._restore = client.register_script(source("limiters/restore_permits"))
        self._close = client.register_script(source("limiters/limits_close"))
        self._give_back = client.register_script(source("limiters/give_back_permits"))

    def acquire(
        self,
        requests: Sequence[PermitRequest],
        limits: Mapping[str, Sequence[LogLimit]],
        *,
        hold: timedelta,
        reaches: Mapping[str, str] | None = None,
        lined: Collection[str] = (),
    ) -> list[PermitAnswer]:
        """Ask for permits in order; earlier ones count against later ones.

        ``limits`` gives the limits of each log, ``reaches`` the name under which the epoch says
        how far back it reaches, where that is further than these limits need. A permit granted
        must be used within ``hold`` from now or returned, and settled once it is used. One that
        is refused by a log that is ``lined`` has its turn after ``retry_after``, behind all that
        were refused before. Its message should come back then; one that does not keeps others
        waiting, until a minute after its turn at most.
        """
        logs = sorted({log for request in requests for log in request.logs})
        numbers = {log: number for number, log in enumerate(logs, start=1)}
        names = [self._epoch_key, *logs]
        lines = _appended(names, map(line_of, logs))
        closings = _appended(names, {each.closing for each in requests if each.closing})
        wanted = [
            [closings.get(each.closing or "", 0), *[numbers[log] for log in each.logs]]
            for each in requests
        ]
        ids = [request.permit_id for request in requests]
        kind_of: dict[tuple[tuple[LogLimit, ...], str], int] = {}
        of_log = {}
        for log in logs:
            kind = (tuple(limits[log]), (reaches or {}).get(log, ""))
            kind_number = kind_of.setdefault(kind, len(kind_of) + 1)
            of_log[log] = (kind_number, lines[line_of(log)], int(log in lined))
        for _ in range(_TRIES):
            local_ms = to_ms(self._clock.now())
            now_ms = local_ms + self._ahead_ms
            kinds = [[*_arguments(some, now_ms), name] for some, name in kind_of]
            described = [kinds, [part for log in logs for part in of_log[log]]]
            words: _Words = [hold // _MILLISECOND, json.dumps(described), json.dumps(wanted), *ids]
            with translated():
                [reply] = replies_of(self._client, self._acquire, [(names, words)])
            if reply and reply[0] == b"closed":
                raise LimitersUnavailable(CLOSED)
            if not reply or reply[0] != b"elsewhere":
                break
            self._ahead_ms = reply[1] - local_ms
        else:
            raise LimitersUnavailable("the clock of Redis or of this machine keeps jumping")
        return [
            PermitAnswer(wait == 0, left, wait * _MILLISECOND if wait else _NO_WAIT)
            for wait, left in zip(reply[::2], reply[1::2], strict=True)
        ]

    def close(self, closing: str, length: timedelta) -> None:
        """Grant nothing to requests with this closing for so long; the later end holds."""
        with translated():
            self._close(keys=[closing], args=[length // _MILLISECOND, 0])

    def settle(self, used: Sequence[tuple[PermitRequest, timedelta]]) -> None:
        """Note when permits were used: each with the time since its send ended.

        Negative: how long it may still take until it is used.
        """
        logs = sorted({log for request, _ in used for log in request.logs})
        numbers = {log: number for number, log in enumerate(logs, start=1)}
        uses = [
            [since // _MILLISECOND, *[numbers[log] for log in request.logs]]
            for request, since in used
        ]
        words: _Words = [json.dumps(uses), *[request.permit_id for request, _ in used]]
        with translated():
            replies_of(self._client, self._settle, [(logs, words)])

    def give_back(self, unused: Sequence[PermitRequest]) -> None:
        """Return permits that were not used; harmless for those that were not granted.

        Room that this makes in a log for which messages wait is noted for :meth:`waiting`.
        """
        logs = sorted({log for request in unused for log in request.logs})
        numbers = {log: number for number, log in enumerate(logs, start=1)}
        numbers_of = [[numbers[log] for log in request.logs] for request in unused]
        words: _Words = [
            _ROOM_NOTED_MS,
            len(logs),
            json.dumps(numbers_of),
            *[request.permit_id for request in unused],
        ]
        with translated():
            names = [self._room_key, *logs, *map(line_of, logs)]
            replies_of(self._client, self._give_back, [(names, words)])

    def waiting(self, *, logs: int, each: int) -> dict[str, list[bytes]]:
        """Return the messages that room was made for: the first in line of each such log.

        At most ``each`` of at most so many ``logs``.
        """
        with translated():
            rooms: Any = self._client.zrange(self._room_key, 0, logs - 1, withscores=True)
            if not rooms:
                return {}
            seconds, micros = self._client.time()
            now_ms = int(seconds) * 1_000 + int(micros) // 1_000
            pipeline = self._client.pipeline(transaction=False)
            names = [name.decode() for name, _ in rooms]
            for name, (_, room) in zip(names, rooms, strict=True):
                pipeline.zrange(
                    line_of(name),
                    f"({now_ms}",
                    "+inf",
                    byscore=True,
                    offset=0,
                    num=min(each, int(room)),
                )
            return dict(zip(names, pipeline.execute(), strict=True))

    def called(self, waiting: Mapping[str, Sequence[bytes]], come: Collection[bytes]) -> None:
        """Give those of the messages that come their turn now, in the room made for them.

        The others leave the line. Their room is for the next ones.
        """
        with translated():
            seconds, micros = self._client.time()
            now_ms = int(seconds) * 1_000 + int(micros) // 1_000
            pipeline = self._client.pipeline(transaction=False)
            for log, members in waiting.items():
                called = [each for each in members if each in come]
                gone = [each for each in members if each not in come]
                if called:
                    pipeline.zadd(line_of(log), dict.fromkeys(called, now_ms), xx=True)
                    pipeline.zincrby(self._room_key, -len(called), log)
                if gone:
                    pipeline.zrem(line_of(log), *gone)
                if not members:
                    pipeline.zrem(self._room_key, log)
            pipeline.zremrangebyscore(self._room_key, "-inf", 0)
            pipeline.execute()

    def restore(
        self,
        taken: Sequence[tuple[PermitRequest, timedelta]],
        *,
        rebuild_key: str,
        marker: str,
        marker_life: timedelta,
        longest: timedelta,
    ) -> None:
        """Put permits back into emptied logs: each with its age, negative while it may be used."""
        members: dict[str, list[Any]] = defaultdict(list)
        for request, age in taken:
            for log in request.logs:
                members[log] += [age // _MILLISECOND, request.permit_id]
        head: list[Any] = [marker, marker_life // _MILLISECOND, longest // _MILLISECOND]
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            names, words = [rebuild_key], [*head]
            for log, flat in members.items():
                for start in range(0, len(flat), 2 * _MOST_AT_ONCE):
                    some = flat[start : start + 2 * _MOST_AT_ONCE]
                    names.append(log)
                    words += [len(some) // 2, *some]
                    if len(words) > 2 * _MOST_AT_ONCE:
                        self._restore(keys=names, args=words, client=pipeline)
                        names, words = [rebuild_key], [*head]
            if len(names) > 1:
                self._restore(keys=names, args=words, client=pipeline)
            pipeline.execute()


def _appended(names: list[str], more: Iterable[str]) -> dict[str, int]:
    """Append to the keys of a script; return the number of each, from 1."""
    found = {name: len(names) + position for position, name in enumerate(sorted(more), start=1)}
    names += found
    return found


def _arguments(limits: Sequence[LogLimit], now_ms: int) -> list[object]:
    """Return the arguments for some limits, at about that time (ms since 1970)."""
    lengths = [part for each in limits if isinstance(each, Limit)
               for part in (each.count, each.length_ms)]  # fmt: skip
    calendars = []
    for each in limits:
        if isinstance(each, CalendarLimit):
            before_ms = each.bounds(now_ms, 1)[0] - 1
            calendars.append([each.count, *each.bounds(before_ms, _PERIODS)])
    in_hand = min((each.count for each in limits if isinstance(each, InHand)), default=0)
    return [lengths, calendars, in_hand]
