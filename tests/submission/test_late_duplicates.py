"""A repeated keyed submit shares the place of the first one, be it dead or under way beside it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update

from dispatcher import (
    IdempotencyConflict,
    Message,
    MessageNotFound,
    QuotaExceeded,
    StoreUnavailable,
)
from dispatcher.times.send_time import to_ms
from tests.support.doubles import Between, at_once, once, raising
from tests.support.house import FAR, House, let_graces_pass
from tests.support.house_fixtures import Build
from tests.support.tables import messages

SOON = FAR + timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def keyed(house: House) -> Message:
    return house.submit(send_at=SOON, idempotency_key="key")


def die_after_reserving(house: House) -> UUID:
    """Let a keyed submit die before it stores anything; return the id that has the place."""
    before = house.parts.messages
    house.swap("messages", Between(before, before={"add": raising(KeyboardInterrupt())}))
    with pytest.raises(KeyboardInterrupt):
        keyed(house)
    house.swap("messages", before)
    [message_id] = house.members()
    return message_id


def orphaned(build: Build) -> tuple[House, House, UUID]:
    """Return two houses, and the id of a keyed submit that died beyond the grace."""
    house, second = build(), build()
    first = die_after_reserving(house)
    let_graces_pass(house)
    return house, second, first


def sweep_late(house: House) -> int:
    """Let the sweep find everything pending beyond the grace; return how many it released."""
    let_graces_pass(house)
    return house.parts.reconciler.reconcile().released


def between_read_and_release(house: House, action: Callable[[], object], when: str) -> None:
    """Act once, around the moment at which the sweep asks the store for what it found pending."""
    house.between("reconciler", "store", **{when: {"reserved_times": once(action)}})


@pytest.mark.every_database
def test_a_row_stored_after_the_sweep_looked_has_its_place(build: Build) -> None:
    house, second, first = orphaned(build)
    reconcile = once(house.parts.reconciler.reconcile)
    second.swap("messages", Between(second.parts.messages, before={"add": reconcile}))
    message = keyed(second)
    assert message.id == first
    assert house.reservations() == house.all_members() == {"ada": {first: to_ms(SOON)}}
    let_graces_pass(house)
    assert house.parts.reconciler.reconcile().confirmed == 1
    assert house.reservations() == house.all_members()
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=SOON + SECOND)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_place_shared_again_while_the_sweep_gives_it_up_is_shared_by_nobody(
    build: Build, when: str
) -> None:
    house, second, first = orphaned(build)
    shared: list[UUID] = []
    between_read_and_release(house, lambda: shared.append(die_after_reserving(second)), when)
    house.parts.reconciler.reconcile()
    assert shared == [first]
    assert house.members() == {}
    assert house.pending() == set()
    message = keyed(second)
    assert message.id != first
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


@pytest.mark.every_database
@pytest.mark.parametrize("key", ["key", None])
def test_a_submit_that_stood_still_until_its_place_was_given_up_books_another(
    build: Build, key: str | None
) -> None:
    house, second = build(), build()
    given_up: list[UUID] = []

    def sweep() -> None:
        given_up.extend(house.members())
        assert sweep_late(house) == 1

    second.swap("messages", Between(second.parts.messages, before={"add": once(sweep)}))
    message = second.submit(send_at=SOON, idempotency_key=key)
    assert given_up
    assert message.id not in given_up
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}
    assert [row[0] for row in house.rows()] == [message.id]


def test_a_submit_whose_reservation_is_given_up_twice_ends_and_leaves_nothing(build: Build) -> None:
    house, second = build(), build()
    sweeps: list[int] = []

    def sweep() -> None:
        assert len(sweeps) < 2, "it is judged once more, and not for ever"
        sweeps.append(sweep_late(house))

    second.swap("messages", Between(second.parts.messages, before={"add": sweep}))
    with pytest.raises(StoreUnavailable, match="submit it again"):
        second.submit(send_at=SOON)
    assert sweeps == [1, 1]
    assert house.all_members() == {}
    assert house.rows() == []


def test_an_id_given_up_is_no_message_and_is_pruned(build: Build) -> None:
    house = build()
    first = die_after_reserving(house)
    sweep_late(house)
    assert [*house.dispatcher.select()] == []
    desk = house.dispatcher
    move = partial(desk.reschedule, send_at=SOON + SECOND)
    change = partial(desk.update, body={"text": "another"})
    for ask in (
        desk.get, desk.story, desk.cancel, desk.release, desk.drop, desk.retry, move, change
    ):  # fmt: skip
        with pytest.raises(MessageNotFound):
            ask(first)
    [answer] = desk.cancel_many([first])
    assert isinstance(answer, MessageNotFound)
    assert house.dispatcher.verify_windows().equal
    assert len(house.sql("SELECT 1 FROM dispatcher_messages")) == 1
    assert house.parts.sweep.prune() == 0
    long_ago = house.database_time() - house.settings.retention - timedelta(days=2, seconds=1)
    old = update(messages).values(next_attempt_at=long_ago)
    house.database.run(lambda connection: connection.execute(old))
    assert house.parts.sweep.prune() == 1


def test_threads_with_one_key_and_two_contents_agree_on_one(house: House) -> None:
    bodies = [{"text": "one"}, {"text": "two"}] * 16
    asked: dict[str, Any] = {"send_at": SOON, "idempotency_key": "key"}
    answers = at_once([partial(house.submit, **asked, body=body) for body in bodies])
    messages = [answer for answer in answers if isinstance(answer, Message)]
    conflicts = [answer for answer in answers if isinstance(answer, IdempotencyConflict)]
    assert len(messages) == len(conflicts) == 16
    assert len({message.id for message in messages}) == 1
    assert len(house.rows()) == 1
    assert house.reservations() == house.all_members()
