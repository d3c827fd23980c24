"""An exact limiter: a log of every hand-over, in a ZSET.

Allowed is what leaves at most N hand-overs within any span shorter than the period, wherever the
span begins. The price is memory: one member per hand-over of the longest period. A refused request
leaves nothing behind.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters.base import Decision, translated
from dispatcher.lua import source
from dispatcher.quota import Limit

_MILLISECOND = timedelta(milliseconds=1)
_CLOSED = "the permit logs are not complete; the sweep rebuilds them from the store"


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """One permit wanted from several logs, all or none. ``permit_id`` makes it idempotent."""

    permit_id: bytes
    logs: tuple[str, ...]


class SlidingLog:
    """Permits for groups, in one script.

    ``epoch_key`` names the key without which nothing is granted. Raises LimitersUnavailable
    whenever Redis cannot be trusted to answer.
    """

    def __init__(self, client: redis.Redis, *, epoch_key: str) -> None:
        self._client = client
        self._epoch_key = epoch_key
        self._acquire = client.register_script(source("sliding_log"))
        self._settle = client.register_script(source("settle_permits"))
        self._restore = client.register_script(source("restore_permits"))

    def acquire(
        self,
        requests: Sequence[PermitRequest],
        limits: Mapping[str, Sequence[Limit]],
        *,
        hold: timedelta,
        reaches: Mapping[str, str] | None = None,
    ) -> list[Decision]:
        """Ask for permits in order; earlier ones count against later ones.

        ``limits`` gives the limits of each log, ``reaches`` the name under which the epoch says
        how far back it is kept, where that is further than these limits need. A permit granted
        must be used within ``hold`` from now or given back, and settled once it is used.
        """
        logs = sorted({log for request in requests for log in request.logs})
        place = {log: position for position, log in enumerate(logs, start=1)}
        flat = [
            [part for each in limits[log] for part in (each.count, each.length_ms)] for log in logs
        ]
        wanted = [[place[log] for log in request.logs] for request in requests]
        kept = [(reaches or {}).get(log, "") for log in logs]
        arguments: list[Any] = [
            hold // _MILLISECOND, json.dumps(flat), json.dumps(kept), json.dumps(wanted)
        ]  # fmt: skip
        arguments += [request.permit_id for request in requests]
        with translated():
            reply = self._acquire(keys=[self._epoch_key, *logs], args=arguments)
        if reply and reply[0] == b"closed":
            raise LimitersUnavailable(_CLOSED)
        return [
            Decision(allowed=wait == 0, remaining=left, retry_after=wait * _MILLISECOND)
            for wait, left in zip(reply[::2], reply[1::2], strict=True)
        ]

    def settle(self, used: Sequence[tuple[PermitRequest, timedelta]]) -> None:
        """Note when permits were used: each with the time since its hand-over ended."""
        logs = sorted({log for request, _ in used for log in request.logs})
        place = {log: position for position, log in enumerate(logs, start=1)}
        arguments = [
            part
            for request, since in used
            for log in request.logs
            for part in (place[log], request.permit_id, max(0, since // _MILLISECOND))
        ]
        with translated():
            self._settle(keys=logs, args=arguments)

    def give_back(self, unused: Sequence[PermitRequest]) -> None:
        """Return permits that were not used; harmless for those that were not granted."""
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for request in unused:
                for log in request.logs:
                    pipeline.zrem(log, request.permit_id)
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
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for log, flat in members.items():
                self._restore(
                    keys=[rebuild_key, log],
                    args=[marker, marker_life // _MILLISECOND, longest // _MILLISECOND, *flat],
                    client=pipeline,
                )
            pipeline.execute()
