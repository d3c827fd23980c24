"""What reaches the broker, and when: ids and an ETA, nothing of the content."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy.orm import Session

from dispatcher import Draft, Message
from dispatcher.celery.queue import EARLY
from dispatcher.times.clock import SystemClock
from tests.support.doubles import at_once
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.servers import RedisServer

CANARY = "canary-body-4711"
SECOND = timedelta(seconds=1)


def tasks(house: House) -> list[dict[str, Any]]:
    raw = [
        task
        for name in house.settings.queues
        for task in reversed(cast("list[bytes]", house.broker.lrange(name, 0, -1)))
    ]
    return [json.loads(task) for task in raw]


def ids_in(task: dict[str, Any]) -> list[str]:
    [ids, channel, _], kwargs, _ = json.loads(base64.b64decode(task["body"]))
    assert kwargs == {}
    assert task["properties"]["delivery_info"]["routing_key"] == f"dispatcher.{channel}"
    return cast("list[str]", ids)


def eta_of(task: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(task["headers"]["eta"])


def all_ids(house: House) -> list[str]:
    return [message_id for task in tasks(house) for message_id in ids_in(task)]


def test_a_near_message_is_enqueued_at_once_and_a_far_one_is_not(build: Build) -> None:
    house = build(clock=SystemClock())
    near = house.submit("canary-recipient", body={"text": CANARY}, send_in=20 * SECOND)
    far = house.submit("ben", send_in=31 * SECOND)
    assert house.columns(far, "enqueue_at") == (far.send_at - house.settings.horizon,)
    assert house.parts.sweep.enqueue_due() == 0
    [task] = tasks(house)
    assert ids_in(task) == [str(near.id)]
    assert eta_of(task) == near.send_at - EARLY
    assert task["headers"]["task"] == "dispatcher.deliver"
    assert task["content-type"] == "application/json"
    assert task["headers"]["ignore_result"] is True
    raw = b"".join(cast("list[bytes]", house.broker.lrange("dispatcher.memory", 0, -1)))
    everything = raw + base64.b64decode(task["body"])
    for secret in ("canary-recipient", CANARY, house.server.url, str(house.server.folder)):
        assert secret.encode() not in everything


@pytest.mark.every_database
def test_a_message_enqueued_at_submit_says_so(build: Build) -> None:
    """Whichever way it is stored; what is returned is what is read."""
    house = build(clock=SystemClock())
    level = "SERIALIZABLE" if house.url.startswith("sqlite") else "READ COMMITTED"
    engine = house.database.engine.execution_options(isolation_level=level)
    drafts = [
        Draft(channel="memory", recipient=f"many {n}", body=BODY, send_in=n * SECOND)
        for n in (20, 40)
    ]
    stored = [house.submit("one", send_in=20 * SECOND)]
    stored += [
        answer for answer in house.dispatcher.submit_many(drafts) if isinstance(answer, Message)
    ]
    with Session(engine) as session:
        stored += [
            house.submit("joined", send_in=20 * SECOND, session=session),
            house.submit("joined far", send_in=40 * SECOND, session=session),
        ]
        session.commit()
    assert [house.dispatcher.get(message.id) for message in stored] == stored
    are_enqueued = [message.enqueued_at is not None for message in stored]
    assert are_enqueued == [True, True, False, True, False]
    assert all(message.enqueued_at in (None, message.created_at) for message in stored)
    [late] = [message for message in stored if message.recipient == "joined far"]
    house.dispatcher.reschedule(late.id, send_in=20 * SECOND)
    assert house.dispatcher.get(late.id).enqueued_at is not None


def test_late_messages_share_tasks_however_far_apart_they_were_due(build: Build) -> None:
    """After an outage there would be a task for each otherwise."""
    house = build(clock=SystemClock(), group_size=3)
    messages = [house.submit(f"name {n}", send_in=60 * SECOND) for n in range(5)]
    now = house.database_time()
    for number, message in enumerate(messages):
        house.change([message], enqueue_at=now, next_attempt_at=now - (5 - number) * SECOND)
    assert house.parts.sweep.enqueue_due() == 5
    ids = [str(message.id) for message in messages]
    assert [ids_in(task) for task in tasks(house)] == [ids[:3], ids[3:]]


@pytest.mark.every_database
def test_messages_within_the_horizon_are_enqueued_in_groups_of_one_channel(build: Build) -> None:
    house = build(clock=SystemClock(), group_size=3, horizon=5)
    at = SystemClock().now().replace(microsecond=0) + 20 * SECOND
    together = [house.submit(f"name {n}", send_at=at) for n in range(4)]
    near = house.submit("near", send_at=at + timedelta(milliseconds=50))
    later = house.submit("later", send_at=at + timedelta(milliseconds=51))
    other = house.submit("other", send_at=at, channel="file")
    assert tasks(house) == []
    everything = [*together, near, later, other]
    house.change(everything, enqueue_at=house.database_time())
    assert house.parts.sweep.enqueue_due() == len(everything)
    groups = sorted(tasks(house), key=lambda task: len(ids_in(task)))
    assert [len(ids_in(task)) for task in groups] == [1, 1, 2, 3]
    sizes = {frozenset(ids_in(task)) for task in groups}
    assert {frozenset({str(other.id)}), frozenset({str(later.id)})} <= sizes
    assert sorted(all_ids(house)) == sorted(str(message.id) for message in everything)
    assert {eta_of(task) for task in groups if str(later.id) not in ids_in(task)} == {at - EARLY}


def test_with_the_broker_down_a_submit_succeeds_in_time_and_the_sweep_enqueues_later(
    build: Build, own_redis: RedisServer
) -> None:
    broken = f"redis+socket://{own_redis.socket}?virtual_host=1"
    own_redis.stop()
    house = build(clock=hour_ago(), broker_url=broken)
    began = SystemClock().monotonic()
    messages = [house.submit(f"name {n}") for n in range(40)]
    assert SystemClock().monotonic() - began < 20, "at most a second extra, not one each"
    assert house.parts.sweep.enqueue_due() == 0
    for message in messages:
        assert house.again(message).status == "scheduled"
        assert house.columns(message, "enqueue_at")[0] <= house.database_time()
    own_redis.start()
    house.moved.advance(timedelta(seconds=2))
    assert house.parts.sweep.enqueue_due() == 40
    with own_redis.client() as client:
        client.select(1)
        assert client.llen("dispatcher.memory") >= 1
    assert house.parts.sweep.enqueue_due() == 0


@pytest.mark.every_database
def test_two_sweeps_side_by_side_enqueue_each_message_once(build: Build) -> None:
    sweeps = [build(clock=hour_ago()) for _ in range(2)]
    house = sweeps[0]
    first = house.submit()
    house.store_copy(first, rows=2_500)
    house.change([*house.dispatcher.select()], enqueue_at=first.send_at)
    house.broker.flushdb()
    counts = at_once([sweep.parts.sweep.enqueue_due for sweep in sweeps])
    assert sum(count for count in counts if isinstance(count, int)) == 2_501
    published = all_ids(house)
    assert len(published) == len(set(published)) == 2_501
    assert max(len(ids_in(task)) for task in tasks(house)) == house.settings.group_size


def test_the_bulk_of_a_large_share_waits_in_a_list_that_is_read_last(build: Build) -> None:
    house = build(
        clock=hour_ago(),
        quotas="1000/second",
        scopes={"tenant": {"quotas": ["1000/day"]}},
        channels={"memory": {"transport": "memory", "fair_by": "tenant"}},
    )
    large = [house.submit(f"to {n}", scopes={"tenant": "large"}) for n in range(60)]
    small = house.submit("ben", scopes={"tenant": "small"})
    urgent = house.submit("cyd", scopes={"tenant": "large"}, priority=50)
    house.broker.delete("dispatcher.memory")  # the tasks of the submits
    assert house.parts.sweep.enqueue_due() == 62
    first = all_ids(house)
    assert {str(small.id), str(urgent.id)} < {*first}
    assert house.broker.llen("dispatcher.memory\x06\x169") == 1
    [bulk] = cast("list[bytes]", house.broker.lrange("dispatcher.memory\x06\x169", 0, -1))
    assert sorted(first + ids_in(json.loads(bulk))) == sorted(
        str(message.id) for message in [*large, small, urgent]
    )
