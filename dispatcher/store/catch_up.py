"""Overdue messages on channels that do not send them late: expire them, or book them again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, not_, or_, select, update

from dispatcher.message import Message, Status
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.rows import Movable, movable_columns, to_movable
from dispatcher.store.schema import Tables

OVERDUE = "overdue: nobody took it in time"
NO_SLOT = "overdue: no slot was left for it"


class OverdueBatch(NamedTuple):
    """Overdue messages in the order of their times, and the database's present instant."""

    found: list[Movable]
    now: datetime


def overdue(tables: Tables, channels: Collection[str], after: timedelta) -> ColumnElement[bool]:
    """Return the condition that a message is overdue on one of ``channels``.

    It has been due for longer than ``after`` and has no attempt. A snoozed message is due at the
    time that the limiter gave.
    """
    messages = tables.messages
    return and_(
        messages.c.status == Status.SCHEDULED.value,
        messages.c.next_attempt_at <= later(database_now(), -after.total_seconds()),
        messages.c.attempt_count == 0,
        messages.c.channel.in_(sorted(channels)),
    )


class Overdue:
    """The statements of ``catch_up``. Any number of sweeps may run side by side.

    ``expire`` and ``reslot`` are the channels whose overdue messages expire, or are booked again.
    """

    def __init__(
        self,
        database: Database,
        *,
        after: timedelta,
        expire: Collection[str] = (),
        reslot: Collection[str] = (),
    ) -> None:
        self._database = database
        self._tables = database.tables
        self._to_expire = overdue(self._tables, expire, after)
        self._to_reslot = overdue(self._tables, reslot, after)

    def expire(self, *, at_most: int) -> dict[UUID, str]:
        """Expire overdue messages of ``expire``, and those of ``reslot`` past their expiry.

        Return the ids with their channels.
        """
        messages = self._tables.messages
        now = database_now()
        too_late = and_(self._to_reslot, messages.c.expires_at <= now)
        ends = or_(self._to_expire, too_late)
        wanted = (
            select(messages.c.id)
            .where(ends, messages.c.enqueue_at <= now)
            .order_by(messages.c.enqueue_at)
            .limit(at_most)
            .with_for_update(skip_locked=True)
        )
        end = (
            update(messages)
            .where(ends)
            .values(status=Status.EXPIRED.value, finished_at=now, last_error=OVERDUE)
        )
        rows = self._database.update_returning(wanted, end, messages.c.id, messages.c.channel)
        return dict(tuple(row) for row in rows)

    def take(self, *, at_most: int, ttl: timedelta) -> OverdueBatch | None:
        """Take overdue messages of ``reslot``, in the order of their send times.

        No other sweep takes them until ``ttl`` is over. The batch ends before the first message
        that another sweep has taken, to keep the order. None where no message is left.
        """
        tables = self._tables
        messages = tables.messages
        now = database_now()
        free = and_(self._to_reslot, messages.c.enqueue_at <= now)
        ordered = select(messages.c.id).order_by(messages.c.send_at, messages.c.id).limit(at_most)
        these = free
        if self._database.backend.locks_what_it_sorts:
            first = ordered.where(free)
            ids = self._database.run(lambda connection: connection.scalars(first).all())
            these = and_(free, messages.c.id.in_(ids))
        wanted = ordered.where(these).with_for_update(skip_locked=True)
        taken_until = later(now, ttl.total_seconds())
        put_off = update(messages).values(enqueue_at=taken_until)
        rows = self._database.update_returning(wanted, put_off, *movable_columns(tables))
        if not rows:
            return None
        found = sorted(map(to_movable, rows), key=_key)
        # Two sweeps lock row by row, so that each may have some of the same span. Nothing is booked
        # again before an earlier message that another sweep has, also one not yet put off.
        others = select(func.min(messages.c.send_at)).where(
            self._to_reslot,
            messages.c.enqueue_at <= taken_until,
            not_(self._database.one_of(messages.c.id, [each.message.id for each in found])),
        )
        first_other = self._database.run(lambda connection: connection.scalar(others))
        if first_other is not None:
            later_ones = [each for each in found if each.message.send_at > first_other]
            if later_ones:
                self.put_back([each.message for each in later_ones])
                found = found[: -len(later_ones)]
        if not found:
            return None
        return OverdueBatch(found, rows[0].read_at)

    def put_back(self, taken: Sequence[Message]) -> None:
        """Let the next sweep take messages that were not booked again."""
        messages = self._tables.messages
        these = messages.c.id.in_([each.id for each in taken])
        statement = update(messages).where(these, self._to_reslot)
        again = statement.values(enqueue_at=database_now())
        self._database.execute(again)

    def give_up(self, message: Message) -> bool:
        """Expire a message without a slot, unless it was changed since it was taken.

        Return whether it has expired for that reason.
        """
        messages = self._tables.messages
        statement = (
            update(messages)
            .where(
                messages.c.id == message.id,
                messages.c.send_at == message.send_at,
                self._to_reslot,
            )
            .values(status=Status.EXPIRED.value, finished_at=database_now(), last_error=NO_SLOT)
        )
        ended = (
            messages.c.id == message.id,
            messages.c.status == Status.EXPIRED.value,
            messages.c.last_error == NO_SLOT,
        )

        return bool(self._database.change(statement, select(messages.c.id).where(*ended)))


def _key(found: Movable) -> tuple[datetime, UUID]:
    return found.message.send_at, found.message.id
