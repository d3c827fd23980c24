"""The permits of deliveries: which limits a message meets when it is sent.

Each scope and each channel with limits has a log: a ZSET with a member for each send of its longest
period. So at most N messages are sent within any span shorter than the period, also when permits
are used late. A refused request takes nothing. Where a log gives turns it gets one, so that a herd
comes back one after the other.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, count
from operator import itemgetter
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, cast
from uuid import UUID

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.limiter import translated
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.redis.client import now_ms
from dispatcher.redis.errors import ERRORS, cause, reason
from dispatcher.redis.keys import LogKeys, PermitKeys, permit_parts, room_of, shard_of
from dispatcher.redis.scripts import Call, replies_of, script
from dispatcher.scope import NO_SCOPE, OWN_SCOPE
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.send_time import from_ms

_SCOPES = "scopes"
_MOST_OWED = 1_000
"""The most permits remembered that Redis did not take back; others count until they end."""
_COST = 10_000
"""Of a permit, in the time of a share that weighs 1."""
_NO_LIMITS: OwnLimits = MappingProxyType({})
_MOST_AT_ONCE = 500
"""One script restores at most so many permits; it then runs for a few milliseconds."""
_SOON = timedelta(minutes=1)
"""One that comes again within this time for another limit keeps its place in the lines before."""
_PERIODS = 5  # the one before, the present one, and those in which turns are looked for
_ROOM_NOTED_MS = 3_600_000
CLOSED_BY_PROVIDER = "closed by its provider"
CLOSED = "Redis permit logs are being rebuilt from SQL (needs a running worker and beat)"
_PROBLEMS = {b"closed": CLOSED, b"elsewhere": "the clocks of the Redis servers differ too much"}


@dataclass(frozen=True, slots=True)
class InHand:
    """At most ``count`` permits that are granted and not settled, returned or too old to use."""

    count: int
    longest_ms: ClassVar[int] = 0

    def __str__(self) -> str:
        return f"concurrency {self.count}"


LogLimit = Limit | CalendarLimit | InHand
OwnLimits = Mapping[tuple[str, str], Sequence[LogLimit]]
"""Of single scopes, by kind and name."""


class Permit(NamedTuple):
    """One leave to send: for one attempt of one message.

    Where a limit is short, a larger ``priority`` goes first, and within one the values of ``share``
    get fair shares. ``scopes`` are further ones, by kind: it needs a permit of each with limits.
    """

    message_id: UUID
    token: int
    scope: str
    channel: str
    priority: int = 0
    share: str = ""
    scopes: Mapping[str, str] | None = None

    @property
    def member(self) -> bytes:
        """Return it as its logs have it, which begins with the 16 bytes of the message's id."""
        return self.message_id.bytes + self.token.to_bytes(4, "big")


class PermitAnswer(NamedTuple):
    """``retry_after`` is 0 when allowed; else ``limit`` names what makes it wait."""

    allowed: bool
    retry_after: timedelta
    limit: str = ""


class _Leg(NamedTuple):
    """The logs of one shard that a permit needs, all or none: their names and kinds.

    ``closing`` names the key that says until when nothing is granted.
    """

    keys: PermitKeys
    logs: dict[str, _LogKind]
    closing: str = ""


_Words = tuple[list[str], list[int | bytes]]
"""Keys and arguments of a call of a script."""


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
        self._limits = limits
        self.follows_calendar = any(isinstance(limit, CalendarLimit) for limit in limits)
        self.gives_turns = gives_turns
        self.longest_ms = max(limit.longest_ms for limit in limits)
        self._reach = reach
        subject = "scope" if reach == _SCOPES else reach
        self.names = [f"{subject}: {limit}" for limit in limits]

    def words(self, at_ms: int) -> dict[str, object]:
        """Return what ``take_permits.lua`` reads of it, at about that time (ms since 1970)."""
        return {
            "limits": [_words_of(limit, at_ms) for limit in self._limits],
            "reach": self._reach,
            "longest": self.longest_ms,
            "gives_turns": self.gives_turns,
        }


