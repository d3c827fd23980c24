"""A sliding log on a given Redis, open, as the dispatcher wires it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import cast

import redis

from dispatcher.limiters import PermitAnswer, PermitLog, PermitRequest
from dispatcher.quota import Limit
from dispatcher.times.clock import SystemClock
from tests.support.servers import RedisServer

EPOCH = "{test}:epoch"
ROOM = "{test}:room"
HOLD = timedelta(seconds=30)


class Logs(AbstractContextManager["Logs"]):
    """Permit logs by name; every log has the same limits unless said otherwise."""

    def __init__(self, path: str, *limits: Limit) -> None:
        self.client = redis.Redis(unix_socket_path=path)
        self.log = PermitLog(self.client, epoch_key=EPOCH, room_key=ROOM, clock=SystemClock())
        self.limits = limits

    def open(self) -> None:
        self.client.hset(EPOCH, "server", "any")

    def acquire(
        self,
        *permits: bytes,
        logs: Sequence[str] = ("log",),
        hold: timedelta = HOLD,
        limits: Mapping[str, Sequence[Limit]] | None = None,
    ) -> list[PermitAnswer]:
        """Ask for permits of the same logs, in one script."""
        requests = [PermitRequest(each, tuple(logs)) for each in permits]
        return self.log.acquire(requests, limits or dict.fromkeys(logs, self.limits), hold=hold)

    def settle(self, permit: bytes, *, logs: Sequence[str] = ("log",), since_ms: int = 0) -> None:
        """Note that a permit was used so long ago."""
        since = timedelta(milliseconds=since_ms)
        self.log.settle([(PermitRequest(permit, tuple(logs)), since)])

    def members(self, log: str = "log") -> dict[bytes, int]:
        """A log as it is: permit id and time in ms."""
        found = cast("list[tuple[bytes, float]]", self.client.zrange(log, 0, -1, withscores=True))
        return {member: int(score) for member, score in found}

    def put(self, ages_ms: dict[bytes, int], log: str = "log") -> int:
        """Write hand-overs of these ages into a log; return the server's time in ms."""
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
