"""SECURITY.md: the rights that it gives on Redis are enough, and no more than they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis
from kombu import Connection

from tests.support.house import house_on
from tests.support.servers import RedisServer

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text("utf-8")
OF_WINDOWS, OF_BROKER = re.findall(r"^ACL SETUSER dispatcher (.*)$", PAGE, re.MULTILINE)


def give(server: RedisServer, rights: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "dispatcher", *rights.split())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_submits_moves_rebuilds_and_deliveries_need_no_more(
    own_redis: RedisServer, database_url: str
) -> None:
    give(own_redis, OF_WINDOWS)
    url = f"unix://dispatcher:PASSWORD@{own_redis.socket}"
    with house_on(own_redis, database_url, namespace="dispatcher", redis_url=url) as house:
        message = house.submit("ada")
        house.submit("ben", on_conflict="shift")
        house.deliver(message)
        assert house.dispatcher.verify_windows().equal
        house.dispatcher.rebuild_windows()
        house.dispatcher.suppress("ben")
        house.parts.reconciler.reconcile()
        assert house.dispatcher.verify_windows().equal
    with redis.Redis.from_url(url) as client:
        for words in (
            ["FLUSHALL"],
            ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
            ["KEYS", "*"],
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("of somebody else")


def test_the_broker_needs_no_more(own_redis: RedisServer) -> None:
    give(own_redis, OF_BROKER)
    url = f"redis+socket://dispatcher:PASSWORD@{own_redis.socket}"
    with Connection(url) as connection, connection.SimpleQueue("dispatcher") as queue:
        queue.put({"id": 1})
        taken = queue.get(timeout=10)
        assert taken.payload == {"id": 1}
        taken.ack()
    with (
        redis.Redis.from_url(f"unix://dispatcher:PASSWORD@{own_redis.socket}") as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command("FLUSHALL")
