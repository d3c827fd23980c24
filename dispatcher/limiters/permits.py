"""The permits of deliveries: which limits a message meets when it is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.permit_logs import (
    InHand,
    LogKind,
    LogLimit,
    PermitAnswer,
    PermitLeg,
    PermitLogs,
)
from dispatcher.quota import Limit
from dispatcher.redis.keys import PermitKeys, permit_parts, shard_of
from dispatcher.scope import NO_SCOPE
from dispatcher.times.clock import Clock

_SCOPES = "scopes"
_MOST_OWED = 1_000
"""The most permits remembered that Redis did not take back; others count until they end."""


def reaches_ms(
    scope_limits: Sequence[LogLimit], channel_limits: Mapping[str, Sequence[LogLimit]]
) -> dict[str, int]:
    """Return how far back each kind of log must reach, in ms: the length of its longest limit."""
    kinds = {_SCOPES: scope_limits} | {
        _channel(name): some for name, some in channel_limits.items()
    }
    return {name: max(map(_reach_ms, some)) for name, some in kinds.items() if some}


class Permit(NamedTuple):
    """One leave to send: for one attempt of one message."""

    message_id: UUID
    token: int
    scope: str
    channel: str


_Legs = tuple[PermitLeg, ...]
"""A request: its leg in the shard of its channel, and before that one the leg of its scope where
that lies in another shard."""


class Permits:
    """Takes a permit for each send from the limits of its scope and of its channel.

    Those of its channel alone where its scope is ``NO_SCOPE``. Raises LimitersUnavailable whenever
    Redis cannot be trusted to answer.
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
        self._shards = permit_parts(namespace, shards)
        self._logs = PermitLogs(client, self._shards, clock=clock)
        self._scope_kind = LogKind(scope_limits, _SCOPES) if scope_limits else None
        # A scope has no herd, and a cancelled message must not make the next one wait.
        self._channel_kinds = {
            self._keys_of(name).channel(name): LogKind(limits, _channel(name), gives_turns=True)
            for name, limits in channel_limits.items()
            if limits
        }
        self._of_channel: dict[str, PermitLeg] = {}
        self._owed: deque[PermitLeg] = deque(maxlen=_MOST_OWED)
        longest = max(reaches_ms(scope_limits, channel_limits).values(), default=0)
        self.memory = timedelta(milliseconds=longest)
        """How far back sends still count against a limit."""

    def acquire(self, wanted: Sequence[Permit], *, within: timedelta) -> list[PermitAnswer]:
        """Ask for permits in order; one granted must be used ``within`` that time or returned.

        One that is refused comes back after ``retry_after``, when its turn has come. Where this
        raises LimitersUnavailable any of them may be granted, and all are to be given back.

        In one shard one script decides. Of several, scopes are asked before the channel, with one
        script in each shard, in one round trip to each node. A process that dies in between leaves
        permits of scopes that are not used. They count as if they were used at the end of that
        time: until they are too old, their scopes are limited more strictly, and never less.
        """
        answers: dict[int, PermitAnswer] = {}
        undecided = dict(enumerate(map(self._legs, wanted)))
        while undecided:
            answers |= self._decided(undecided, within)
            undecided = {each: legs for each, legs in undecided.items() if each not in answers}
        found = [answers[each] for each in range(len(wanted))]
        if self._owed and not all(each.allowed for each in found):
            with suppress(LimitersUnavailable):
                self.give_back(())
        return found

    def _decided(self, requests: Mapping[int, _Legs], within: timedelta) -> dict[int, PermitAnswer]:
        """Ask for these requests; return the answers of those that are decided, at least of one.

        Where a channel refuses, the permit of the scope is given back. A request that was refused
        for such a permit is not decided: by one script it would have met the room.
        """
        scope_legs = {each: legs[0] for each, legs in requests.items() if len(legs) > 1}
        of_scopes = self._logs.acquire(scope_legs, within=within)
        channel_legs = {
            each: legs[-1]
            for each, legs in requests.items()
            if each not in of_scopes or of_scopes[each].allowed
        }
        answers = of_scopes | self._logs.acquire(channel_legs, within=within)
        returned = []
        for each in scope_legs.keys() & channel_legs.keys():
            if not answers[each].allowed:
                returned.append(scope_legs[each])
            elif not channel_legs[each].logs or of_scopes[each].remaining < answers[each].remaining:
                answers[each] = of_scopes[each]
        if returned:
            self._logs.give_back(returned)
            freed = {log for leg in returned for log in leg.logs}
            for each in requests:
                refused_by = channel_legs.get(each) or scope_legs[each]
                if not answers[each].allowed and not freed.isdisjoint(refused_by.logs):
                    del answers[each]
        return answers

    def close(self, channel: str, length: timedelta) -> None:
        """Grant nothing on a channel for ``length``: its provider asked for a pause."""
        self._logs.close(self._keys_of(channel).closing(channel), length)

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        """Note when permits were used: each with the time since its send ended."""
        self._logs.settle(
            [(leg, since) for permit, since in used for leg in self._legs(permit) if leg.logs]
        )

    def extend(self, in_hand: Sequence[Permit], *, within: timedelta) -> None:
        """Let permits that were not used, or whose send lasts, be used ``within`` that time."""
        self.settle([(permit, -within) for permit in in_hand])

    def give_back(self, unused: Sequence[Permit]) -> None:
        """Return permits that were not used; harmless for those that were not granted.

        Where Redis does not take them back, the next call does this once more, and so does a
        refusal: a permit without an attempt must make no message wait.
        """
        owed = [leg for permit in unused for leg in self._legs(permit) if leg.logs]
        with suppress(IndexError):  # other threads take from it, too
            while True:
                owed.append(self._owed.popleft())
        if not owed:
            return
        try:
            self._logs.give_back(owed)
        except LimitersUnavailable:
            self._owed.extend(owed)
            raise

    def waiting(self, *, logs: int, each: int) -> dict[str, list[UUID]]:
        """Return the messages for which returned permits made room: the first in line.

        By log, at most ``each`` of at most so many ``logs``. :meth:`give_turns` ends it.
        """
        found = self._logs.waiting(logs=logs, each=each)
        return {log: [UUID(bytes=member) for member in some] for log, some in found.items()}

    def give_turns(self, waiting: Mapping[str, Sequence[UUID]], come: Collection[UUID]) -> None:
        """Give the messages in ``come`` their turn now, in the room made for them.

        The other ``waiting`` messages leave the line. Their room is for the next ones.
        """
        self._logs.give_turns(
            {log: [each.bytes for each in some] for log, some in waiting.items()},
            {each.bytes for each in come},
        )

    def restore(
        self,
        taken: Sequence[tuple[Permit, timedelta]],
        markers: Mapping[PermitKeys, str],
        *,
        marker_life: timedelta,
    ) -> None:
        """Put permits back into the emptied logs of some shards, and nothing into others.

        Each permit comes with its age, negative while it may be used. ``markers`` are those of the
        shards; in a shard in which another rebuild has its own nothing is written.
        """
        self._logs.restore(
            [(leg, age) for permit, age in taken for leg in self._legs(permit)],
            markers,
            marker_life=marker_life,
            longest=self.memory,
        )

    def forget(self, scope: str, counting: Callable[[Sequence[UUID]], Mapping[UUID, bool]]) -> None:
        """Delete from the log of a scope the permits of messages that do not count against it.

        ``counting`` returns that of the messages that are stored.
        """
        self._logs.forget(self._keys_of(scope).scope(scope), counting)

    def _legs(self, permit: Permit) -> _Legs:
        message_id, token, scope, channel = permit
        permit_id = message_id.bytes + token.to_bytes(4, "big")
        _, keys, logs, closing = self._of_channel.get(channel) or self._channel_leg(channel)
        if scope == NO_SCOPE or self._scope_kind is None:
            return (PermitLeg(permit_id, keys, logs, closing),)
        home = keys if len(self._shards) == 1 else self._keys_of(scope)
        of_scope = {home.scope(scope): self._scope_kind}
        if home is keys:
            return (PermitLeg(permit_id, keys, of_scope | logs, closing),)
        return PermitLeg(permit_id, home, of_scope), PermitLeg(permit_id, keys, logs, closing)

    def _channel_leg(self, channel: str) -> PermitLeg:
        """Return the leg of a channel, without a permit. It never changes."""
        keys = self._keys_of(channel)
        log = keys.channel(channel)
        kind = self._channel_kinds.get(log)
        logs = {} if kind is None else {log: kind}
        leg = self._of_channel[channel] = PermitLeg(b"", keys, logs, keys.closing(channel))
        return leg

    def _keys_of(self, name: str) -> PermitKeys:
        """Return the keys of the shard of a scope or a channel."""
        return self._shards[shard_of(name, len(self._shards))]


def _reach_ms(limit: LogLimit) -> int:
    if isinstance(limit, InHand):
        return 0
    return limit.length_ms if isinstance(limit, Limit) else limit.longest_ms


def _channel(name: str) -> str:
    return f"channel {name}"
