"""The permits of deliveries: which limits a message meets when it is sent, and in which logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.permit_log import (
    InHand,
    LogLimit,
    PermitAnswer,
    PermitLog,
    PermitRequest,
)
from dispatcher.quota import Limit
from dispatcher.redis.keys import PermitKeys
from dispatcher.scope import NOBODY
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


class Permits:
    """Takes a permit for each send from the limits of its scope and of its channel.

    Those of its channel alone where its scope is ``NOBODY``. Raises LimitersUnavailable whenever
    Redis cannot be trusted to answer.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        namespace: str,
        scope_limits: Sequence[LogLimit],
        channel_limits: Mapping[str, Sequence[LogLimit]],
        clock: Clock,
    ) -> None:
        self._keys = PermitKeys(namespace)
        self._log = PermitLog(
            client, epoch_key=self._keys.epoch, room_key=self._keys.room, clock=clock
        )
        self._scope_limits = scope_limits
        self._channel_limits = {name: limits for name, limits in channel_limits.items() if limits}
        self._of_channel: dict[str, tuple[tuple[str, ...], str]] = {}
        self._owed: deque[PermitRequest] = deque(maxlen=_MOST_OWED)
        longest = max(reaches_ms(scope_limits, channel_limits).values(), default=0)
        self.memory = timedelta(milliseconds=longest)
        """How far back sends still count against a limit."""

    def acquire(self, wanted: Sequence[Permit], *, hold: timedelta) -> list[PermitAnswer]:
        """Ask for permits in order; one granted must be used within ``hold`` or returned.

        One that is refused comes back after ``retry_after``, when its turn has come.
        """
        limits: dict[str, Sequence[LogLimit]] = {}
        reaches: dict[str, str] = {}
        for permit in wanted:
            log = self._keys.scope(permit.scope)
            limits[log], reaches[log] = self._scope_limits, _SCOPES
            if permit.channel in self._channel_limits:
                log = self._keys.channel(permit.channel)
                limits[log] = self._channel_limits[permit.channel]
                reaches[log] = _channel(permit.channel)
        requests = [self._request(each) for each in wanted]
        # A scope has no herd, and a cancelled message must not make the next one wait.
        lined = {log for log, reach in reaches.items() if reach != _SCOPES}
        answers = self._log.acquire(requests, limits, hold=hold, reaches=reaches, lined=lined)
        if self._owed and not all(each.allowed for each in answers):
            with suppress(LimitersUnavailable):
                self.give_back(())
        return answers

    def close(self, channel: str, length: timedelta) -> None:
        """Grant nothing on a channel for ``length``: its provider asked for a pause."""
        self._log.close(self._keys.closing(channel), length)

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        """Note when permits were used: each with the time since its send ended."""
        self._log.settle([(self._request(permit), since) for permit, since in used])

    def extend(self, in_hand: Sequence[Permit], *, hold: timedelta) -> None:
        """Let permits that were not used, or whose send lasts, be used within ``hold``."""
        self._log.settle([(self._request(permit), -hold) for permit in in_hand])

    def give_back(self, unused: Sequence[Permit]) -> None:
        """Return permits that were not used; harmless for those that were not granted.

        Where Redis does not take them back, the next call does this once more, and so does a
        refusal: a permit without an attempt must make no message wait.
        """
        owed = [self._request(permit) for permit in unused]
        with suppress(IndexError):
            while True:
                owed.append(self._owed.popleft())
        if not owed:
            return
        try:
            self._log.give_back(owed)
        except LimitersUnavailable:
            self._owed.extend(owed)
            raise

    def waiting(self, *, logs: int, each: int) -> dict[str, list[UUID]]:
        """Return the messages for which returned permits made room: the first in line.

        By log, at most ``each`` of at most so many ``logs``. :meth:`called` ends it.
        """
        found = self._log.waiting(logs=logs, each=each)
        return {log: [UUID(bytes=member) for member in some] for log, some in found.items()}

    def called(self, waiting: Mapping[str, Sequence[UUID]], come: Collection[UUID]) -> None:
        """Give those of the messages that come their turn now, in the room made for them.

        The others leave the line. Their room is for the next ones.
        """
        self._log.called(
            {log: [each.bytes for each in some] for log, some in waiting.items()},
            {each.bytes for each in come},
        )

    def restore(
        self, taken: Sequence[tuple[Permit, timedelta]], *, marker: str, marker_life: timedelta
    ) -> None:
        """Put permits back into emptied logs: each with its age, negative while it may be used.

        ``marker`` is that of the rebuild; when another rebuild has its own, nothing is written.
        """
        self._log.restore(
            [(self._request(permit), age) for permit, age in taken],
            rebuild_key=self._keys.rebuild,
            marker=marker,
            marker_life=marker_life,
            longest=self.memory,
        )

    def _request(self, permit: Permit) -> PermitRequest:
        message_id, token, scope, channel = permit
        logs, closing = self._of_channel.get(channel) or self._named(channel)
        if scope != NOBODY:
            logs = (self._keys.scope(scope), *logs)
        return PermitRequest(message_id.bytes + token.to_bytes(4, "big"), logs, closing)

    def _named(self, channel: str) -> tuple[tuple[str, ...], str]:
        """Return the logs of a channel, and the name of its closing. They never change."""
        logs = (self._keys.channel(channel),) if channel in self._channel_limits else ()
        self._of_channel[channel] = (logs, self._keys.closing(channel))
        return self._of_channel[channel]


def _reach_ms(limit: LogLimit) -> int:
    if isinstance(limit, InHand):
        return 0
    return limit.length_ms if isinstance(limit, Limit) else limit.longest_ms


def _channel(name: str) -> str:
    return f"channel {name}"
