"""The permits of deliveries: which limits a message meets when it is sent.

They are kept in logs, ZSETs with a member for each message of the longest period. So at most N
messages are sent within any span shorter than the period, also when permits are used late. A
refused request takes nothing. In a log with turns it gets one, so that a herd comes back one after
the other.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any, ClassVar, NamedTuple, cast
from uuid import UUID

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.limiter import translated
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.redis.client import now_ms
from dispatcher.redis.keys import PermitKeys, line_of, permit_parts, room_of, shard_of
from dispatcher.redis.scripts import Call, replies_of, script
from dispatcher.scope import NO_SCOPE
from dispatcher.times.clock import MILLISECOND, Clock
from dispatcher.times.send_time import from_ms, to_ms

_SCOPES = "scopes"
_MOST_OWED = 1_000
"""The most permits remembered that Redis did not take back; others count until they end."""
_TRIES = 3
_MOST_AT_ONCE = 500
"""One script restores at most so many permits; it then runs for a few milliseconds."""
_PERIODS = 5  # the one before, the present one, and those in which turns are looked for
_ROOM_NOTED_MS = 3_600_000
CLOSED = "the permit logs are not complete; the sweep rebuilds them from the store"


@dataclass(frozen=True, slots=True)
class InHand:
    """At most ``count`` permits that are granted and not settled, returned or too old to use."""

    count: int
    longest_ms: ClassVar[int] = 0

    def __str__(self) -> str:
        return f"concurrency {self.count}"


LogLimit = Limit | CalendarLimit | InHand


class Permit(NamedTuple):
    """One leave to send: for one attempt of one message."""

    message_id: UUID
    token: int
    scope: str
    channel: str


class PermitAnswer(NamedTuple):
    """``remaining``: what the tightest limit would still give; ``retry_after``: 0 when allowed."""

    allowed: bool
    remaining: int
    retry_after: timedelta


class _Leg(NamedTuple):
    """One permit from logs of one shard, all or none. ``logs`` are their names and kinds.

    ``permit_id`` makes it idempotent; it begins with the 16 bytes of the message's id. ``closing``
    names the key that says until when nothing is granted.
    """

    permit_id: bytes
    keys: PermitKeys
    logs: dict[str, _LogKind]
    closing: str | None = None


_Words = tuple[list[str], list[int | bytes]]
"""Keys and arguments of a call of a script."""
_Legs = tuple[_Leg, ...]
"""A request: its leg in the shard of its channel, and before that one the leg of its scope where
that lies in another shard."""


class _LogKind:
    """What the logs of one kind have in common.

    ``reach`` is the name under which the epoch says how far back they reach, where that is further
    than these limits need. Where a log ``gives_turns`` a refused request has its turn after
    ``retry_after``, behind all that were refused before; one that does not come then keeps others
    waiting, for a minute at most.
    """

    def __init__(
        self, limits: Sequence[LogLimit], reach: str, *, gives_turns: bool = False
    ) -> None:
        rolling = [limit for limit in limits if isinstance(limit, Limit)]
        self._calendars = [limit for limit in limits if isinstance(limit, CalendarLimit)]
        self._lengths = [word for limit in rolling for word in (limit.count, limit.length_ms)]
        self._most = min((limit.count for limit in limits if isinstance(limit, InHand)), default=0)
        self._last = (reach, int(gives_turns))

    def words(self, at_ms: int) -> list[object]:
        """Return what ``take_permits.lua`` reads of it, at about that time (ms since 1970)."""
        calendars = [
            [limit.count, *limit.bounds(limit.bounds(at_ms, 1)[0] - 1, _PERIODS)]
            for limit in self._calendars
        ]
        return [self._lengths, calendars, self._most, *self._last]


def reaches_ms(
    scope_limits: Sequence[LogLimit], channel_limits: Mapping[str, Sequence[LogLimit]]
) -> dict[str, int]:
    """Return how far back each kind of log must reach, in ms: the length of its longest limit."""
    kinds = {_SCOPES: scope_limits}
    kinds |= {_channel(name): limits for name, limits in channel_limits.items()}
    return {
        name: max(limit.longest_ms for limit in limits) for name, limits in kinds.items() if limits
    }


class Permits:
    """Takes a permit for each send from the limits of its scope, if it has one, and its channel.

    ``clock`` only guesses in which calendar periods the time of Redis lies. Raises
    LimitersUnavailable whenever Redis cannot be trusted to answer.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        namespace: str,
        shards: int,
        scope_limits: Sequence[LogLimit],
        channel_limits: Mapping[str, Sequence[LogLimit]],
        clock: Clock,
    ) -> None:
        self._client = client
        self._clock = clock
        self._shards = permit_parts(namespace, shards)
        self._scope_kind = _LogKind(scope_limits, _SCOPES) if scope_limits else None
        # A scope has no herd, and a cancelled message must not make the next one wait.
        self._channel_kinds = {
            name: _LogKind(limits, _channel(name), gives_turns=True)
            for name, limits in channel_limits.items()
            if limits
        }
        self._owed: deque[_Leg] = deque(maxlen=_MOST_OWED)
        # By how much the server of each shard is ahead of the clock, as far as that is known.
        self._ahead_ms: dict[str, int] = {}
        longest = max(reaches_ms(scope_limits, channel_limits).values(), default=0)
        self.memory = timedelta(milliseconds=longest)
        """How far back sends still count against a limit."""

    def acquire(self, permits: Sequence[Permit], *, within: timedelta) -> list[PermitAnswer]:
        """Ask for permits in order; one granted must be used ``within`` that time or returned.

        One that is refused comes back after ``retry_after``, when its turn has come. Where this
        raises LimitersUnavailable any of them may be granted, and all are to be given back.

        In one shard one script decides. Of several, scopes are asked before the channel, with one
        script in each shard, in one round trip to each node. A process that dies in between leaves
        permits of scopes that are not used: until these are too old, their scopes are limited more
        strictly, and never less.
        """
        answers: dict[int, PermitAnswer] = {}
        undecided = dict(enumerate(map(self._legs, permits)))
        while undecided:
            answers |= self._decided(undecided, within)
            undecided = {n: legs for n, legs in undecided.items() if n not in answers}
        in_order = [answers[n] for n in range(len(permits))]
        if self._owed and not all(answer.allowed for answer in in_order):
            with suppress(LimitersUnavailable):
                self.give_back(())
        return in_order

    def _decided(self, requests: Mapping[int, _Legs], within: timedelta) -> dict[int, PermitAnswer]:
        """Ask for these requests; return the answers of those that are decided, at least of one.

        Where a channel refuses, the permit of the scope is given back. A request that was refused
        for such a permit is not decided: by one script it would have met the room.
        """
        scope_legs = {n: legs[0] for n, legs in requests.items() if len(legs) > 1}
        of_scopes = self._take(scope_legs, within)
        channel_legs = {
            n: legs[-1]
            for n, legs in requests.items()
            if n not in of_scopes or of_scopes[n].allowed
        }
        answers = of_scopes | self._take(channel_legs, within)
        returned = []
        for n in scope_legs.keys() & channel_legs.keys():
            if not answers[n].allowed:
                returned.append(scope_legs[n])
            elif not channel_legs[n].logs or of_scopes[n].remaining < answers[n].remaining:
                answers[n] = of_scopes[n]
        if returned:
            self._return(returned)
            freed = {log for leg in returned for log in leg.logs}
            for n in requests:
                refused_by = channel_legs.get(n) or scope_legs[n]
                if not answers[n].allowed and not freed.isdisjoint(refused_by.logs):
                    del answers[n]
        return answers

    def _take(self, legs: Mapping[int, _Leg], within: timedelta) -> dict[int, PermitAnswer]:
        """Ask for permits in order; in each shard earlier ones count against later ones."""
        answers: dict[int, PermitAnswer] = {}
        shards: dict[str, dict[int, _Leg]] = defaultdict(dict)
        for n, leg in legs.items():
            shards[leg.keys.tag][n] = leg
        for _ in range(_TRIES):
            if not shards:
                break
            local_ms = to_ms(self._clock.now())
            calls = [
                _take_call([*of_shard.values()], within, local_ms + self._ahead_ms.get(tag, 0))
                for tag, of_shard in shards.items()
            ]
            replies = self._replies("take_permits", calls)
            for tag, reply in zip([*shards], replies, strict=True):
                if reply[0] == b"closed":
                    raise LimitersUnavailable(CLOSED)
                if reply[0] == b"elsewhere":
                    self._ahead_ms[tag] = reply[1] - local_ms
                    continue
                numbers = shards.pop(tag)
                for n, wait, left in zip(numbers, reply[::2], reply[1::2], strict=True):
                    answers[n] = PermitAnswer(wait == 0, left, wait * MILLISECOND)
        if shards:
            raise LimitersUnavailable("the clock of Redis or of this machine keeps jumping")
        return answers

    def close(self, channel: str, length: timedelta) -> None:
        """Grant nothing on a channel for ``length``; a later end that was set before stays."""
        closing = self._keys_of(channel).closing(channel)
        self._replies("limits_close", [([closing], [length // MILLISECOND, 0])])

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        """Note how long ago the send of each ended; negative: how long it may still take."""
        calls: dict[str, _Words] = defaultdict(lambda: ([], []))
        for permit, since in used:
            for leg in self._legs(permit):
                logs, words = calls[leg.keys.tag]
                logs += leg.logs
                words += (since // MILLISECOND, leg.permit_id) * len(leg.logs)
        self._replies("settle_permits", [call for call in calls.values() if call[0]])

    def give_back(self, unused: Sequence[Permit]) -> None:
        """Return permits that were not used; harmless for those that were not granted.

        Room that this makes in a log for which messages wait is noted for :meth:`waiting`. Where
        Redis does not take them back, the next call does this once more, and so does a refusal: a
        permit without an attempt must make no message wait.
        """
        owed = [leg for permit in unused for leg in self._legs(permit) if leg.logs]
        with suppress(IndexError):  # other threads take from it, too
            while True:
                owed.append(self._owed.popleft())
        if not owed:
            return
        try:
            self._return(owed)
        except LimitersUnavailable:
            self._owed.extend(owed)
            raise

    def _return(self, unused: Sequence[_Leg]) -> None:
        calls: dict[str, _Words] = {}
        for leg in unused:
            start: _Words = ([leg.keys.room], [_ROOM_NOTED_MS])
            names, words = calls.setdefault(leg.keys.tag, start)
            for log in leg.logs:
                names += (log, line_of(log))
                words.append(leg.permit_id)
        self._replies("give_back_permits", [*calls.values()])

    def waiting(self, *, logs: int, each: int) -> dict[str, list[UUID]]:
        """Return the messages for which returned permits made room: the first in line.

        By log, at most ``each`` of at most so many ``logs``. :meth:`give_turns` ends it.
        """
        with translated:
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._shards:
                pipeline.zrange(keys.room, 0, logs - 1, withscores=True)
            replies = pipeline.execute()
            first = sorted((room, name.decode()) for reply in replies for name, room in reply)[
                :logs
            ]
            if not first:
                return {}
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            for room, name in first:
                most = min(each, int(room))
                pipeline.zrangebyscore(line_of(name), f"({now}", "+inf", start=0, num=most)
            lines = pipeline.execute()
        return {
            name: [UUID(bytes=member) for member in line]
            for (_, name), line in zip(first, lines, strict=True)
        }

    def give_turns(self, waiting: Mapping[str, Sequence[UUID]], come: Collection[UUID]) -> None:
        """Give the messages in ``come`` their turn now, in the room made for them.

        The other ``waiting`` messages leave the line. Their room is for the next ones.
        """
        with translated:
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            for log, members in waiting.items():
                called = [member.bytes for member in members if member in come]
                gone = [member.bytes for member in members if member not in come]
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

    def restore(
        self,
        taken: Sequence[tuple[Permit, timedelta]],
        markers: Mapping[PermitKeys, str],
        *,
        marker_life: timedelta,
    ) -> None:
        """Put permits back into the emptied logs of some shards, and nothing into others.

        Each permit comes with its age, negative while it may be used. ``markers`` are those of the
        shards and are kept alive; in a shard in which another rebuild has its own nothing is
        written.
        """
        members: dict[str, list[tuple[str, int, bytes]]] = {keys.tag: [] for keys in markers}
        for permit, age in taken:
            for leg in self._legs(permit):
                for log in leg.logs if leg.keys.tag in members else ():
                    members[leg.keys.tag].append((log, age // MILLISECOND, leg.permit_id))
        lengths = marker_life // MILLISECOND, self.memory // MILLISECOND
        calls: list[Call] = []
        for keys, marker in markers.items():
            of_shard = members[keys.tag]
            for start in range(0, max(1, len(of_shard)), _MOST_AT_ONCE):
                part = of_shard[start : start + _MOST_AT_ONCE]
                words = [word for _, *of_permit in part for word in of_permit]
                names = [keys.rebuild, *(log for log, *_ in part)]
                calls.append((names, [marker, *lengths, *words]))
        self._replies("restore_permits", calls)

    def forget(self, scope: str, counting: Callable[[Sequence[UUID]], Mapping[UUID, bool]]) -> None:
        """Delete from the log of a scope the permits of messages that do not count against it.

        ``counting`` returns that of the messages that are stored.
        """
        log = self._keys_of(scope).scope(scope)
        with translated:
            permits = cast("list[bytes]", self._client.zrange(log, 0, -1))
            ids = {permit: UUID(bytes=permit[:16]) for permit in permits}
            stored = counting([*ids.values()]) if permits else {}
            gone = [permit for permit, id_ in ids.items() if not stored.get(id_, False)]
            if gone:
                self._client.zrem(log, *gone)

    def _replies(self, name: str, calls: Sequence[Call]) -> list[Any]:
        with translated:
            return replies_of(self._client, script(f"limiters/{name}"), calls)

    def _legs(self, permit: Permit) -> _Legs:
        message_id, token, scope, channel = permit
        keys, kind = self._keys_of(channel), self._channel_kinds.get(channel)
        leg = _Leg(
            permit_id=message_id.bytes + token.to_bytes(4, "big"),
            keys=keys,
            logs={} if kind is None else {keys.channel(channel): kind},
            closing=keys.closing(channel),
        )
        if scope == NO_SCOPE or self._scope_kind is None:
            return (leg,)
        home = self._keys_of(scope)
        of_scope = {home.scope(scope): self._scope_kind}
        if home is keys:
            return (leg._replace(logs=of_scope | leg.logs),)
        return _Leg(leg.permit_id, home, of_scope), leg

    def _keys_of(self, name: str) -> PermitKeys:
        return self._shards[shard_of(name, len(self._shards))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFill:
    """One limit as text, and how many of its permits count now."""

    limit: str
    used: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFill:
    """The limits of one channel, how many messages wait in its line, until when it is closed."""

    channel: str
    limits: tuple[LimitFill, ...]
    waiting: int
    closed_until: datetime | None


@dataclass(frozen=True, kw_only=True)
class Fills:
    """Reads the permit logs of channels. Raises LimitersUnavailable like Permits."""

    client: redis.Redis
    namespace: str
    shards: int
    channel_limits: Mapping[str, Sequence[LogLimit]]

    def read(self) -> tuple[ChannelFill, ...]:
        with translated:
            now = now_ms(self.client)
            pipeline = self.client.pipeline(transaction=False)
            for channel, limits in self.channel_limits.items():
                keys = PermitKeys(self.namespace, shard_of(channel, self.shards))
                log = keys.channel(channel)
                pipeline.exists(keys.epoch)
                pipeline.get(keys.closing(channel))
                pipeline.zcard(line_of(log))
                for limit in limits:
                    pipeline.zcount(log, _since(limit, now), "+inf")
            answers = iter(pipeline.execute())
        fills = []
        for channel, limits in self.channel_limits.items():
            if not next(answers):
                raise LimitersUnavailable(CLOSED)
            closed_until = int(next(answers) or 0)
            fills.append(
                ChannelFill(
                    channel=channel,
                    closed_until=from_ms(closed_until) if closed_until > now else None,
                    waiting=next(answers),
                    limits=tuple(
                        LimitFill(limit=str(limit), used=next(answers), most=limit.count)
                        for limit in limits
                    ),
                )
            )
        return tuple(fills)


def _take_call(legs: Sequence[_Leg], within: timedelta, at_ms: int) -> Call:
    """Return the call that asks for these legs of one shard, at about that time by its server."""
    logs: dict[str, _LogKind] = {}
    for leg in legs:
        logs |= leg.logs
    numbers = dict(zip(logs, count(1)))
    kinds = dict(zip(dict.fromkeys(logs.values()), count(1)))
    closings = {leg.closing: None for leg in legs if leg.closing}
    names = [legs[0].keys.epoch, *logs, *map(line_of, logs), *closings]
    places = dict(zip(closings, count(2 + 2 * len(logs))))
    described = [[kind.words(at_ms) for kind in kinds], [kinds[kind] for kind in logs.values()]]
    wanted = [
        [places.get(leg.closing or "", 0), *(numbers[log] for log in leg.logs)] for leg in legs
    ]
    ids = [leg.permit_id for leg in legs]
    return names, [within // MILLISECOND, json.dumps(described), json.dumps(wanted), *ids]


def _channel(name: str) -> str:
    return f"channel {name}"


def _since(limit: LogLimit, now: int) -> str:
    """Return the instant from which permits count against a limit, as an argument of ZCOUNT."""
    if isinstance(limit, Limit):
        return f"({now - limit.length_ms}"
    if isinstance(limit, CalendarLimit):
        return str(limit.bounds(now, 1)[0])
    return f"({now + 1}"