def _words_of(limit: LogLimit, at_ms: int) -> dict[str, object]:
    if isinstance(limit, Limit):
        return {"count": limit.count, "length": limit.length_ms}
    if isinstance(limit, CalendarLimit):
        [begins_ms, _] = limit.bounds(at_ms, 1)
        return {"count": limit.count, "bounds": limit.bounds(begins_ms - 1, _PERIODS)}
    return {"count": limit.count}


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
    """Takes a permit for each send from the limits of its scopes, if they have some, and channel.

    ``weights`` are those of shares, by channel; others weigh 1. ``own_limits`` returns those of
    single scopes, by kind and name, the same object until they change: those of own scopes replace
    ``scope_limits``. Raises LimitersUnavailable whenever Redis cannot be trusted to answer.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        namespace: str,
        shards: int,
        scope_limits: Sequence[LogLimit],
        channel_limits: Mapping[str, Sequence[LogLimit]],
        weights: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        own_limits: Callable[[], OwnLimits] = lambda: _NO_LIMITS,
    ) -> None:
        self._client = client
        self._weights = weights
        self._shards = permit_parts(namespace, shards)
        self._scope_kind = _LogKind(scope_limits, _SCOPES) if scope_limits else None
        self.own_limits = own_limits
        # An own scope has no herd, and a cancelled message must not make the next one wait.
        self._channel_kinds = {
            name: _LogKind(limits, _channel(name), gives_turns=True)
            for name, limits in channel_limits.items()
            if limits
        }
        self._known: tuple[OwnLimits, dict[tuple[str, str], _LogKind | None]] = (_NO_LIMITS, {})
        self._owed: deque[Permit] = deque(maxlen=_MOST_OWED)
        self._longest_ms = max(reaches_ms(scope_limits, channel_limits).values(), default=0)

    @property
    def memory(self) -> timedelta:
        """How far back sends still count against a limit."""
        own = (limit.longest_ms for limits in self.own_limits().values() for limit in limits)
        return max(self._longest_ms, *own, 0) * MILLISECOND

    def acquire(self, permits: Sequence[Permit], *, within: timedelta) -> list[PermitAnswer]:
        """Ask for permits, larger priorities first, else in order.

        One that is granted must be used ``within`` that time or returned. One that is refused comes
        back after ``retry_after``, when its turn has come. Where this raises LimitersUnavailable
        any of them may be granted, and all are to be given back.

        In one shard one script decides. Of several, scopes are asked before the channel, one after
        the other, with one script in each shard, in one round trip to each node; the permit of a
        scope is returned where another one or the channel refuses, and makes room for those that it
        was refused. A process that dies in between leaves permits of scopes that are not used:
        until these are too old, their scopes are limited more strictly, and never less.
        """
        self._refresh()
        numbers = sorted(range(len(permits)), key=lambda n: -permits[n].priority)
        legs_of = {n: self._legs_to(permits[n]) for n in numbers}
        answers: dict[int, PermitAnswer] = {}
        partly: list[tuple[Permit, timedelta]] = []
        # Who has fewer legs begins later: in the last round all ask for their channel.
        for left in range(max(map(len, legs_of.values()), default=0), 0, -1):
            asked = {
                n: legs[-left]
                for n, legs in legs_of.items()
                if len(legs) >= left and (n not in answers or answers[n].allowed)
            }
            granted = asked.keys() & answers
            answers |= self._take(permits, asked, within)
            for n in [n for n in granted if not answers[n].allowed]:
                soon = answers[n].retry_after <= _SOON and answers[n].limit != CLOSED_BY_PROVIDER
                partly.append((permits[n], answers[n].retry_after if soon else timedelta(0)))
        self._return(partly)
        return [answers[n] for n in range(len(permits))]

    def _take(
        self, permits: Sequence[Permit], legs: Mapping[int, _Leg], within: timedelta
    ) -> dict[int, PermitAnswer]:
        """Ask for permits in order; in each shard earlier ones count against later ones."""
        answers: dict[int, PermitAnswer] = {}
        shards: dict[PermitKeys, dict[int, _Leg]] = defaultdict(dict)
        for n, leg in legs.items():
            shards[leg.keys][n] = leg
        at_ms = 0
        if any(kind.follows_calendar for leg in legs.values() for kind in leg.logs.values()):
            with translated:
                at_ms = now_ms(self._client)
        calls = [
            self._call_of([(permits[n], leg) for n, leg in of_shard.items()], within, at_ms)
            for of_shard in shards.values()
        ]
        for of_shard, reply in zip(
            shards.values(), self._replies("take_permits", calls), strict=True
        ):
            if reply[0] in _PROBLEMS:
                raise LimitersUnavailable(_PROBLEMS[reply[0]])
            kinds = [*_logs_of([*of_shard.values()]).values()]
            for n, wait, log, limit in zip(of_shard, *[iter(reply)] * 3, strict=True):
                name = kinds[log - 1].names[limit - 1] if log else CLOSED_BY_PROVIDER
                answers[n] = PermitAnswer(wait == 0, wait * MILLISECOND, name if wait else "")
        return answers

    def _call_of(
        self, requests: Sequence[tuple[Permit, _Leg]], within: timedelta, at_ms: int
    ) -> Call:
        """Return keys and arguments of the call for these requests of one shard."""
        legs = [leg for _, leg in requests]
        logs = _logs_of(legs)
        numbers = dict(zip(logs, count(1)))
        kinds = dict(zip(dict.fromkeys(logs.values()), count(1)))
        closings = dict.fromkeys(leg.closing for leg in legs if leg.closing)
        places = dict(zip(closings, count(2 + len(logs) * len(LogKeys._fields))))
        described = {
            "kinds": [kind.words(at_ms) for kind in kinds],
            "logs": [kinds[kind] for kind in logs.values()],
            "requests": [
                {
                    "closing": places.get(leg.closing, 0),
                    "priority": permit.priority,
                    "share": permit.share,
                    "cost": _COST / self._weights.get(permit.channel, {}).get(permit.share, 1),
                    "logs": [numbers[log] for log in leg.logs],
                }
                for permit, leg in requests
            ],
        }
        names = [legs[0].keys.epoch, *chain.from_iterable(map(LogKeys.of, logs)), *closings]
        members = (permit.member for permit, _ in requests)
        return names, [within // MILLISECOND, json.dumps(described), *members]

    def close(self, channel: str, length: timedelta) -> None:
        """Grant nothing on a channel for ``length``; a later end that was set before stays."""
        closing = self._keys_of(channel).closing(channel)
        self._replies("limits_close", [([closing], [length // MILLISECOND, 0])])

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        """Note how long ago the send of each ended; negative: how long it may still take."""
        calls: dict[PermitKeys, _Words] = {}
        for permit, since in used:
            for leg in self._legs_to(permit):
                names, words = calls.setdefault(leg.keys, ([], []))
                names += leg.logs
                words += (since // MILLISECOND, permit.member) * len(leg.logs)
        self._replies("settle_permits", [call for call in calls.values() if call[0]])

    def give_back(self, unused: Sequence[Permit]) -> None:
        """Return permits that were not used; harmless for those that were not granted.

        Room that this makes in a log for which messages wait is noted for :meth:`waiting`. Where
        Redis does not take them back, the next call does this once more: a permit without an
        attempt must make no message wait.
        """
        owed = [*unused]
        with suppress(IndexError):  # other threads take from it, too
            while True:
                owed.append(self._owed.popleft())
        try:
            self._refresh()
            self._return([(permit, timedelta(0)) for permit in owed])
        except LimitersUnavailable:
            self._owed.extend(owed)
            raise

    def _return(self, unused: Sequence[tuple[Permit, timedelta]]) -> None:
        """Return permits; with a wait they keep their places in lines, as they soon come again."""
        calls: dict[PermitKeys, _Words] = {}
        for permit, wait in unused:
            for leg in self._legs_to(permit):
                if leg.logs:
                    start: _Words = [leg.keys.room], [_ROOM_NOTED_MS]
                    names, words = calls.setdefault(leg.keys, start)
                    for log in leg.logs:
                        names += LogKeys.of(log)
                        words += (permit.member, permit.priority, wait // MILLISECOND)
        self._replies("give_back_permits", [*calls.values()])

    def waiting(self, *, logs: int, messages: int) -> dict[str, list[UUID]]:
        """Return the messages for which returned permits made room: the first in line.

        By log: of at most so many ``logs`` so many ``messages``. :meth:`give_turns` ends it.
        """
        with translated:
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._shards:
                pipeline.zrange(keys.room, 0, logs - 1, withscores=True)
            noted = [(name.decode(), int(room)) for reply in pipeline.execute()
                     for name, room in reply]  # fmt: skip
            rooms = sorted(noted, key=itemgetter(1))[:logs]  # else the first shards have all turns
            if not rooms:
                return {}
            now = now_ms(self._client)
            for name, room in rooms:
                most = min(messages, room)
                pipeline.zrangebyscore(LogKeys.of(name).line, f"({now}", "+inf", start=0, num=most)
            lines = pipeline.execute()
        return {
            name: [UUID(bytes=member) for member in line]
            for (name, _), line in zip(rooms, lines, strict=True)
        }

    def give_turns(self, log: str, waiting: Sequence[UUID], come: Collection[UUID]) -> None:
        """Give the messages in ``come`` their turn now, in the room made for them.

        The other ``waiting`` messages leave the line. Their room is for the next ones; where nobody
        waits, it is forgotten.
        """
        called = [member.bytes for member in waiting if member in come]
        gone = [member.bytes for member in waiting if member not in come]
        room, keys = room_of(log), LogKeys.of(log)
        with translated:
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            if called:
                pipeline.zadd(keys.line, dict.fromkeys(called, now), xx=True)
                pipeline.zincrby(room, -len(called), log)
                pipeline.zremrangebyscore(room, "-inf", 0)
            if gone:
                pipeline.zrem(keys.line, *gone)
                pipeline.zrem(keys.order, *gone)
            if not waiting:
                pipeline.zrem(room, log)
            pipeline.execute()

    def restore(
        self,
        taken: Sequence[tuple[Permit, timedelta]],
        markers: Mapping[PermitKeys, str],
        *,
        marker_life: timedelta,
    ) -> None:
        """Put permits back into the emptied logs of some shards, and nothing into others.

        Each permit comes with its age, negative while it may be used, and is put where it counts.
        ``markers`` are those of the shards and are kept alive; in a shard in which another rebuild
        has its own nothing is written.
        """
        self._refresh()
        members: dict[PermitKeys, list[Any]] = {keys: [] for keys in markers}
        for permit, age in taken:
            age_ms = age // MILLISECOND
            for leg in self._legs_to(permit):
                for log, kind in leg.logs.items() if leg.keys in members else ():
                    if age_ms < kind.longest_ms:
                        members[leg.keys].append((log, age_ms, kind.longest_ms, permit.member))
        calls: list[Call] = []
        for keys, of_shard in members.items():
            for start in range(0, max(1, len(of_shard)), _MOST_AT_ONCE):
                part = of_shard[start : start + _MOST_AT_ONCE]
                words = [word for _, *of_permit in part for word in of_permit]
                names = [keys.rebuild, *(log for log, *_ in part)]
                calls.append((names, [markers[keys], marker_life // MILLISECOND, *words]))
        self._replies("restore_permits", calls)

    def forget(
        self,
        scope: str,
        counting: Callable[[Sequence[UUID]], Mapping[UUID, bool]],
        kinds: Iterable[str] = (),
    ) -> None:
        """Delete from the log of a scope the permits of messages that do not count against it.

        Also of those of ``kinds`` with its name. ``counting`` returns that of the messages that
        are stored.
        """
        for kind in (OWN_SCOPE, *kinds):
            _, log = self._log_of(kind, scope)
            with translated:
                permits = cast("list[bytes]", self._client.zrange(log, 0, -1))
                ids = {permit: UUID(bytes=permit[:16]) for permit in permits}
                stored = counting([*ids.values()]) if permits else {}
                gone = [permit for permit, id_ in ids.items() if not stored.get(id_, False)]
                if gone:
                    self._client.zrem(log, *gone)

    def _replies(self, name: str, calls: Sequence[Call]) -> list[Any]:
        try:
            return replies_of(self._client, script(f"limiters/{name}"), calls) if calls else []
        except ERRORS as error:
            raise LimitersUnavailable(reason(error)) from cause(error)

    def _refresh(self) -> None:
        before, own = self._known[0], self.own_limits()
        if own is not before:
            changed = {named for named in {**before, **own} if before.get(named) != own.get(named)}
            if changed and before is not _NO_LIMITS:  # what has just begun knows all from the start
                self._call_waiting(changed)
            self._known = own, {}

    def _call_waiting(self, scopes: Iterable[tuple[str, str]]) -> None:
        """Let all who wait for limits that were changed come: their turns are by those before.

        Each process does so, the last one when it gives out permits by the new limits, too.
        """
        with translated:
            for named in scopes:
                keys, log = self._log_of(*named)
                if waiting := self._client.zcard(LogKeys.of(log).line):
                    self._client.zadd(keys.room, {log: waiting})
                    self._client.pexpire(keys.room, _ROOM_NOTED_MS)

    def _legs_to(self, permit: Permit) -> list[_Leg]:
        """Return the leg in the shard of the channel, and before it those in other shards.

        What is granted by limits that have ended is settled and returned in the logs that there are
        now: in one that ended it counts until it is too old.
        """
        keys, kind = self._keys_of(permit.channel), self._channel_kinds.get(permit.channel)
        of_channel = {} if kind is None else {keys.channel(permit.channel): kind}
        logs: dict[PermitKeys, dict[str, _LogKind]] = defaultdict(dict)
        named = [(OWN_SCOPE, permit.scope)] if permit.scope != NO_SCOPE else []
        for scope in (*named, *(permit.scopes or {}).items()):
            if of_scope := self._kind_of(scope):
                of_shard, log = self._log_of(*scope)
                logs[of_shard][log] = of_scope
        near = logs.pop(keys, {})
        others = [_Leg(of_shard, of_scopes) for of_shard, of_scopes in logs.items()]
        return [*others, _Leg(keys, near | of_channel, keys.closing(permit.channel))]

    def _kind_of(self, scope: tuple[str, str]) -> _LogKind | None:
        own, kinds = self._known
        if scope not in own:
            return self._scope_kind if scope[0] == OWN_SCOPE else None
        if scope not in kinds:  # what other threads find there must be complete
            kind, limits = None, own[scope]
            if limits:
                is_own = scope[0] == OWN_SCOPE
                reach = _SCOPES if is_own else scope[0]
                kind = _LogKind(limits, reach, gives_turns=not is_own)
            kinds[scope] = kind
        return kinds[scope]

    def _log_of(self, kind: str, name: str) -> tuple[PermitKeys, str]:
        """Return the keys of the shard with the log of a scope, and the log."""
        if kind == OWN_SCOPE:
            keys = self._keys_of(name)
            return keys, keys.scope(name)
        keys = self._keys_of(f"{kind}:{name}")
        return keys, keys.further(kind, name)

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
        return tuple(self._of(channel, limits) for channel, limits in self.channel_limits.items())

    def _of(self, channel: str, limits: Sequence[LogLimit]) -> ChannelFill:
        keys = PermitKeys(self.namespace, shard_of(channel, self.shards))
        log = keys.channel(channel)
        with translated:
            now = now_ms(self.client)
            pipeline = self.client.pipeline(transaction=False)
            pipeline.exists(keys.epoch)
            pipeline.get(keys.closing(channel))
            pipeline.zcard(LogKeys.of(log).line)
            for limit in limits:
                pipeline.zcount(log, _since(limit, now), "+inf")
            is_open, closed_until, waiting, *counts = pipeline.execute()
        if not is_open:
            raise LimitersUnavailable(CLOSED)
        ends = int(closed_until or 0)
        return ChannelFill(
            channel=channel,
            closed_until=from_ms(ends) if ends > now else None,
            waiting=waiting,
            limits=tuple(
                LimitFill(limit=str(limit), used=used, most=limit.count)
                for limit, used in zip(limits, counts, strict=True)
            ),
        )


def _logs_of(legs: Sequence[_Leg]) -> dict[str, _LogKind]:
    return {log: kind for leg in legs for log, kind in leg.logs.items()}


def _channel(name: str) -> str:
    return f"channel {name}"


def _since(limit: LogLimit, now: int) -> str:
    """Return the instant from which permits count against a limit, as an argument of ZCOUNT."""
    if isinstance(limit, Limit):
        return f"({now - limit.length_ms}"
    if isinstance(limit, CalendarLimit):
        return str(limit.bounds(now, 1)[0])
    return f"({now + 1}"
