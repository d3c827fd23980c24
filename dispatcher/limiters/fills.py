"""How full the limits of the channels are. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.base import translated
from dispatcher.limiters.permit_log import CLOSED, InHand, LogLimit
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.redis.keys import PermitKeys, line_of
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
        channel_limits: Mapping[str, Sequence[LogLimit]],
    ) -> None:
        self._client = client
        self._keys = PermitKeys(namespace)
        self._limits = channel_limits

    def read(self) -> tuple[ChannelFill, ...]:
        """Return how full the limits of every channel are."""
        with translated():
            seconds, micros = self._client.time()
            now_ms = int(seconds) * 1_000 + int(micros) // 1_000
            pipeline = self._client.pipeline(transaction=False)
            pipeline.exists(self._keys.epoch)
            for channel, limits in self._limits.items():
                log = self._keys.channel(channel)
                for each in limits:
                    pipeline.zcount(log, _since(each, now_ms), "+inf")
                pipeline.zcard(line_of(log))
                pipeline.get(self._keys.closing(channel))
            complete, *counts = pipeline.execute()
        if not complete:
            raise LimitersUnavailable(CLOSED)
        answers = iter(counts)
        return tuple(
            ChannelFill(
                channel=channel,
                limits=tuple(
                    LimitFill(limit=_text(each), used=next(answers), most=each.count)
                    for each in limits
                ),
                waiting=next(answers),
                closed_until=_instant(next(answers), now_ms),
            )
            for channel, limits in self._limits.items()
        )


def _since(limit: LogLimit, now_ms: int) -> str:
    """Return the instant from which permits count against a limit, as an argument of ZCOUNT."""
    if isinstance(limit, Limit):
        return f"({now_ms - limit.length_ms}"
    if isinstance(limit, CalendarLimit):
        return str(limit.bounds(now_ms, 1)[0])
    return f"({now_ms + 1}"


def _text(limit: LogLimit) -> str:
    return f"concurrency {limit.count}" if isinstance(limit, InHand) else str(limit)


def _instant(closed: Any, now_ms: int) -> datetime | None:
    return from_ms(int(closed)) if closed is not None and int(closed) > now_ms else None
