"""Every transition is told, once, after it is committed, whoever makes it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Draft, Message, PerhapsSent, PermanentFailure, TemporaryFailure
from tests.support.doubles import at_once
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build

pytestmark = pytest.mark.every_database

CALLS: list[tuple[str, Message]] = []


class Hooks:
    """Writes down what it is told."""

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dir__():
            raise AttributeError(name)
        return lambda message: CALLS.append((name.removeprefix("on_"), message))

    def __dir__(self) -> list[str]:
        kinds = (
            "scheduled", "sent", "failed", "retry", "held", "expired", "cancelled", "rescheduled",
            "snoozed",
        )  # fmt: skip
        return [f"on_{kind}" for kind in kinds]


class Enqueued:
    """Is told of nothing else."""

    def on_enqueued(self, message: Message) -> None:
        CALLS.append(("enqueued", message))


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
def house(build: Build) -> Iterator[House]:
    CALLS.clear()
    name = __name__
    channels = {"memory": {"transport": f"{name}:Fickle", "max_attempts": 2, "on_unknown": "hold"}}
    yield build(clock=hour_ago(), hooks=f"{name}:Hooks", channels=channels, quotas=["100/minute"])
    CALLS.clear()


def told(house: House) -> list[tuple[str, str]]:
    """Wait for the hooks; return what they were told, with the status the message had."""
    hooks = house.parts.hooks
    assert hooks is not None
    hooks.close(30)
    return [(kind, message.status.value) for kind, message in CALLS]


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
    CALLS.clear()
    house = build(clock=hour_ago(), hooks=f"{__name__}:Enqueued", quotas=["100/minute"])
    near = house.submit()
    far = house.submit(send_in=timedelta(minutes=10))  # the database's clock is an hour ahead
    assert house.parts.sweep.enqueue_due() >= 1
    assert set(told(house)) == {("enqueued", "scheduled")}
    first, *others = [message.id for _, message in CALLS]
    assert first == near.id
    assert far.id in others
    CALLS.clear()
