"""Which messages share a task: pure, whatever order they come in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.celery.queue import EARLY, TaskGroup, Ticket, group
from dispatcher.message import new_id

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
COALESCE = 50 * MS


def ticket(offset_ms: int, channel: str = "sms") -> Ticket:
    return Ticket(new_id(), channel, NOON + offset_ms * MS)


def grouped(tickets: list[Ticket], size: int = 50) -> list[TaskGroup]:
    return list(group(tickets, coalesce=COALESCE, size=size))


def test_repeated_messages_go_in_the_task_of_the_last_of_them() -> None:
    """Before its turn it would ask for its permit in vain."""
    first, second = ticket(0), ticket(50)
    again = [each._replace(is_first=False) for each in (ticket(10), ticket(40))]
    assert grouped([*again, first, second]) == [
        TaskGroup("sms", tuple(each.message_id for each in again), again[1].due_at, False),
        TaskGroup("sms", (first.message_id, second.message_id), first.due_at - EARLY),
    ]


def test_a_lone_message_shares_no_task() -> None:
    first, alone, second = ticket(0), ticket(1)._replace(alone=True), ticket(2)
    found = {each.message_ids for each in grouped([first, alone, second])}
    assert found == {(alone.message_id,), (first.message_id, second.message_id)}


tickets = st.lists(
    st.builds(ticket, st.integers(0, 300), st.sampled_from(["sms", "email"])), max_size=40
)


@given(tickets=tickets, size=st.integers(1, 6))
def test_every_message_is_in_exactly_one_group_that_keeps_the_bounds(
    tickets: list[Ticket], size: int
) -> None:
    groups = grouped(tickets, size)
    by_id: dict[UUID, Ticket] = {each.message_id: each for each in tickets}
    ids = [message_id for each in groups for message_id in each.message_ids]
    assert sorted(ids) == sorted(by_id)
    for each in groups:
        members = [by_id[message_id] for message_id in each.message_ids]
        assert 1 <= len(members) <= size
        due = [member.due_at for member in members]
        assert due == sorted(due)
        assert due[0] - EARLY == each.begins_at
        assert {member.channel for member in members} == {each.channel}
        assert due[-1] - due[0] <= COALESCE
