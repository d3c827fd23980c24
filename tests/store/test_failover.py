"""A server that takes no writes any more is left: whoever its name leads to serves at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from redis import ResponseError
from sqlalchemy import event

from dispatcher import Draft, OutcomeUnknown, ReservationsUnavailable, StoreUnavailable
from dispatcher.celery.queue import Ticket
from dispatcher.errors import QueueUnavailable
from dispatcher.message import new_id
from dispatcher.redis.scripts import replies_of, script
from dispatcher.store.survey import StoreSurvey
from dispatcher.telemetry.liveness import Kind
from tests.support.house import BODY, House
from tests.support.house_fixtures import Build
from tests.support.servers import RedisServer

HOUR = timedelta(hours=1)
DRAFTS = [Draft(channel="memory", recipient=f"to {n}", body=BODY, send_in=HOUR) for n in (1, 2)]
DEMOTED = {
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}
on_servers = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


def demote(house: House) -> Callable[[], None]:
    """Let connections be those of a server that takes no writes, until the result is called."""
    engine = house.parts.database.engine
    statement = DEMOTED[engine.dialect.name]

    def become_read_only(driver: Any, _: object) -> None:
        with driver.cursor() as cursor:
            cursor.execute(statement)

    event.listen(engine, "connect", become_read_only)
    engine.dispose()
    return lambda: event.remove(engine, "connect", become_read_only)


@pytest.fixture
def demoted(house: House) -> Callable[[], None]:
    """Give what ends a demotion that has begun."""
    return demote(house)


@on_servers
def test_the_next_submit_goes_where_the_name_leads(house: House, demoted: Any) -> None:
    with house.parts.database.engine.connect():  # an idle connection to the old server, too
        for asked in ({}, {"idempotency_key": "k"}):
            with pytest.raises(StoreUnavailable, match="takes no writes") as refused:
                house.submit("ada", **asked)
            assert not isinstance(refused.value, OutcomeUnknown)
        with pytest.raises(StoreUnavailable) as refused:
            house.dispatcher.submit_many(DRAFTS, atomic=True)
        assert not isinstance(refused.value, OutcomeUnknown)
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            StoreSurvey(house.parts.database).try_write()
        assert "database" in house.parts.health(Kind.WORKER).away()
    assert not house.all_members()
    demoted()
    message = house.submit("ada")
    assert house.dispatcher.get(message.id) == message
    assert "database" not in house.parts.health(Kind.WORKER).away()


@on_servers
def test_a_batch_alone_leaves_every_idle_connection(house: House, demoted: Any) -> None:
    engine = house.parts.database.engine
    for line in [engine.connect() for _ in range(4)]:  # more than a batch is tried
        line.close()
    demoted()
    assert len(house.dispatcher.submit_many(DRAFTS, atomic=True)) == len(DRAFTS)


def test_a_redis_that_became_a_replica_is_left(build: Build, own_redis: RedisServer) -> None:
    house = build(server=own_redis)
    house.submit("ada")
    ids = {part: part.client_id() for part in (house.parts.redis, house.parts.plain_redis)}
    assert house.parts.health(Kind.WORKER).away() == []
    house.redis.replicaof("127.0.0.1", "1")
    with pytest.raises(ReservationsUnavailable, match="read-only replica"):
        house.submit("ben")
    assert {"redis"} <= set(house.parts.health(Kind.WORKER).away())
    with pytest.raises(QueueUnavailable):
        house.parts.queue.enqueue([Ticket(new_id(), "memory", house.clock.now())])
    house.redis.replicaof("NO", "ONE")
    house.reconciled()
    house.submit("ben")
    for part, before in ids.items():
        assert part.client_id() != before, "its name was looked up again"


def test_another_thread_keeps_the_connection_that_it_reads_from(
    build: Build, own_redis: RedisServer
) -> None:
    house = build(server=own_redis)
    parts = house.parts
    with parts.redis.client() as busy, parts.plain_redis.client() as plainly_busy:
        held = busy.client_id(), plainly_busy.client_id()
        calls = [(["key"], [1, 0])] * 2
        replies_of(parts.redis, script("limiters/limits_close"), calls)
        house.redis.replicaof("127.0.0.1", "1")
        with pytest.raises(ResponseError, match="read only replica"):
            replies_of(parts.redis, script("limiters/limits_close"), calls)
        assert "redis" in parts.health(Kind.WORKER).away()
        assert (busy.client_id(), plainly_busy.client_id()) == held
