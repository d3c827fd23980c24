"""Hands message ids to Celery. What is said here is a hint: the store is the promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from celery import Celery

from dispatcher.celery_app import DELIVER
from dispatcher.clock import Clock
from dispatcher.errors import QueueUnavailable

EARLY = timedelta(milliseconds=20)
"""How long before the first of a group is due its task begins, to claim it and take permits."""
_PAUSE_SECONDS = 1.0
_BATCH = 500


class Ticket(NamedTuple):
    """A message to be delivered, and when; ``alone`` where it must share its task with no other."""

    message_id: UUID
    channel: str
    due_at: datetime
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of one channel that share a task; ``due_at`` is when the first of them is due."""

    channel: str
    message_ids: tuple[UUID, ...]
    due_at: datetime


def group(tickets: Iterable[Ticket], *, coalesce: timedelta, size: int) -> Iterator[Group]:
    """Put messages of one channel due within ``coalesce`` together, at most ``size`` a group."""
    ordered = sorted(tickets, key=lambda ticket: (ticket.channel, ticket.due_at))
    members: list[Ticket] = []
    for ticket in ordered:
        if ticket.alone:
            yield _closed([ticket])
            continue
        if members and (
            ticket.channel != members[0].channel
            or ticket.due_at - members[0].due_at > coalesce
            or len(members) == size
        ):
            yield _closed(members)
            members = []
        members.append(ticket)
    if members:
        yield _closed(members)


def _closed(members: Sequence[Ticket]) -> Group:
    first = members[0]
    return Group(first.channel, tuple(member.message_id for member in members), first.due_at)


class Queue:
    """Publishes ``deliver`` tasks with an ETA; each carries ids and the name of their channel.

    Each channel has a queue of its own. ``queue_of`` names it.
    Raises QueueUnavailable, within about a second whatever the broker does. After a failure it
    does not ask the broker again for a second, so that many submits do not each wait for it.
    """

    def __init__(
        self,
        app: Celery,
        *,
        queue_of: Callable[[str], str],
        clock: Clock,
        coalesce: timedelta,
        group_size: int,
    ) -> None:
        self._app = app
        self._queue_of = queue_of
        self._clock = clock
        self._coalesce = coalesce
        self._group_size = group_size
        self._declared: set[str] = set()
        self._paused_until = 0.0

    def enqueue(self, tickets: Sequence[Ticket]) -> None:
        """Publish tasks for these messages. Raises QueueUnavailable: some may be published."""
        if self._clock.monotonic() < self._paused_until:
            raise QueueUnavailable("the broker did not answer a moment ago")
        groups = group(tickets, coalesce=self._coalesce, size=self._group_size)
        try:
            self._publish(list(groups))
        except Exception as error:
            self._declared.clear()
            self._paused_until = self._clock.monotonic() + _PAUSE_SECONDS
            raise QueueUnavailable(
                f"the broker did not take the tasks ({type(error).__name__})"
            ) from error

    def close(self) -> None:
        """Close the connections to the broker."""
        self._app.close()

    def _publish(self, groups: Sequence[Group]) -> None:
        now = self._clock.now()
        with self._app.producer_pool.acquire(block=True, timeout=1) as producer:
            for name in {self._queue_of(each.channel) for each in groups} - self._declared:
                producer.maybe_declare(self._app.amqp.queues[name])
                self._declared.add(name)
            batch: Any = producer  # celery-types does not know Producer.batch yet
            with batch.batch(_BATCH):
                for each in groups:
                    begins_at = each.due_at - EARLY
                    ids = [str(message_id) for message_id in each.message_ids]
                    self._app.send_task(
                        DELIVER,
                        args=(ids, each.channel),
                        eta=begins_at if begins_at > now else None,
                        queue=self._queue_of(each.channel),
                        producer=producer,
                        declare=[],
                        retry=False,
                        ignore_result=True,
                        argsrepr="",
                        kwargsrepr="",
                    )
