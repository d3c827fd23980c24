"""The RabbitMQ that runs on this machine, and queues of a test's own on it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

import pytest
from kombu import Connection, Exchange, Queue

from tests.support.environment import CHANNEL

ADDRESS = ("127.0.0.1", 5672)


def url_at(address: tuple[str, int] = ADDRESS) -> str:
    return f"amqp://guest:guest@{address[0]}:{address[1]}//"


@pytest.fixture
def rabbitmq() -> str:
    """Give the URL of a RabbitMQ, or skip."""
    return _found()


@pytest.fixture
def own_queue() -> Iterator[str]:
    """Give a name that no other queue has; what is declared under it is deleted. Or skip."""
    with queue_of_own() as name:
        yield name


@contextmanager
def queue_of_own() -> Iterator[str]:
    """Yield what ``own_queue`` gives."""
    url = _found()
    name = f"dispatcher-test-{uuid4().hex}"
    yield name
    with Connection(url) as connection:
        for each in (name, f"{name}.{CHANNEL}", f"{name}.memory", f"{name}.own"):
            for kind in (Queue, Exchange):
                with suppress(*connection.channel_errors), connection.channel() as channel:
                    kind(each, channel=channel).delete()


def _found() -> str:
    try:
        socket.create_connection(ADDRESS, timeout=2).close()
    except OSError as error:
        reason = f"no RabbitMQ on {ADDRESS[0]}:{ADDRESS[1]} ({error})"
        if "rabbitmq" in os.environ.get("DISPATCHER_TESTS_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)
    return url_at()
