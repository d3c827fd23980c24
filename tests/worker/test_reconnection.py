"""A worker whose threads end tasks of a line that is gone by then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu import Connection, Queue
from kombu.asynchronous import Hub

from dispatcher.celery.consumer import answer_while_open
from tests.support.environment import BROKER_DB, broker_on
from tests.support.servers import RedisServer

QUEUE = Queue("tasks")


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def over_redis(redis_server: RedisServer) -> Iterator[Connection]:
    with Connection(broker_on(redis_server.url)) as line:
        yield line


def taken(line: Connection) -> Any:
    """Publish a task over another line, and take it over this one."""
    with line.clone() as another, another.SimpleQueue(QUEUE.name) as tasks:
        tasks.put({})
    found: list[Any] = []
    with line.Consumer(QUEUE, on_message=found.append):
        line.drain_events(timeout=5)
    return found[0]


def acknowledged(message: Any, line: Connection, hub: Hub, *, breaks: bool = False) -> bool:
    """Let a thread of the pool ask for it, then the loop of the worker come to it."""
    log = logging.getLogger(__name__)
    acknowledge = answer_while_open(hub.call_soon, (message.ack_log_error,))
    acknowledge(log, line.connection_errors)
    if breaks:  # what this consumer and Celery's do then
        message.channel.do_restore = False
        line.collect()
        line.close()
    hub.run_once()
    return bool(message.acknowledged)


def test_a_task_is_acknowledged(
    over_redis: Connection, hub: Hub, redis_server: RedisServer
) -> None:
    assert acknowledged(taken(over_redis), over_redis, hub)
    with redis.Redis(unix_socket_path=str(redis_server.socket), db=BROKER_DB) as tasks:
        assert tasks.zcard("unacked_index") == 0


def test_a_task_whose_line_is_closed_does_not_end_the_worker(
    over_redis: Connection, hub: Hub
) -> None:
    assert not acknowledged(taken(over_redis), over_redis, hub, breaks=True)
