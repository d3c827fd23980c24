"""A sliding log on a given Redis, open, as the dispatcher wires it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import cast

import redis

from dispatcher.limiters import LogKind, LogLimit, PermitAnswer, PermitLeg, PermitLogs
from dispatcher.quota import Limit
from dispatcher.redis.keys import PermitKeys
from dispatcher.times.clock import SystemClock
from tests.support.servers import RedisServer

KEYS = PermitKeys("test", 0)
HOLD = timedelta(seconds=30)


def leg(permit: bytes, *logs: str) -> PermitLeg:
    """Return what is wanted of these logs."""
    return PermitLeg(permit, KEYS, logs)


def kinds(limits: Mapping[str, Sequence[LogLimit]]) -> dict[str, LogKind]:
    """Return a kind of its own for each log."""
    return {log: LogKind(some) for log, some in limits.items()}


class Logs(AbstractContextManager["Logs"]):
    """Permit logs by name; every log has the same limits unless said otherwise."""

    def __init__(self, path: str, *limits: Limit) -> None:
        self.client = redis.Redis(unix_socket_path=path)
        self.log = PermitLogs(self.client, [KEYS], clock=SystemClock())
        self.limits = limits

    def open(self) -> None:
        self.client.hset(KEYS.epoch, "server", "any")

    def acquire(
        self,
        *permits: bytes,
        logs: Sequence[str] = ("log",),
        hold: timedelta = HOLD,
        limits: Mapping[str, Sequence[Limit]] | None = None,
    ) -> list[PermitAnswer]:
        """Ask for permits of the same logs, in one script."""
        legs = [leg(each, *logs) for each in permits]
        return self.log.acquire(legs, kinds(limits or dict.fromkeys(logs, self.limits)), hold=hold)

    def settle(self, permit: bytes, *, logs: Sequence[str] = ("log",), since_ms: int = 0) -> None:
        """Note that a permit was used so long ago."""
        since = timedelta(milliseconds=since_ms)
        self.log.settle([(leg(permit, *logs), since)])

    def members(self, log: str = "log") -> dict[bytes, int]:
        """A log as it is: permit id and time in ms."""
        found = cast("list[tuple[bytes, float]]", self.client.zrange(log, 0, -1, withscores=True))
        return {member: int(score) for member, score in found}

    def put(self, ages_ms: dict[bytes, int], log: str = "log") -> int:
        """Write sends of these ages into a log; return the server's time in ms."""
        now = self.now()
        if ages_ms:
            self.client.zadd(log, {permit: now - age for permit, age in ages_ms.items()})
        return now

    def now(self) -> int:
        """The server's time in ms."""
        seconds, micros = self.client.time()
        return seconds * 1_000 + micros // 1_000

    def __exit__(self, *_: object) -> None:
        self.client.close()


def logs_on(server: RedisServer, *limits: str) -> Logs:
    """Build open logs with these limits."""
    logs = Logs(str(server.socket), *(Limit.parse(each) for each in limits))
    logs.open()
    return logs
