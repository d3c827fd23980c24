"""What is paused is not sent, however it was enqueued; resumed, it is sent or expires."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from dispatcher import InvalidValue, Message, Status, UnknownChannel
from dispatcher.store.lists import Pauses
from dispatcher.times.clock import SystemClock
from tests.support.doubles import Between, once
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

SCOPES = {"tenant": {"quotas": ["100/minute"]}}
CHANNELS = {"memory": {"transport": "memory"}, "other": {"transport": "memory"}}
MINUTE = timedelta(minutes=1)


@pytest.fixture
def pausing(build: Build) -> House:
    """Give a house with two channels and tenants, in which what is submitted is due at once."""
    return build(
        clock=hour_ago(), channels=CHANNELS, scopes=SCOPES, quotas=["100/minute"],
        overdue_after="30 minutes",
    )  # fmt: skip


def late(house: House, *messages: Message, by: timedelta) -> None:
    """Let messages be due since so long ago, and not be enqueued since then."""
    at = house.database_time() - by
    house.change(messages, send_at=at, next_attempt_at=at, enqueue_at=at)


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("kind", "name"),
    [("channel", "memory"), ("recipient", "ada"), ("tenant", "acme"), ("campaign", "summer")],
)
def test_a_paused_message_is_neither_claimed_nor_enqueued_until_it_is_resumed(
    pausing: House, kind: str, name: str
) -> None:
    all_of_it = {"scopes": {"tenant": "acme"}, "campaign": "summer"}
    kept = pausing.submit("ada", **all_of_it)
    free = pausing.submit("eve", channel="other", scopes={"tenant": "else"})
    late(pausing, kept, free, by=MINUTE)
    [pause] = pausing.dispatcher.pause(kind, name)
    assert (pause.kind, pause.name) == (kind, name)
    assert pausing.dispatcher.pause(kind, name) == (pause,)  # keeps its time

    assert pausing.parts.sweep.enqueue_due() == 1
    assert pausing.deliver(kept, free) == 1
    assert pausing.again(kept).status is Status.SCHEDULED
    assert pausing.again(free).status is Status.SENT
    assert pausing.dispatcher.story(kept.id).pauses == (pause,)
    assert pausing.dispatcher.status().pauses == pausing.dispatcher.pauses() == (pause,)
    taken = pausing.submit("ada", **all_of_it)
    assert pausing.deliver(taken) == 0

    assert pausing.dispatcher.resume(kind, name) == ()
    assert pausing.dispatcher.resume(kind, name) == ()
    assert pausing.dispatcher.story(kept.id).pauses == ()
    assert pausing.parts.sweep.enqueue_due() == 2
    assert pausing.deliver(kept, taken) == 2


def test_the_task_of_a_paused_message_does_not_ask_without_end(build: Build) -> None:
    """The task comes early: its message is due in half a second."""
    house = build(clock=SystemClock())
    message = house.submit("ada", send_in=timedelta(seconds=0.5))
    house.dispatcher.pause("channel", "memory")
    claims: list[None] = []
    house.between("delivery", "claims", before={"claim": lambda: claims.append(None)})
    assert house.deliver(message) == 0
    assert len(claims) < 10


def test_messages_long_overdue_are_enqueued_by_the_first_sweep_after_a_pause(
    pausing: House,
) -> None:
    kept = pausing.submit("ada")
    late(pausing, kept, by=10 * MINUTE)
    pausing.dispatcher.pause("channel", "memory")
    assert pausing.parts.sweep.enqueue_due() == 0  # it has looked at all that is due
    pausing.dispatcher.resume("channel", "memory")
    assert pausing.parts.sweep.enqueue_due() == 1


def test_catch_up_leaves_paused_messages_alone_until_they_are_resumed(build: Build) -> None:
    house = build(
        clock=hour_ago(), overdue_after="5 minutes",
        channels={"memory": {"transport": "memory", "catch_up": "expire"}},
    )  # fmt: skip
    kept = house.submit("ada")
    late(house, kept, by=10 * MINUTE)
    house.dispatcher.pause("recipient", "ada")
    before = house.again(kept)
    house.parts.sweep.catch_up()
    assert house.again(kept) == before
    house.dispatcher.resume("recipient", "ada")
    house.parts.sweep.catch_up()
    assert house.again(kept).status is Status.EXPIRED


def test_a_pause_is_resumed_though_a_channel_that_was_paused_is_gone(
    pausing: House, build: Build
) -> None:
    for name in ("memory", "other"):
        pausing.dispatcher.pause("channel", name)
    house = build(channels={"memory": {"transport": "memory"}})
    assert [pause.name for pause in house.dispatcher.resume("channel", "memory")] == ["other"]


@pytest.mark.every_database
def test_a_pause_is_not_lost_where_a_resume_forgets_its_old_row(pausing: House) -> None:
    pauses = pausing.parts.pauses
    old = pausing.database_time() - timedelta(hours=2)
    pausing.dispatcher.pause("tenant", "acme")
    with pausing.parts.database.engine.begin() as connection:
        connection.execute(update(pausing.parts.database.tables.pauses).values(resumed_at=old))
    database = vars(pauses)["_database"]
    resume = once(lambda: Pauses(database).end("tenant", "other"))
    vars(pauses)["_database"] = Between(database, before={"execute": resume})
    [pause] = pausing.dispatcher.pause("tenant", "acme")
    assert pause.name == "acme"


def test_bad_kinds_and_names_are_refused_and_named(pausing: House) -> None:
    with pytest.raises(InvalidValue, match=r"kind: .*channel, recipient, campaign, event, tenant"):
        pausing.dispatcher.pause("customer", "acme")
    with pytest.raises(UnknownChannel):
        pausing.dispatcher.pause("channel", "fax")
    with pytest.raises(InvalidValue, match="name"):
        pausing.dispatcher.resume("tenant", "")
    with pytest.raises(InvalidValue, match=r"name: .*65 characters"):
        pausing.dispatcher.pause("campaign", "s" * 65)
    assert pausing.dispatcher.status().pauses == ()
