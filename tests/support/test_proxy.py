"""The proxy breaks a line in the ways that the soak asks of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.proxy import Proxy
from tests.support.servers import RedisServer


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.socket) as proxy:
        yield proxy


@pytest.fixture
def client(line: Proxy) -> Iterator[redis.Redis]:
    """Give a client that asks once."""
    with redis.Redis(port=line.port, retry=Retry(NoBackoff(), 0), protocol=2) as client:
        yield client


def test_the_answer_with_the_pattern_is_lost_though_the_command_was_done(
    line: Proxy, client: redis.Redis
) -> None:
    client.set("name", "ann")
    line.lose_answer(b"ann")
    client.set("ben", "ann")
    with pytest.raises(redis.ConnectionError):
        client.getdel("name")
    assert line.dropped == 1
    assert client.get("name") is None
    assert client.get("ben") == b"ann", "only one answer is lost"


def test_a_slow_line_delays_each_piece_until_all_passes_again(
    line: Proxy, client: redis.Redis
) -> None:
    client.ping()
    line.slow(0.05)
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 0.1, "there and back"
    line.pass_all()
    client.ping()
    assert client.get("nothing") is None
