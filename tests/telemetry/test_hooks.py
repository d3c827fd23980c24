"""Every transition is told, once, after it is committed, whoever makes it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Draft
from tests.support.doubles import HookCalls, at_once
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build

pytestmark = pytest.mark.every_database

CALLS = HookCalls(
    "on_scheduled", "on_sent", "on_failed", "on_retry", "on_held", "on_expired", "on_cancelled",
    "on_rescheduled", "on_snoozed",
)  # fmt: skip


@pytest.fixture
def house(build: Build) -> House:
    CALLS.clear()
    return build(clock=hour_ago(), hooks=f"{__name__}:CALLS", quotas=["100/minute"])


def told(house: House) -> list[tuple[str, str]]:
    """Wait for the hooks; return what they were told, with the status the message had."""
    hooks = house.parts.hooks
    assert hooks is not None
    hooks.close(30)
    return [(name.removeprefix("on_"), message.status.value) for name, message in CALLS]


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
    house.dispatcher.cancel_many([message.id for message in (one, *others)])
    house.dispatcher.cancel(one.id, if_unchanged=house.again(one))
    assert told(house)[4:] == [("cancelled", "cancelled")] * 4
