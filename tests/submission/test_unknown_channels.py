"""A worker whose settings do not know a message's channel leaves the message to one that does."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from dispatcher import Status
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

FILE = {"file": {"transport": "file"}}
BOTH = FILE | {"memory": {"transport": "memory", "max_attempts": 2, "limits": ["100/minute"]}}


@pytest.fixture
def knowing(build: Build) -> House:
    return build(clock=hour_ago(), channels=BOTH)


@pytest.fixture
def unknowing(build: Build, knowing: House) -> House:
    del knowing  # opens the permit logs for its limits first
    return build(clock=hour_ago(), channels=FILE, opened=False)


@pytest.mark.every_database
def test_a_message_of_an_unknown_channel_is_put_back_and_costs_nothing(
    knowing: House, unknowing: House, caplog: pytest.LogCaptureFixture
) -> None:
    message = knowing.submit("olga")
    for _ in range(3):
        knowing.make_due(message)
        before = knowing.database_time()
        assert unknowing.deliver(message) == 0
        now = unknowing.again(message)
        assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 0, None)
        assert now.send_at == message.send_at
        assert before < now.next_attempt_at < before + timedelta(hours=1), "not at once"
        assert unknowing.dispatcher.attempts(message.id) == []
        assert unknowing.permits() == {}
        channel_log = knowing.permit_keys("memory").channel("memory")
        assert knowing.redis.zcard(channel_log) == 0
    error = next(line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR)
    assert "memory" in error
    assert "olga" not in error
    knowing.make_due(message)
    assert knowing.deliver(message) == 1
    assert knowing.sent == [message.id]


def test_the_rest_of_its_group_is_sent(knowing: House, unknowing: House) -> None:
    group = [
        knowing.submit(f"name {n}", channel=channel)
        for n, channel in enumerate(["memory", "file", "memory", "file"])
    ]
    assert unknowing.deliver(*group) == 2
    statuses = [unknowing.again(message).status for message in group]
    assert statuses == [Status.SCHEDULED, Status.SENT, Status.SCHEDULED, Status.SENT]
    assert unknowing.dispatcher.attempts(group[0].id) == []


def test_a_message_past_its_expiry_ends_also_where_its_channel_is_unknown(
    knowing: House, unknowing: House
) -> None:
    message = knowing.submit(expires_at=knowing.clock.now() + timedelta(seconds=1))
    assert unknowing.deliver(message) == 0
    assert unknowing.again(message).status is Status.EXPIRED
