"""A Redis whose clock the tests move, every limiter on it, and permits in one or several shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, cast
from uuid import uuid4

import pytest
import redis

from dispatcher.limiters import permits
from dispatcher.limiters.permits import LogLimit, Permit, Permits
from dispatcher.redis import scripts
from dispatcher.redis.keys import PermitKeys, permit_parts, shard_of
from dispatcher.redis.scripts import Call, Script
from dispatcher.times.clock import SystemClock
from tests.support.limiters import START_US, Clocked, Ways
from tests.support.servers import RedisServer

SHARDS = 8
HOLD = timedelta(seconds=10)
NUMBERS = count()
"""Give each example a namespace of its own."""


class World:
    """Permits of open shards, and what lies in their logs."""

    def __init__(
        self,
        client: Clocked,
        *,
        scope_limits: Sequence[LogLimit],
        shards: int = SHARDS,
        **channels: Sequence[LogLimit],
    ) -> None:
        self.client = client
        self.namespace = f"shards{next(NUMBERS)}"
        self.shards = permit_parts(self.namespace, shards)
        self.scope_limits = scope_limits
        self.channel_limits = channels
        self.permits = self.permits_on(client)
        for keys in self.shards:
            client.hset(keys.epoch, "server", "any")

    def permits_on(self, client: redis.Redis) -> Permits:
        return Permits(
            client,
            namespace=self.namespace,
            shards=len(self.shards),
            scope_limits=self.scope_limits,
            channel_limits=self.channel_limits,
            clock=SystemClock(),
        )

    def keys(self, name: str) -> PermitKeys:
        """Return the keys of the shard of a scope or a channel."""
        return self.shards[shard_of(name, len(self.shards))]

    def times(self, log: str) -> dict[bytes, int]:
        """Return the permits of a log, each with the time in ms at which it counts."""
        permits = self.client.zrange(log, 0, -1, withscores=True)
        return {name: int(score) for name, score in cast("list[tuple[bytes, float]]", permits)}

    def scope(self, name: str) -> dict[bytes, int]:
        return self.times(self.keys(name).scope(name))

    def channel(self, name: str) -> dict[bytes, int]:
        return self.times(self.keys(name).channel(name))

    def acquire(self, *group: Permit, within: timedelta = HOLD) -> list[bool]:
        """Ask for a group; return who was granted."""
        return [answer.allowed for answer in self.permits.acquire(group, within=within)]

    def logs(self) -> list[bytes]:
        """Return the names of all logs that hold a permit."""
        return sorted(
            cast("list[bytes]", self.client.keys(f"{{{self.namespace}:permits:*}}:log:*"))
        )


def a_permit(scope: str, channel: str) -> Permit:
    return Permit(uuid4(), 1, scope, channel)


def member(permit: Permit) -> bytes:
    """Return a permit as its logs have it."""
    return permit.message_id.bytes + permit.token.to_bytes(4, "big")


@pytest.fixture
def world(moved: Clocked) -> Callable[..., World]:
    """Give a maker of permits in several shards."""

    def build(*scope_limits: LogLimit, **more: Any) -> World:
        return World(moved, scope_limits=scope_limits, **more)

    return build


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[list[Call]]:
    """Give a list that gets the calls of scripts of each round trip."""
    made: list[list[Call]] = []

    def counted(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[Any]:
        made.append([*calls])
        return scripts.replies_of(client, script, calls)

    monkeypatch.setattr(permits, "replies_of", counted)
    return made


@pytest.fixture
def moved(redis_server: RedisServer) -> Iterator[Clocked]:
    """Give a client of the run's Redis whose scripts see the test's time."""
    client = Clocked(str(redis_server.socket))
    yield client
    client.close()


@pytest.fixture(scope="module")
def shared(redis_session: RedisServer) -> Iterator[Clocked]:
    """Give such a client to examples, each of which empties it or uses keys of its own."""
    with Clocked(str(redis_session.socket)) as client:
        client.flushall()
        client.set_us(START_US)
        yield client


@pytest.fixture
def ways(redis_server: RedisServer) -> Callable[..., Ways]:
    """Give what makes a limiter on the run's Redis, through either client."""
    return lambda limit, way: Ways(limit, way, {"unix_socket_path": str(redis_server.socket)})
