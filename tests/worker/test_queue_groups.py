"""Which messages share a task: pure, whatever order they come in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.celery.queue import EARLY, Ticket, group, rank_of
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
        st.sampled_from([0, 0, 50, -1]),
        st.sampled_from(["", "tenant:a", "tenant:b"]),
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
        most = 1_000 if task.is_bulk else size
        assert 1 <= len(members) <= (1 if members[0].alone else most)
        due = [member.due_at for member in members]
        assert due == sorted(due)
        assert task.begins_at == (due[0] - EARLY if task.is_first else due[-1])
        kinds = {(member.channel, member.is_first, member.priority) for member in members}
        assert kinds == {(task.channel, task.is_first, members[0].priority)}
        assert due[-1] - due[0] <= COALESCE
    for task, following in pairwise(groups):
        first, other = by_id[task.message_ids[0]], by_id[following.message_ids[0]]
        are_alike = (first.channel, first.is_first, first.alone, first.priority) == (
            other.channel,
            other.is_first,
            other.alone,
            other.priority,
        )
        if are_alike and not first.alone and not task.is_bulk and not following.is_bulk:
            is_full = len(task.message_ids) == size
            assert is_full or other.due_at - first.due_at > COALESCE, "they share a task"


def test_those_of_small_shares_are_in_the_first_tasks_and_the_rest_of_a_large_one_is_bulk() -> None:
    large = [Ticket(new_id(), "sms", NOON, share="tenant:large") for _ in range(900)]
    small = [Ticket(new_id(), "sms", NOON, share=f"tenant:{n % 20}") for n in range(60)]
    tasks = list(group([*large, *small], coalesce=COALESCE, size=50))
    early = {id_ for task in tasks[:2] for id_ in task.message_ids}
    assert {ticket.message_id for ticket in small} <= early
    assert [task.is_bulk for task in tasks] == [False, False, True]
    assert [task.rank for task in tasks] == sorted(task.rank for task in tasks)


def test_a_rank_puts_priorities_first_and_then_what_comes_again() -> None:
    tickets = [
        Ticket(new_id(), "sms", NOON, is_first=is_first, priority=priority)
        for priority in (-100, 0, 1, 100)
        for is_first in (True, False)
    ]
    tasks = sorted(group(tickets, coalesce=COALESCE, size=50), key=attrgetter("rank"))
    by_id = {ticket.message_id: ticket for ticket in tickets}
    order = [by_id[task.message_ids[0]] for task in tasks]
    assert order == sorted(tickets, key=lambda ticket: (-ticket.priority, ticket.is_first))
    usual = [task for task in tasks if by_id[task.message_ids[0]].priority == 0]
    assert [task.rank for task in usual] == [rank_of(False), rank_of(True)], "as older workers say"
