"""Every transition is told, once, after it is committed, whoever makes it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Draft, Message, PerhapsSent, PermanentFailure, TemporaryFailure
from tests.support.doubles import HookCalls, at_once
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build

pytestmark = pytest.mark.every_database

CALLS = HookCalls(
    "on_scheduled", "on_sent", "on_failed", "on_retry", "on_held", "on_expired", "on_cancelled",
    "on_rescheduled", "on_snoozed",
)  # fmt: skip
ENQUEUED = HookCalls("on_enqueued")


class Fickle:
    """A transport that does what the body says."""

    def send(self, message: Message) -> None:
        failures: dict[object, Exception] = {
            "never": PermanentFailure(), "later": TemporaryFailure(), "perhaps": PerhapsSent(),
        }  # fmt: skip
        failure = failures.get(message.body["text"])
        if failure is not None:
            raise failure


@pytest.fixture
def house(build: Build) -> House:
    CALLS.clear()
    name = __name__
    channels = {"memory": {"transport": f"{name}:Fickle", "max_attempts": 2, "on_unknown": "hold"}}
    return build(clock=hour_ago(), hooks=f"{name}:CALLS", channels=channels, quotas=["100/minute"])


def told(house: House, calls: HookCalls = CALLS) -> list[tuple[str, str]]:
    """Wait for the hooks; return what they were told, with the status the message had."""
    hooks = house.parts.hooks
    assert hooks is not None
    hooks.close(30)
    return [(name.removeprefix("on_"), message.status.value) for name, message in calls]


ENDS = {
    "fine": [("sent", "sent")],
    "never": [("failed", "failed")],
    "later": [("retry", "scheduled")],
    "perhaps": [("held", "held")],
}


@pytest.mark.parametrize("text", ENDS)
def test_a_delivery_is_told(house: House, text: str) -> None:
    message = house.submit(body={"text": text})
    house.deliver(message)
    assert told(house) == [("scheduled", "scheduled"), *ENDS[text]]
    assert CALLS[-1][1] == house.again(message)


def test_every_way_in_is_told_once(house: House) -> None:
    drafts = [
        Draft(channel="memory", recipient=f"r{n}", body=BODY, send_in=timedelta(0),
              idempotency_key=f"{n}")
        for n in range(3)
    ]  # fmt: skip
    house.dispatcher.submit_many(drafts)
    house.dispatcher.submit_many(drafts)
    level = "SERIALIZABLE" if house.url.startswith("sqlite") else "READ COMMITTED"
    engine = house.database.engine.execution_options(isolation_level=level)
    with engine.begin() as connection:
        house.submit(session=connection)
        assert len(CALLS) <= 3
    connection = engine.connect()
    with connection, connection.begin() as undone:
        house.submit(session=connection)
        undone.rollback()
    assert told(house) == [("scheduled", "scheduled")] * 4


def test_a_cancel_is_told_once(house: House) -> None:
    one, *others = (house.submit(f"r{n}") for n in range(4))
    at_once([lambda: house.dispatcher.cancel(one.id)] * 4)
    house.dispatcher.cancel_many([each.id for each in (one, *others)])
    house.dispatcher.cancel(one.id, if_unchanged=house.again(one))
    assert told(house)[4:] == [("cancelled", "cancelled")] * 4


def test_moves_reach_the_hooks_with_the_new_time(house: House) -> None:
    far = house.submit(send_in=timedelta(hours=9))
    moved = house.dispatcher.reschedule(far.id, send_in=timedelta(hours=10))
    assert told(house)[1:] == [("rescheduled", "scheduled")]
    assert CALLS[-1][1] == moved


def test_the_process_that_enqueues_calls_the_hook(build: Build) -> None:
    ENQUEUED.clear()
    house = build(clock=hour_ago(), hooks=f"{__name__}:ENQUEUED", quotas=["100/minute"])
    near = house.submit()
    far = house.submit(send_in=timedelta(minutes=10))  # the database's clock is an hour ahead
    assert house.parts.sweep.enqueue_due() >= 1
    assert set(told(house, ENQUEUED)) == {("enqueued", "scheduled")}
    first, *others = [message.id for _, message in ENQUEUED]
    assert first == near.id
    assert far.id in others
