"""A change with ``if_unchanged`` loses no other change, whoever comes between."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import (
    InvalidDraft,
    Message,
    MessageChanged,
    MessageNotFound,
    QuotaExceeded,
    StoreUnavailable,
    TooLate,
)
from dispatcher.message import new_id
from dispatcher.times.send_time import to_ms
from tests.support.doubles import once
from tests.support.examples import examples
from tests.support.house import FAR, House

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
EDITORS = examples(64)

Edit = Callable[[House, Message], Message]
EDITS: dict[str, Edit] = {
    "update": lambda house, read: house.dispatcher.update(
        read.id, body={"text": "edited"}, if_unchanged=read
    ),
    "priority": lambda house, read: house.dispatcher.update(
        read.id, priority=read.priority + 1, if_unchanged=read
    ),
    "reschedule": lambda house, read: house.dispatcher.reschedule(
        read.id, send_at=read.send_at + HOUR, if_unchanged=read
    ),
    "expiry": lambda house, read: house.dispatcher.reschedule(
        read.id, send_at=read.send_at, expire_after=HOUR, if_unchanged=read
    ),
    "cancel": lambda house, read: house.dispatcher.cancel(read.id, if_unchanged=read),
}
every_edit = pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)


@pytest.fixture
def message(house: House) -> Message:
    return house.submit(send_at=FAR + HOUR)


@pytest.mark.every_database
@every_edit
def test_a_message_as_it_was_submitted_is_changed(
    house: House, message: Message, edit: Edit
) -> None:
    assert edit(house, message) == house.again(message) != message


def test_what_was_no_message_is_refused_and_changes_nothing(house: House, message: Message) -> None:
    methods: list[tuple[str, dict[str, Any]]] = [
        ("cancel", {}), ("retry", {}), ("release", {}), ("drop", {}),
        ("update", {"body": {"text": "edited"}}), ("update", {"priority": 1}),
    ]  # fmt: skip
    for method, more in methods:
        for read in (True, "an id", FAR):
            with pytest.raises(InvalidDraft, match="if_unchanged"):
                getattr(house.dispatcher, method)(message.id, if_unchanged=read, **more)
    assert house.again(message) == message


@every_edit
@pytest.mark.parametrize("other", ["update", "priority", "reschedule", "expiry"])
def test_a_change_since_the_read_refuses_it(
    house: House, message: Message, edit: Edit, other: str
) -> None:
    changed = EDITS[other](house, message)
    with pytest.raises(MessageChanged):
        edit(house, message)
    assert house.again(message) == changed
    assert house.members() == {message.id: to_ms(changed.send_at)}


@every_edit
@pytest.mark.parametrize("other", ["update", "priority", "reschedule"])
def test_a_change_between_the_check_and_the_write_refuses_it(
    house: House, message: Message, edit: Edit, other: str
) -> None:
    """The token guards the write, also where the other change left the row as it was."""

    def there_and_back() -> None:
        if other == "update":
            house.dispatcher.update(message.id, body=message.body)
        elif other == "priority":
            house.dispatcher.update_many([message.id], priority=message.priority)
        else:
            house.dispatcher.reschedule(message.id, send_at=message.send_at + 3 * HOUR)
            house.dispatcher.reschedule(message.id, send_at=message.send_at)

    meanwhile = once(there_and_back)
    for use_case in ("changes", "moves", "cancellation"):
        calls = ("update", "move", "cancel")
        house.between(use_case, "messages", before=dict.fromkeys(calls, meanwhile))
    with pytest.raises(MessageChanged):
        edit(house, message)
    assert house.again(message) == message


@pytest.mark.every_database
@pytest.mark.parametrize("wish", [{}, {"expire_after": HOUR}], ids=["nothing", "expiry"])
@pytest.mark.parametrize("other", ["update", "same"])
def test_a_change_that_leaves_the_wanted_time_and_expiry_refuses_it(
    house: House, message: Message, wish: dict[str, Any], other: str
) -> None:
    """The row has what is wanted then, and no tail tells whose it is."""
    same: dict[str, Any] = {"send_at": message.send_at, **wish}

    def change() -> None:
        if other == "update":
            house.dispatcher.update(message.id, body={"text": "other"})
        house.dispatcher.reschedule(message.id, **same)

    house.between("moves", "messages", before={"move": once(change)})
    with pytest.raises(MessageChanged):
        house.dispatcher.reschedule(message.id, if_unchanged=message, **same)
    assert house.members() == {message.id: to_ms(message.send_at)}


@every_edit
def test_edits_of_missing_and_ended_messages_are_refused(
    house: House, message: Message, edit: Edit
) -> None:
    ended = house.dispatcher.cancel(message.id)
    if edit is not EDITS["cancel"]:
        with pytest.raises(TooLate):
            edit(house, ended)
    unknown = Message(**{f: getattr(message, f) for f in Message.__slots__} | {"id": new_id()})
    with pytest.raises(MessageNotFound):
        edit(house, unknown)


@pytest.mark.every_database
@pytest.mark.parametrize("what", ["body", "time", "priority"])
def test_editors_side_by_side_lose_no_edit(house: House, message: Message, what: str) -> None:
    """Each reads, adds one, and begins again where it is refused: all are counted."""

    def add_one(_: int) -> None:
        while True:
            read = house.dispatcher.get(message.id)
            try:
                if what == "body":
                    count = int(read.body.get("count", 0)) + 1
                    house.dispatcher.update(read.id, body={"count": count}, if_unchanged=read)
                elif what == "priority":
                    more = read.priority + 1
                    house.dispatcher.update(read.id, priority=more, if_unchanged=read)
                else:
                    at = read.send_at + SECOND
                    house.dispatcher.reschedule(read.id, send_at=at, if_unchanged=read)
            except (MessageChanged, QuotaExceeded):  # another one has the time, or holds it
                continue
            return

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add_one, range(EDITORS)))
    now = house.again(message)
    if what == "body":
        assert now.body == {"count": EDITORS}
    elif what == "priority":
        assert now.priority == EDITORS
    else:
        assert now.send_at == message.send_at + EDITORS * SECOND
        assert house.members() == {message.id: to_ms(now.send_at)}


def test_a_lost_answer_is_not_taken_for_another_change(house: House, message: Message) -> None:
    """The connection broke after the change: it finds the message changed by itself."""
    run = house.parts.database.run
    vars(house.parts.database)["run"] = lambda work, **how: (run(work, **how), run(work, **how))[1]
    edited = house.dispatcher.update(message.id, body={"text": "edited"}, if_unchanged=message)
    at = message.send_at + SECOND
    moved = house.dispatcher.reschedule(message.id, send_at=at, if_unchanged=edited)
    urgent = house.dispatcher.update(message.id, priority=50, if_unchanged=moved)
    assert (urgent.send_at, urgent.body, urgent.priority) == (at, {"text": "edited"}, 50)
    both = house.dispatcher.update(message.id, body={"n": 1}, priority=-5, if_unchanged=urgent)
    assert (both.body, both.priority) == ({"n": 1}, -5)
    assert house.again(message) == both


def test_whether_an_edit_was_made_is_not_known_where_another_one_followed(
    house: House, message: Message
) -> None:
    """The connection broke after the COMMIT, and another editor came before the second try."""
    database, [before] = house.parts.database, house.parts.messages.movables([message.id]).values()
    transact = database.transact

    def broken(work: Callable[[Any], Any]) -> Any:
        transact(work)
        vars(database)["transact"] = transact
        house.dispatcher.update(message.id, body={"text": "theirs"})
        return transact(work)

    vars(database)["transact"] = broken
    with pytest.raises(StoreUnavailable, match="may have changed the message"):
        house.parts.messages.update([message.id], tokens={message.id: before.token}, body={"x": 1})
    assert house.again(message).body == {"text": "theirs"}
