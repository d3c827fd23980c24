"""How full the limits of channels are, read without taking anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.limiter import translated
from dispatcher.limiters.permits import CLOSED, InHand, LogLimit
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.redis.client import now_ms
from dispatcher.redis.keys import line_of, permit_parts, shard_of
from dispatcher.times.send_time import from_ms


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


class Fills:
    """Reads the permit logs of channels. Raises LimitersUnavailable like Permits."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        namespace: str,
        shards: int,
        channel_limits: Mapping[str, Sequence[LogLimit]],
    ) -> None:
        self._client = client
        self._parts = permit_parts(namespace, shards)
        self._limits = channel_limits

    def read(self) -> tuple[ChannelFill, ...]:
        """Return how full the limits of every channel are."""
        with translated:
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            for channel, limits in self._limits.items():
                keys = self._parts[shard_of(channel, len(self._parts))]
                log = keys.channel(channel)
                pipeline.exists(keys.epoch)
                pipeline.get(keys.closing(channel))
                pipeline.zcard(line_of(log))
                for each in limits:
                    pipeline.zcount(log, _since(each, now), "+inf")
            answers = iter(pipeline.execute())
        return tuple(
            _fill(channel, limits, answers, now) for channel, limits in self._limits.items()
        )


def _fill(
    channel: str, limits: Sequence[LogLimit], answers: Iterator[Any], now: int
) -> ChannelFill:
    if not next(answers):
        raise LimitersUnavailable(CLOSED)
    closed_until = int(next(answers) or 0)
    return ChannelFill(
        channel=channel,
        closed_until=from_ms(closed_until) if closed_until > now else None,
        waiting=next(answers),
        limits=tuple(
            LimitFill(
                limit=f"concurrency {each.count}" if isinstance(each, InHand) else str(each),
                used=next(answers),
                most=each.count,
            )
            for each in limits
        ),
    )


def _since(limit: LogLimit, now: int) -> str:
    """Return the instant from which permits count against a limit, as an argument of ZCOUNT."""
    if isinstance(limit, Limit):
        return f"({now - limit.length_ms}"
    if isinstance(limit, CalendarLimit):
        return str(limit.bounds(now, 1)[0])
    return f"({now + 1}"
