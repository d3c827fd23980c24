"""Messages are cancelled at the very moment at which they are due."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from dispatcher import Draft, TooLate
from dispatcher.message import Message
from tests.support.environment import CHANNEL, Environment, Maker
from tests.support.waiting import wait_until

MESSAGES = 200
CALLERS = 6
BEFORE_MS, AFTER_MS = 100, 20
"""Around the time of a message: it is claimed a moment before."""


@pytest.mark.long
# PostgreSQL lets a cancel and a claim of one message race; SQLite runs one writer at a time.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_confirmed_cancel_is_final_even_at_the_due_time(environment: Maker) -> None:
    running = environment()
    start = datetime.now(UTC) + timedelta(seconds=5)
    drafts = [
        Draft(
            channel=CHANNEL,
            recipient=f"person-{number}",
            body={},
            send_at=start + timedelta(milliseconds=10 * number),
        )
        for number in range(MESSAGES)
    ]
    answers = running.dispatcher.submit_many(drafts)
    accepted = [answer for answer in answers if isinstance(answer, Message)]
    assert len(accepted) == MESSAGES
    with ThreadPoolExecutor(CALLERS) as callers:
        shares = [(running, accepted[first::CALLERS]) for first in range(CALLERS)]
        cancelled = [id_ for share in callers.map(cancel_when_due, shares) for id_ in share]
    running.wait_until_ended()
    running.check(accepted, cancelled=cancelled)


def has_come(moment: datetime) -> bool:
    return datetime.now(UTC) >= moment


def cancel_when_due(share: tuple[Environment, list[Message]]) -> list[UUID]:
    """Cancel each message shortly before or after its time; return the confirmed ones."""
    running, messages = share
    confirmed = []
    for number, message in enumerate(messages):
        offset = timedelta(milliseconds=number * 7 % (BEFORE_MS + AFTER_MS) - BEFORE_MS)
        moment = message.send_at + offset
        wait_until(partial(has_come, moment), every=0.001)
        try:
            running.dispatcher.cancel(message.id)
        except TooLate:
            continue
        confirmed.append(message.id)
    return confirmed
