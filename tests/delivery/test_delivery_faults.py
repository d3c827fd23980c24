"""Redis or the store go away while a worker delivers: nothing extra is sent, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from dispatcher import Message, Outcome, PermanentFailure, Status, StoreUnavailable
from dispatcher.times.send_time import to_ms
from tests.support.doubles import raising
from tests.support.house import House, hour_ago, house_on
from tests.support.house_fixtures import Build
from tests.support.proxy import FarDatabase
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)
CLAIM = b"INSERT INTO dispatcher_attempts"


def was_put_back(house: House, message: Message) -> None:
    now = house.again(message)
    assert (now.status, now.attempt_count) == (Status.SCHEDULED, 0)
    assert house.dispatcher.attempts(message.id) == []
    assert now.next_attempt_at > house.database_time() - timedelta(seconds=5)


def test_without_redis_nothing_is_sent_and_no_try_is_counted(
    build: Build, own_redis: RedisServer
) -> None:
    house = build(server=own_redis, clock=hour_ago())
    messages = [house.submit("ada"), house.submit("ben")]
    own_redis.stop()
    assert house.deliver(*messages) == 0
    assert house.sent == []
    for message in messages:
        was_put_back(house, message)
        [enqueue_at] = house.columns(message, "enqueue_at")
        assert enqueue_at < house.again(message).next_attempt_at, "the next sweep takes it"
    own_redis.start()
    house.make_due(*messages)
    assert house.deliver(*messages) == 0, "the logs of a restarted Redis are not trusted"
    house.open()
    house.make_due(*messages)
    assert house.deliver(*messages) == 2


def test_after_a_flush_permits_are_refused_until_the_sends_are_counted_again(slow: House) -> None:
    first = slow.submit()
    second = slow.submit(send_in=MINUTE)
    other = slow.submit("ben")
    assert slow.deliver(first) == 1
    slow.redis.flushall()
    assert slow.deliver(second, other) == 0
    for message in (second, other):
        was_put_back(slow, message)
    slow.open()
    [at] = slow.permits().values()
    finished = slow.again(first).finished_at
    assert finished is not None
    assert abs(at - to_ms(finished)) < 1_000
    slow.make_due(second, other)
    assert slow.deliver(second, other) == 1
    assert slow.sent == [first.id, other.id]
    assert slow.again(second).next_attempt_at - slow.database_time() > timedelta(seconds=50)


@pytest.fixture
def through(redis_server: RedisServer, far: FarDatabase) -> Iterator[House]:
    with house_on(redis_server, far.direct, database_url=far.through, clock=hour_ago()) as house:
        yield house


@pytest.mark.every_database
@pytest.mark.parametrize("fails", [False, True])
def test_a_send_during_an_outage_of_the_store_is_recorded_after_it(
    through: House, far: FarDatabase, fails: bool
) -> None:
    messages = [through.submit("ada"), through.submit("ben")]
    if fails:
        messages = messages[:1]
    seen: list[UUID] = []

    def break_line(message: Message) -> None:
        seen.append(message.id)
        far.proxy.refuse()
        far.proxy.cut_all()
        if fails:
            raise PermanentFailure("no such number")

    through.memory.before = break_line
    through.moved.meanwhile = far.proxy.pass_all
    assert through.deliver(*messages) == (0 if fails else 2)
    assert through.moved.sleeps, "it waited for the store"
    for message in messages:
        assert through.again(message).status is (Status.FAILED if fails else Status.SENT)
        outcome = Outcome.PERMANENT if fails else Outcome.SENT
        assert through.outcomes(message) == [outcome]
    assert through.deliver(*messages) == 0
    assert len(seen) == len(messages)


@pytest.mark.parametrize(
    ("far", "statement"),
    [("postgresql", b"claimable AS"), ("mariadb", CLAIM), ("mariadb", b"COMMIT")],
    indirect=["far"],
)
def test_a_lost_reply_of_the_claim_claims_once(
    through: House, far: FarDatabase, statement: bytes
) -> None:
    message = through.submit()
    far.proxy.drop_reply(statement)
    through.deliver(message)
    assert far.proxy.dropped == 1
    if through.again(message).status is Status.SENDING:  # the lost reply was that of a claim
        through.end_claims(message)
        assert through.parts.sweep.rescue() == 1
        through.change([message], next_attempt_at=message.send_at)

    def is_sent() -> bool:
        """Deliver again until the server has ended the transaction whose client is gone."""
        through.deliver(message)
        return through.again(message).status is Status.SENT

    wait_until(is_sent)
    assert through.sent == [message.id]


def test_a_store_that_stays_down_past_the_claim_leaves_the_message_to_its_rescue(
    slow: House, caplog: pytest.LogCaptureFixture
) -> None:
    message = slow.submit()
    down = {"record": raising(*[StoreUnavailable("down")] * 10_000)}
    slow.between("delivery", "claims", before=down)
    assert slow.deliver(message) == 1
    assert slow.again(message).status is Status.SENDING
    assert "rescue ends their claims as unknown" in caplog.text
    assert slow.moved.monotonic() > slow.settings.claim_ttl.total_seconds()
    slow.end_claims(message)
    assert slow.parts.sweep.rescue() == 1
    assert slow.again(message).status is Status.SCHEDULED


def test_a_send_is_recorded_after_an_outage_longer_than_the_claim(slow: House) -> None:
    message = slow.submit()
    back = slow.settings.claim_ttl.total_seconds() + 30

    def away() -> None:
        if slow.moved.monotonic() < back:
            raise StoreUnavailable("down")

    slow.between("delivery", "claims", before={"record": away})
    assert slow.deliver(message) == 1
    slow.end_claims(message)
    assert slow.parts.sweep.rescue() == 0
    assert slow.again(message).status is Status.SENT
