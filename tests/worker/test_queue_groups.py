"""Which messages share a task: pure, whatever order they come in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.celery.queue import EARLY, Ticket, group
from dispatcher.message import new_id

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
COALESCE = 50 * MS
KIND = attrgetter("alone", "channel", "is_first")

tickets_of_all_kinds = st.lists(
    st.builds(
        lambda *facts: Ticket(new_id(), *facts),
        st.sampled_from(["sms", "email"]),
        st.integers(0, 300).map(lambda offset: NOON + offset * MS),
        st.sampled_from([False, False, True]),
        st.booleans(),
    ),
    max_size=40,
)


@given(tickets=tickets_of_all_kinds, size=st.integers(1, 6))
def test_every_message_is_in_exactly_one_group_that_keeps_the_bounds(
    tickets: list[Ticket], size: int
) -> None:
    """A task of repeated messages begins with the last: before its turn it asks in vain."""
    groups = list(group(tickets, coalesce=COALESCE, size=size))
    by_id = {ticket.message_id: ticket for ticket in tickets}
    assert sorted(id_ for task in groups for id_ in task.message_ids) == sorted(by_id)
    for task in groups:
        members = [by_id[message_id] for message_id in task.message_ids]
        assert 1 <= len(members) <= (1 if members[0].alone else size)
        due = [member.due_at for member in members]
        assert due == sorted(due)
        assert task.begins_at == (due[0] - EARLY if task.is_first else due[-1])
        kinds = {(member.channel, member.is_first) for member in members}
        assert kinds == {(task.channel, task.is_first)}
        assert due[-1] - due[0] <= COALESCE
    for task, following in pairwise(groups):
        first, other = by_id[task.message_ids[0]], by_id[following.message_ids[0]]
        are_alike = (first.channel, first.is_first, first.alone) == (
            other.channel,
            other.is_first,
            other.alone,
        )
        if are_alike and not first.alone:
            is_full = len(task.message_ids) == size
            assert is_full or other.due_at - first.due_at > COALESCE, "they share a task"
