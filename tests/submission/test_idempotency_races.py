"""One key submitted by many threads and many processes at once is one message."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from dispatcher import Dispatcher, IdempotencyConflict, Message, Settings
from dispatcher.times.send_time import to_ms
from tests.support.clock import MovableClock
from tests.support.doubles import at_once
from tests.support.house import BODY, FAR, House
from tests.support.processes import in_processes

SOON = FAR + timedelta(minutes=1)
THREADS = 32
PROCESSES = 4
ROUNDS = 10


def wish(key: str, hours: int = 0) -> dict[str, Any]:
    return {
        "channel": "memory",
        "recipient": "ada",
        "body": BODY,
        "send_at": SOON + timedelta(hours=hours),
        "idempotency_key": key,
    }


def test_threads_with_one_key_and_two_contents_agree_on_one(house: House) -> None:
    bodies = [{"text": "one"}, {"text": "two"}] * (THREADS // 2)
    answers = at_once(
        [partial(house.dispatcher.submit, **wish("key") | {"body": body}) for body in bodies]
    )
    messages = [answer for answer in answers if isinstance(answer, Message)]
    conflicts = [answer for answer in answers if isinstance(answer, IdempotencyConflict)]
    assert len(messages) + len(conflicts) == THREADS
    assert len({message.id for message in messages}) == 1
    assert len(messages) == THREADS // 2
    assert len(house.rows()) == 1
    assert house.reservations() == house.all_members()


def _submit_all(gate: Any, number: int, settings: Settings) -> list[str]:
    with Dispatcher(settings, clock=MovableClock(FAR)) as dispatcher:
        [*dispatcher.select()]
        dispatcher.next_slot(recipient="nobody")
        ids = []
        for turn in range(ROUNDS):
            gate.wait(60)
            ids.append(str(dispatcher.submit(**wish(f"key {turn}", hours=turn * 24)).id))
        return ids


@pytest.mark.long
def test_processes_with_one_key_make_one_message(house: House) -> None:
    told = in_processes(PROCESSES, _submit_all, house.settings)
    for same in zip(*told, strict=True):
        assert len(set(same)) == 1, same
    ids = {UUID(message_id) for message_id in told[0]}
    assert len(ids) == ROUNDS
    assert {row[0] for row in house.rows()} == ids
    expected = {to_ms(SOON + timedelta(hours=24 * turn)) for turn in range(ROUNDS)}
    assert set(house.members()) == ids
    assert set(house.members().values()) == expected
