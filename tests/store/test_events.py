"""A message of an event is stored only while the event is as it was read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select, update

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.events import EventChanged
from dispatcher.store.messages import Messages
from dispatcher.store.schema import Addition
from tests.support import rows
from tests.support.tables import TABLES, messages

pytestmark = pytest.mark.every_database
events = TABLES.events
_EVENT = "appointment:17"


def addition(token: str, **changes: Any) -> Addition:
    message = rows.a_message(event=_EVENT, wish=token, **changes)
    return rows.addition(message, fingerprint="print")._replace(event_token=token)


def of(token: str) -> dict[str, str]:
    return {"name": _EVENT, "token": token}


def write(database: Database, statement: Any) -> None:
    database.run(lambda connection: connection.execute(statement))


def test_nothing_is_stored_of_an_event_that_has_changed(database: Database) -> None:
    """Alone and together, with a key and without; unknown, moved or cancelled."""
    store = Messages(database)

    def refused(token: str) -> None:
        for keys in ({}, {"idempotency_key": "key"}):
            with pytest.raises(EventChanged):
                store.add(addition(token, **keys))
            with pytest.raises(EventChanged):
                store.add_together([addition(token, **keys), addition(token)])
        assert (rows.count(database), store.with_keys(["key"])) == (0, {})

    refused("new")
    write(database, insert(events).values(of("new")))
    refused("old")
    write(database, update(events).values(cancelled_at=rows.now()))
    refused("new")
    write(database, update(events).values(cancelled_at=None))
    first = addition("new", idempotency_key="key")
    assert store.add(first) == first.message == store.get(first.message.id)
    assert store.add_together([addition("new"), addition("new")])
    write(database, update(events).values(of("newer")))
    again = store.add(first, perhaps_stored=True)
    assert again == first.message, "it was stored while the event was as it was read"


def test_a_mover_sees_every_message_that_is_stored_before_its_move(database: Database) -> None:
    """Else a message would stand at the old time of its event for ever."""
    write(database, insert(events).values(of("0")))
    of_event = select(func.count()).where(messages.c.event == _EVENT)
    seen: dict[str, int] = {}

    def move(connection: Connection) -> None:
        number = len(seen)
        connection.execute(update(events).values(token=str(number + 1)))
        seen[str(number)] = connection.scalars(
            of_event.where(messages.c.wish == str(number))
        ).one()  # fmt: skip

    def submit(number: int) -> None:
        for turn in range(20):
            keys = {"idempotency_key": f"{number} {turn}"} if turn % 3 else {}
            addings = [addition(str(len(seen)), **keys)]
            with suppress(StoreUnavailable):  # it has moved, or SQLite is busy
                if turn % 2:
                    addings.append(addition(addings[0].message.wish or ""))
                    Messages(database).add_together(addings)
                else:
                    Messages(database).add(addings[0])

    with ThreadPoolExecutor() as threads:
        submitters = [threads.submit(submit, number) for number in range(4)]
        while not all(submitter.done() for submitter in submitters):
            with suppress(StoreUnavailable):
                database.transact(move, once=True)
        for submitter in submitters:
            submitter.result()
    for token, count in seen.items():
        stored = database.read(of_event.where(messages.c.wish == token))
        assert stored[0][0] == count, token
    assert sum(seen.values()) > 0
