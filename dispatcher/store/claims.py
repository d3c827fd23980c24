"""Claims: take messages to deliver them, record their outcomes, put them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from uuid import UUID, uuid4

import sqlalchemy as sa

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.database import Database
from dispatcher.store.engines.base import Prepared
from dispatcher.store.engines.types import Instant, database_now, id_type, later, one_of
from dispatcher.store.lists import REASON
from dispatcher.store.schema import MOST_ATTEMPTS, Tables, to_message

_NO_WAIT = timedelta(0)
_NOW = database_now()
_MARK = sa.bindparam("mark", type_=id_type())
_OPEN = frozenset({Status.SENDING, Status.HELD})
"""The outcome of the last attempt is not known yet."""
_MAY_BE_SENT = _OPEN | {Status.SCHEDULED, Status.FAILED}
"""A success that comes to light ends the message as sent."""

# Stored in last_error, and compared with it (_is_suspect): a row with another text is no suspect.
UNKNOWN = "the outcome of the last attempt is unknown: its worker died or lost its connection"
NOT_BEGUN = "not sent: its worker died before the send began"
"""If the next worker dies before the send, too, the attempt counts; one that lives clears this."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A message that this worker delivers until the claim ends. The token guards the record.

    At the time of the claim, in seconds: ``due_in`` until it is due, ``expires_in`` until its
    expiry (None: without one), ``late_by`` since its send time.
    """

    message: Message
    token: int
    due_in: float = 0.0
    expires_in: float | None = None
    late_by: float = 0.0

    @property
    def attempt(self) -> tuple[UUID, int]:
        return self.message.id, self.token


@dataclass(frozen=True, slots=True)
class Success:
    claim: Claim
    receipt: str | None
    outcome: ClassVar[Outcome] = Outcome.SENT


@dataclass(frozen=True, slots=True)
class Failure:
    """A send that failed. ``wait`` until the next try; None when there will be none.

    ``error_type`` is not stored. Where it does not count, the message may be tried once more.
    """

    claim: Claim
    outcome: Outcome
    error: str
    wait: timedelta | None
    error_type: str | None = None
    counts: bool = True

    @property
    def is_held(self) -> bool:
        return self.outcome is Outcome.UNKNOWN and self.claim.message.on_unknown == "hold"


class Unclaimed(NamedTuple):
    """Messages that could not be claimed: ``waits`` of early ones, channels of those now ended."""

    waits: dict[UUID, timedelta]
    expired: dict[UUID, str]
    cancelled: dict[UUID, str]


class AttemptEnd(NamedTuple):
    """The end of an attempt; now, where no instant is named."""

    of: UUID
    by: int
    outcome: str
    error: str | None = None
    receipt: str | None = None
    ended_at: datetime | None = None


class Delays(NamedTuple):
    """Messages whose delay is told now, and the status messages added to report it."""

    told: Sequence[UUID] = ()
    reports: Sequence[UUID] = ()


class Claims:
    """Takes messages to deliver them and records their outcomes. Every call may be run again.

    ``kept_back`` is the condition of messages that are paused, or overdue and to expire.
    ``report_delays`` adds status messages in the transaction that notes the delays.
    """

    def __init__(
        self,
        database: Database,
        *,
        ttl: timedelta,
        kept_back: sa.ColumnElement[bool] | None = None,
        report_delays: Callable[[sa.Connection, Sequence[UUID]], Sequence[UUID]] | None = None,
    ) -> None:
        tables, backend = database.tables, database.backend
        self._database = database
        self._tables = tables
        self._locked = LockedMessages(database)
        self._ttl = ttl
        self._report_delays = report_delays
        not_suppressed = ~tables.is_suppressed
        may_be_taken = not_suppressed if kept_back is None else sa.and_(not_suppressed, ~kept_back)
        messages, attempts = tables.messages, tables.attempts
        is_asked = one_of(messages.c.id, "ids")
        self._claimable = _claimable(tables, sa.and_(is_asked, may_be_taken))
        self._take = _take(tables).where(is_asked)
        mine = sa.and_(is_asked, messages.c.claimed_by == _MARK)
        has_attempt = sa.select(sa.literal(1)).where(
            attempts.c.message_id == messages.c.id, attempts.c.token == messages.c.claim_token
        )
        columns = (messages.c.id, messages.c.claim_token, _starts_at(messages.c.next_attempt_at))
        missing = sa.select(*columns).where(mine, ~has_attempt.exists())
        begun = ["message_id", "token", "started_at"]
        self._insert_attempts = sa.insert(attempts).from_select(begun, missing)
        self._mine = (
            sa.select(*tables.message_columns, messages.c.claim_token, _NOW.label("now"))
            .where(mine)
            .order_by(messages.c.next_attempt_at, messages.c.id)
        )
        # One statement each, where the database can; after a failure it is done step by step.
        self._at_once = backend.at_once(tables, self._claimable, self._take)

    def claim(
        self, message_ids: Sequence[UUID], *, ahead: timedelta = _NO_WAIT, mark: UUID | None = None
    ) -> list[Claim]:
        """Take those messages that are scheduled and due, or due within ``ahead``.

        Their attempts are written with the claim, which knows its messages by ``mark``.
        """
        values: dict[str, Any] = {
            "ids": list(message_ids),
            "mark": mark or uuid4(),
            "ahead": ahead.total_seconds(),
            "ttl": self._ttl.total_seconds(),
        }
        rows: Sequence[Any] | None = None
        if self._at_once.claim is not None:
            rows = self._database.try_once(self._at_once.claim, values)
        if rows is None:
            rows = self._database.transact(partial(self._claim_in_steps, values=values))
        return [_claim(to_message(row), row.claim_token, row.now) for row in rows]

    def _claim_in_steps(
        self, connection: sa.Connection, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        # Read first, because MariaDB changes no table that the same statement reads.
        ids = connection.scalars(self._claimable, values).all()
        connection.execute(self._take, {**values, "ids": ids})
        connection.execute(self._insert_attempts, values)
        return connection.execute(self._mine, values).all()

    def renew(self, claims: Sequence[Claim]) -> set[UUID]:
        tokens, messages = dict(claim.attempt for claim in claims), self._tables.messages
        ours = (messages.c.id == sa.bindparam("of"), messages.c.claim_token == sa.bindparam("by"))
        is_sending = self._tables.has_status(Status.SENDING)
        renewed = {"claim_expires_at": later(_NOW, self._ttl)}
        query = sa.select(messages.c.id, messages.c.claim_token)
        rows = self._database.change_each(
            sa.update(messages).where(*ours, is_sending).values(renewed),
            [{"of": id_, "by": tokens[id_]} for id_ in sorted(tokens)],
            query.where(one_of(messages.c.id, [*tokens]), is_sending),
        )
        return {row.id for row in rows if row.claim_token == tokens[row.id]}

    def unclaimed(self, message_ids: Sequence[UUID]) -> Unclaimed:
        tables = self._tables
        messages = tables.messages
        now = database_now()
        is_expired = sa.and_(messages.c.next_attempt_at <= now, messages.c.expires_at <= now)
        read = sa.select(
            messages.c.id,
            messages.c.next_attempt_at,
            now.label("now"),
            is_expired.label("is_expired"),
            tables.is_suppressed.label("is_suppressed"),
        ).where(one_of(messages.c.id, message_ids), tables.is_scheduled)
        rows = self._database.read(read)
        suppressed = [row.id for row in rows if row.is_suppressed]
        expired = [row.id for row in rows if row.is_expired and not row.is_suppressed]
        return Unclaimed(
            {
                row.id: row.next_attempt_at - row.now
                for row in rows
                if row.next_attempt_at > row.now and not row.is_suppressed
            },
            self._end(expired, is_expired, status=Status.EXPIRED.value),
            self._end(
                suppressed, tables.is_suppressed, status=Status.CANCELLED.value, last_error=REASON
            ),
        )

    def _end(
        self, message_ids: Sequence[UUID], reason: sa.ColumnElement[bool], **values: str
    ) -> dict[UUID, str]:
        if not message_ids:
            return {}
        messages, guard = self._tables.messages, sa.and_(self._tables.is_scheduled, reason)
        ended = sa.select(messages.c.id, messages.c.channel)
        ended = ended.where(one_of(messages.c.id, message_ids), guard).order_by(messages.c.id)
        end = sa.update(messages).where(guard).values(finished_at=database_now(), **values)
        rows = self._database.change(ended.with_for_update(), end)
        return dict(tuple(row) for row in rows)

    def enqueue_when_due(self, message_ids: Sequence[UUID]) -> None:
        """Let maintenance enqueue these when they are due, or now: no task has them any more."""
        messages = self._tables.messages
        guard = (one_of(messages.c.id, message_ids), self._tables.is_scheduled)
        is_later = messages.c.enqueue_at > messages.c.next_attempt_at
        change = sa.update(messages).where(*guard, is_later)
        self._database.execute(change.values(enqueue_at=_starts_at(messages.c.next_attempt_at)))

    def record(
        self, successes: Sequence[Success], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        """Record the outcomes of claims, in one transaction; return the messages that expire by it.

        A success ends the message as sent, however late it comes and whichever claim followed,
        unless it was cancelled or has expired. A failure counts while its claim is the last one.
        Messages to retry are due ``wait`` from now, and enqueued ``enqueue_in`` after that.
        """
        if self._at_once.record is not None and successes and not failures:
            values = _keys([success.claim for success in successes])
            values |= {"receipts": [success.receipt for success in successes]}
            if self._database.try_once(self._at_once.record, values) == []:
                return set()
        record = partial(self._record_in_steps, successes, failures, enqueue_in)
        return self._database.transact(record)

    def _record_in_steps(
        self,
        successes: Sequence[Success],
        failures: Sequence[Failure],
        enqueue_in: timedelta,
        connection: sa.Connection,
    ) -> set[UUID]:
        sent = [success.claim.message.id for success in successes]
        failed = [failure.claim.message.id for failure in failures]
        rows = self._locked.take(connection, [*sent, *failed])
        ends = [
            *(
                AttemptEnd(*success.claim.attempt, Outcome.SENT.value, None, success.receipt)
                for success in successes
            ),
            *(
                AttemptEnd(*failure.claim.attempt, failure.outcome.value, failure.error)
                for failure in failures
            ),
        ]
        for success in successes:
            row, token = rows.get(success.claim.message.id), success.claim.token
            if row is not None and row.may_be_sent(token):
                if row.status is Status.SENDING and row.claim_token > token:
                    overtaken, ends_at = (row.id, row.claim_token), row.claim_expires_at
                    ends.append(AttemptEnd(*overtaken, Outcome.UNKNOWN.value, ended_at=ends_at))
                row.sent()
        for failure in failures:
            row = rows.get(failure.claim.message.id)
            if row is not None and row.is_open_for(failure.claim.token):
                row.failed(failure, enqueue_in)
        self._locked.write(connection, rows.values())
        self._locked.end_attempts(connection, ends)
        return {row.id for row in rows.values() if row.is_changed and row.status is Status.EXPIRED}

    def put_back(
        self,
        snoozed: Iterable[tuple[Claim, timedelta]],
        *,
        enqueue_in: timedelta,
        delayed_by: Mapping[UUID, str] = MappingProxyType({}),
    ) -> Delays:
        """Return claims that were not sent: due again after the wait, no attempt counted.

        ``delayed_by`` names the limits of messages whose delay is to be told.
        """
        waits = [(claim, max(wait, _NO_WAIT)) for claim, wait in snoozed]
        if not waits:
            return Delays()
        claims = [claim for claim, _ in waits]
        if self._at_once.put_back is not None and not delayed_by:
            seconds = [wait.total_seconds() for _, wait in waits]
            soon = enqueue_in.total_seconds()
            values = _keys(claims) | {"waits": seconds, "not_begun": NOT_BEGUN}
            values |= {"enqueues": [max(0.0, wait + soon) for wait in seconds]}
            if self._database.try_once(self._at_once.put_back, values) == []:
                return Delays()

        def work(connection: sa.Connection) -> Delays:
            rows = self._locked.take(connection, [claim.message.id for claim in claims])
            undone: list[tuple[UUID, int]] = []
            told: list[UUID] = []
            for claim, wait in waits:
                row = rows.get(claim.message.id)
                if row is None:
                    continue
                if row.is_open_for(claim.token):
                    row.snoozed(wait, enqueue_in)
                    row.delayed_by = delayed_by.get(row.id, row.delayed_by)
                    undone.append(claim.attempt)
                elif row.was_sent_during(claim.token) and self._locked.undo_attempts(
                    connection, [claim.attempt]
                ):
                    row.uncounted()
                if row.claim_token == claim.token and row.delayed_by == delayed_by.get(row.id, ""):
                    told.append(row.id)
            self._locked.undo_attempts(connection, undone)
            self._locked.write(connection, rows.values())
            report = self._report_delays if told else None
            return Delays(told, report(connection, told) if report else ())

        return self._database.transact(work)


def _claim(message: Message, token: int, now: datetime) -> Claim:
    due_in = max(0.0, (message.next_attempt_at - now).total_seconds())
    end = message.expires_at
    expires_in = None if end is None else (end - now).total_seconds()
    return Claim(message, token, due_in, expires_in, (now - message.send_at).total_seconds())


def _keys(claims: Sequence[Claim]) -> dict[str, Any]:
    ids, tokens = [claim.message.id for claim in claims], [claim.token for claim in claims]
    return {"ids": ids, "tokens": tokens}


def _claimable(tables: Tables, condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
    messages = tables.messages
    return (
        sa.select(messages.c.id)
        .where(
            condition,
            tables.is_scheduled,
            messages.c.next_attempt_at <= later(_NOW, sa.bindparam("ahead", type_=sa.Float())),
            sa.or_(messages.c.expires_at.is_(None), messages.c.expires_at > _NOW),
        )
        .order_by(messages.c.id)
        .with_for_update(skip_locked=True)
    )


def _take(tables: Tables) -> sa.Update:
    messages = tables.messages
    return (
        sa.update(messages)
        .where(tables.is_scheduled)
        .values(
            status=Status.SENDING.value,
            claim_token=messages.c.claim_token + 1,
            attempt_count=messages.c.attempt_count + 1,
            claimed_by=_MARK,
            claim_expires_at=later(_NOW, sa.bindparam("ttl", type_=sa.Float())),
        )
    )


def _starts_at(due_at: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.case((due_at > _NOW, due_at), else_=_NOW)


@dataclass(slots=True)
class LockedMessage:
    """A message that nobody else changes before the transaction ends, locked at ``now``.

    What becomes of it is decided here, and written by :meth:`LockedMessages.write`, which ends its
    claim.
    """

    id: UUID
    status: Status
    attempt_count: int
    max_attempts: int
    next_attempt_at: datetime
    enqueue_at: datetime
    enqueued_at: datetime | None
    finished_at: datetime | None
    last_error: str | None
    delayed_by: str | None
    channel: str
    claim_token: int
    claim_expires_at: datetime | None
    expires_at: datetime | None
    on_unknown: str
    now: datetime
    was_live: bool = field(init=False)
    is_changed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.status, self.was_live = Status(self.status), self.finished_at is None

    def is_open_for(self, token: int) -> bool:
        return self.claim_token == token and self.status in _OPEN

    def may_be_sent(self, token: int) -> bool:
        return self.claim_token >= token and self.status in _MAY_BE_SENT

    def was_sent_during(self, token: int) -> bool:
        return self.claim_token == token and self.status is Status.SENT

    def uncounted(self) -> None:
        self.attempt_count -= 1
        self.is_changed = True

    def _becomes(self, status: Status) -> None:
        self.status, self.is_changed = status, True
        if status.is_final:
            self.finished_at = self.now

    def sent(self) -> None:
        self._becomes(Status.SENT)
        self.last_error = None

    def failed(self, failure: Failure, enqueue_in: timedelta) -> None:
        """End it with a status, or retry it after a wait; it expires where that is too late."""
        self.last_error = failure.error
        if failure.is_held:
            self._becomes(Status.HELD)
            self.next_attempt_at = self.now
        elif failure.wait is None:
            self._becomes(Status.FAILED)
        else:
            self._retried(failure.wait, failure.wait + enqueue_in)
            if not failure.counts:
                self.max_attempts = min(self.max_attempts + 1, MOST_ATTEMPTS)
            if failure.claim.expires_in is not None and self._expires_by(self.next_attempt_at):
                self._becomes(Status.EXPIRED)

    def not_begun(self, wait: timedelta) -> None:
        """Let an attempt count that perhaps killed its worker before the send began."""
        self.last_error = NOT_BEGUN
        if self.attempt_count >= self.max_attempts:
            self._becomes(Status.FAILED)
        else:
            self._retried(wait, wait)

    def rescued(self) -> None:
        self.last_error = UNKNOWN
        self.next_attempt_at = self.enqueue_at = self.now
        if self.on_unknown == "hold":
            self._becomes(Status.HELD)
        elif self.attempt_count >= self.max_attempts:
            self._becomes(Status.FAILED)
        else:
            self._becomes(Status.EXPIRED if self._expires_by(self.now) else Status.SCHEDULED)

    def snoozed(self, wait: timedelta, enqueue_in: timedelta) -> None:
        self.returned()
        self.next_attempt_at = max(self.next_attempt_at, self.now + wait)
        self.enqueue_at = self.now + max(wait + enqueue_in, _NO_WAIT)
        if enqueue_in > _NO_WAIT:
            self.enqueued_at = self.now

    def returned(self, error: str | None = None) -> None:
        """Put it back, due as it was, no attempt counted; without an ``error`` its worker lives."""
        self._becomes(Status.SCHEDULED)
        self.attempt_count -= 1
        self.enqueue_at = self.now
        self.last_error = error or (None if self.last_error == NOT_BEGUN else self.last_error)

    def _retried(self, wait: timedelta, enqueue_in: timedelta) -> None:
        self._becomes(Status.SCHEDULED)
        self.next_attempt_at = self.now + wait
        self.enqueue_at = self.now + max(enqueue_in, _NO_WAIT)

    def _expires_by(self, instant: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= instant


_READ = [column.name for column in fields(LockedMessage) if column.init]
_WRITTEN = _READ[1 : _READ.index("channel")]
_rest_of = attrgetter(*_WRITTEN[1:])
"""What is written of a message behind its status."""


class LockedMessages:
    """Locks messages, writes what becomes of them, and ends or undoes their attempts."""

    def __init__(self, database: Database) -> None:
        tables = database.tables
        messages, attempts = tables.messages, tables.attempts
        now = database_now()
        columns = [messages.c[name] for name in _READ if name != "now"]
        self.query = sa.select(*columns, now.label("now"))
        asked = self.query.where(one_of(messages.c.id, "ids"), tables.is_message)
        self._any = asked.order_by(messages.c.id).with_for_update()
        self._live = self._any.where(tables.is_live)
        write = sa.update(messages).where(messages.c.id == sa.bindparam("of", type_=id_type()))
        write = write.values(claimed_by=sa.null(), claim_expires_at=sa.null())
        self._write_ended = Prepared(database.engine, write, [*_WRITTEN, "of"])
        self._write_live = Prepared(database.engine, write.where(tables.is_live), [*_WRITTEN, "of"])
        unknown = sa.literal_column(f"'{Outcome.UNKNOWN.value}'", sa.String())
        is_undecided = (
            attempts.c.message_id == sa.bindparam("of", type_=id_type()),
            attempts.c.token == sa.bindparam("by", type_=sa.Integer()),
            sa.or_(tables.is_under_way, attempts.c.outcome == unknown),
        )
        ended_at = sa.func.coalesce(sa.bindparam("ended_at", type_=Instant()), now)
        end = sa.update(attempts).where(*is_undecided).values(finished_at=ended_at)
        self._end_attempt = Prepared(database.engine, end, AttemptEnd._fields)
        self._undo_attempt = sa.delete(attempts).where(*is_undecided)

    def take(self, connection: sa.Connection, ids: Sequence[UUID]) -> dict[UUID, LockedMessage]:
        rows = locked(connection.execute(self._live, {"ids": ids}))
        ended = [id_ for id_ in ids if id_ not in rows]
        return rows | locked(connection.execute(self._any, {"ids": ended})) if ended else rows

    def write(self, connection: sa.Connection, messages: Iterable[LockedMessage]) -> None:
        changed = [message for message in messages if message.is_changed]
        for update, was_live in ((self._write_live, True), (self._write_ended, False)):
            rows = [
                (message.status.value, *_rest_of(message), message.id)
                for message in changed
                if message.was_live is was_live
            ]
            if rows:
                update.run(connection, rows)

    def end_attempts(self, connection: sa.Connection, ends: Sequence[AttemptEnd]) -> None:
        """Note the outcomes of attempts that have none, or an unknown one."""
        if ends:
            self._end_attempt.run(connection, ends)

    def undo_attempts(
        self, connection: sa.Connection, attempts: Sequence[tuple[UUID, int]]
    ) -> bool:
        """Delete such attempts; return whether there was one."""
        rows = [{"of": message_id, "by": token} for message_id, token in attempts]
        return bool(rows) and connection.execute(self._undo_attempt, rows).rowcount > 0


def locked(rows: Iterable[sa.Row[Any]]) -> dict[UUID, LockedMessage]:
    made = (LockedMessage(*values) for values in map(tuple, rows))
    return {message.id: message for message in made}
