"""Claims: take messages to deliver them, record their outcomes, put them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, cast
from uuid import UUID, uuid4

import sqlalchemy as sa

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.database import Database, Given, GivenArrays, GivenRow, GuardedChange, arrays
from dispatcher.store.engines.types import database_now, id_type, later
from dispatcher.store.lists import REASON
from dispatcher.store.schema import MOST_ATTEMPTS, Tables, to_message

_NO_WAIT = timedelta(0)
_NOW = database_now()
_NO_CLAIM: dict[str, Any] = {"claimed_by": None, "claim_expires_at": None}
_MARK = sa.bindparam("mark", type_=id_type())
_IDS = sa.bindparam("ids", type_=id_type(), expanding=True)
_ATTEMPT_COLUMNS = ["message_id", "token", "started_at"]

NOT_BEGUN = "not sent: its worker died before the send began"
"""An error; if the next worker dies so, too, the attempt counts. One that lives clears it."""


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


class Claims:
    """Takes messages to deliver them and records their outcomes. Every call may be run again.

    ``kept_back`` is the condition of messages that are paused, or overdue and to expire.
    """

    def __init__(
        self, database: Database, *, ttl: timedelta, kept_back: sa.ColumnElement[bool] | None = None
    ) -> None:
        tables = database.tables
        self._database = database
        self._tables = tables
        self._changes = ClaimChanges(database)
        self._ttl = ttl
        not_suppressed = ~tables.is_suppressed
        may_be_taken = not_suppressed if kept_back is None else sa.and_(not_suppressed, ~kept_back)
        messages, attempts = tables.messages, tables.attempts
        these = messages.c.id.in_(_IDS)
        self._wanted = _wanted(tables, sa.and_(these, may_be_taken))
        self._take = _take(tables).where(these)
        mine = sa.and_(these, messages.c.claimed_by == _MARK)
        has_attempt = sa.select(sa.literal(1)).where(
            attempts.c.message_id == messages.c.id, attempts.c.token == messages.c.claim_token
        )
        columns = (messages.c.id, messages.c.claim_token, _starts_at(messages.c.next_attempt_at))
        missing = sa.select(*columns).where(mine, ~has_attempt.exists())
        self._insert_attempts = sa.insert(attempts).from_select(_ATTEMPT_COLUMNS, missing)
        self._mine = (
            sa.select(*tables.message_columns, messages.c.claim_token, _NOW.label("now"))
            .where(mine)
            .order_by(messages.c.next_attempt_at, messages.c.id)
        )
        self._sending = _last_claims(tables, Status.SENDING)
        self._sending_locked = _locked(self._sending)
        self._sent_locked = _locked(_last_claims(tables, Status.SENT))
        self._open_locked = _locked(_last_claims(tables, Status.SENDING, Status.HELD))
        self._scheduled = _last_claims(tables, Status.SCHEDULED)
        # One statement each, where the database can; after a failure it is done step by step.
        at_once = database.backend.takes_arrays
        self._claim_at_once = claim_at_once(tables, may_be_taken) if at_once else None
        self._sent_at_once = self._changes.sent_at_once() if at_once else None
        self._snoozed_at_once = self._changes.snoozed_at_once() if at_once else None

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
        if self._claim_at_once is not None:
            rows = self._database.try_once(self._claim_at_once, values)
        if rows is None:
            rows = self._database.transact(partial(self._claim_in_steps, values=values))
        return [_claim(to_message(row), row.claim_token, row.now) for row in rows]

    def _claim_in_steps(
        self, connection: sa.Connection, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        # Read first, because MariaDB changes no table that the same statement reads.
        found = connection.scalars(self._wanted, values).all()
        connection.execute(self._take, {**values, "ids": found})
        connection.execute(self._insert_attempts, values)
        return connection.execute(self._mine, values).all()

    def renew(self, claims: Sequence[Claim]) -> set[UUID]:
        rows = [_key(each) | {"wait": self._ttl.total_seconds()} for each in claims]
        tokens = {each.message.id: each.token for each in claims}
        last = self._changes.renewed.run_and_read(
            self._database, rows, self._sending.params(ids=[*tokens])
        )
        return {row.id for row in last if row.token == tokens[row.id]}

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
        ).where(messages.c.id.in_(message_ids), tables.is_scheduled)
        rows = self._database.read(read)
        unwanted = [row.id for row in rows if row.is_suppressed]
        expired = [row.id for row in rows if row.is_expired and not row.is_suppressed]
        return Unclaimed(
            {
                row.id: row.next_attempt_at - row.now
                for row in rows
                if row.next_attempt_at > row.now and not row.is_suppressed
            },
            self._end(expired, is_expired, status=Status.EXPIRED.value),
            self._end(
                unwanted, tables.is_suppressed, status=Status.CANCELLED.value, last_error=REASON
            ),
        )

    def _end(
        self, message_ids: Sequence[UUID], reason: sa.ColumnElement[bool], **values: str
    ) -> dict[UUID, str]:
        if not message_ids:
            return {}
        messages, guard = self._tables.messages, sa.and_(self._tables.is_scheduled, reason)
        these = sa.select(messages.c.id).where(messages.c.id.in_(message_ids), guard)
        locked = these.order_by(messages.c.id).with_for_update()
        end = sa.update(messages).where(guard).values(finished_at=database_now(), **values)
        rows = self._database.update_returning(locked, end, messages.c.id, messages.c.channel)
        return dict(tuple(row) for row in rows)

    def enqueue_when_due(self, message_ids: Sequence[UUID]) -> None:
        """Let maintenance enqueue these when they are due, or now: no task has them any more."""
        messages = self._tables.messages
        these = (messages.c.id.in_(message_ids), self._tables.is_scheduled)
        is_later = messages.c.enqueue_at > messages.c.next_attempt_at
        change = sa.update(messages).where(*these, is_later)
        self._database.execute(change.values(enqueue_at=_starts_at(messages.c.next_attempt_at)))

    def record(
        self, successes: Sequence[Success], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        """Record the outcomes of claims, in one transaction; return the messages that expire by it.

        A success ends the message as sent, however late it comes and whichever claim followed,
        unless it was cancelled or has expired. A failure counts while its claim is the last one.
        Messages to retry are due ``wait`` from now, and enqueued ``enqueue_in`` after that.
        """
        sent: list[GivenRow] = [
            {"id": each.claim.message.id, "token": each.claim.token, "receipt": each.receipt}
            for each in successes
        ]
        if sent and not failures and self._is_done_at_once(self._sent_at_once, sent):
            return set()
        outcomes = [row | {"outcome": Outcome.SENT.value, "error": None} for row in sent]
        failed = [_failed(failure, enqueue_in) for failure in failures]
        dated = [row for row in failed if row["may_expire"]]

        def work(connection: sa.Connection) -> set[UUID]:
            last = _tokens(connection, self._sending_locked, sent)
            overtaken = [
                {"id": row["id"], "token": last[row["id"]]}
                for row in sent
                if last.get(row["id"], 0) > row["token"]
            ]
            self._changes.overtaken.run(connection, overtaken)
            self._changes.sent.run(connection, sent)
            before = _tokens(connection, self._open_locked, dated)
            self._changes.failed.run(connection, failed)
            retried = _tokens(connection, self._scheduled, dated)
            self._changes.outcome.run(connection, [*outcomes, *failed])
            return {
                row["id"]
                for row in dated
                if before.get(row["id"]) == row["token"] and row["id"] not in retried
            }

        return self._database.transact(work)

    def put_back(
        self, snoozed: Iterable[tuple[Claim, timedelta]], *, enqueue_in: timedelta
    ) -> None:
        """Return claims that were not sent: due again after the wait, no attempt counted."""
        rows = [_key(claim) | _waits(wait, enqueue_in) for claim, wait in snoozed]
        if not rows or self._is_done_at_once(self._snoozed_at_once, rows):
            return

        def work(connection: sa.Connection) -> None:
            self._changes.snoozed.run(connection, rows)
            self._changes.undone_attempt.run(connection, rows)
            last = _tokens(connection, self._sent_locked, rows)
            overtaken = [row for row in rows if last.get(row["id"]) == row["token"]]
            self._changes.uncounted.run(connection, overtaken)
            self._changes.undone_overtaken.run(connection, overtaken)

        self._database.transact(work)

    def _is_done_at_once(self, statement: sa.Select[Any] | None, rows: Sequence[GivenRow]) -> bool:
        return statement is not None and self._database.try_once(statement, arrays(rows)) == []


def _claim(message: Message, token: int, now: datetime) -> Claim:
    due_in = max(0.0, (message.next_attempt_at - now).total_seconds())
    end = message.expires_at
    expires_in = None if end is None else (end - now).total_seconds()
    return Claim(message, token, due_in, expires_in, (now - message.send_at).total_seconds())


def _key(claim: Claim) -> GivenRow:
    return {"id": claim.message.id, "token": claim.token}


def _failed(failure: Failure, enqueue_in: timedelta) -> GivenRow:
    status, wait = Status.SCHEDULED, failure.wait
    if failure.is_held:
        status, wait = Status.HELD, None
    elif wait is None:
        status = Status.FAILED
    is_dated = wait is not None and failure.claim.expires_in is not None
    return _key(failure.claim) | _waits(wait, enqueue_in) | {
        "status": status.value, "more": 0 if failure.counts or wait is None else 1,
        "may_expire": 1 if is_dated else 0,
        "outcome": failure.outcome.value, "error": failure.error, "receipt": None,
    }  # fmt: skip


def _last_claims(tables: Tables, *statuses: Status) -> sa.Select[Any]:
    row = tables.messages.c
    query = sa.select(row.id, row.claim_token.label("token"))
    return query.where(row.id.in_(_IDS), tables.has_status(*statuses))


def _locked(last_claims: sa.Select[Any]) -> sa.Select[Any]:
    return last_claims.order_by(last_claims.selected_columns.id).with_for_update()


def _tokens(
    connection: sa.Connection, last_claims: sa.Select[Any], rows: Sequence[GivenRow]
) -> dict[UUID, int]:
    if not rows:
        return {}
    found = connection.execute(last_claims, {"ids": [row["id"] for row in rows]})
    return dict(map(tuple, found))


def _waits(wait: timedelta | None, enqueue_in: timedelta) -> GivenRow:
    seconds = wait.total_seconds() if wait else 0.0
    return {"wait": seconds, "enqueue": max(0.0, seconds + enqueue_in.total_seconds())}


def claim_at_once(tables: Tables, may_be_taken: sa.ColumnElement[bool]) -> sa.Select[Any]:
    messages, attempts = tables.messages, tables.attempts
    these = messages.c.id == sa.any_(sa.bindparam("ids", type_=sa.ARRAY(id_type())))
    wanted = _wanted(tables, sa.and_(these, may_be_taken)).cte("wanted")
    taken = (
        # As in GivenArrays: "these" is redundant, and keeps to look-ups by id.
        _take(tables)
        .where(these, messages.c.id == wanted.c.id)
        .returning(*tables.message_columns, messages.c.claim_token)
        .cte("taken")
    )
    columns = (taken.c.id, taken.c.claim_token, _starts_at(taken.c.next_attempt_at))
    inserted = sa.insert(attempts).from_select(_ATTEMPT_COLUMNS, sa.select(*columns)).cte("begun")
    # The later the clock is read, the shorter is the wait of a message that is not due yet.
    return (
        sa.select(*taken.c, now_read_late().label("now"))
        .order_by(taken.c.next_attempt_at, taken.c.id)
        .add_cte(inserted)
    )


def now_read_late() -> sa.ColumnElement[Any]:
    """Return the present of PostgreSQL when the row is made, never later than its clock."""
    # The capitals keep the time of tests out of the difference.
    return _NOW + (sa.func.clock_timestamp() - sa.func.STATEMENT_TIMESTAMP())


def _wanted(tables: Tables, these: sa.ColumnElement[bool]) -> sa.Select[Any]:
    messages = tables.messages
    return (
        sa.select(messages.c.id)
        .where(
            these,
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


def change(
    make: Callable[[ClaimChanges, Given], sa.Update | sa.Delete],
) -> cached_property[GuardedChange]:
    return cached_property(lambda changes: GuardedChange(changes.backend, partial(make, changes)))


class ClaimChanges:
    def __init__(self, database: Database) -> None:
        self.backend = database.backend
        self._tables = tables = database.tables
        self._messages, self._attempts = tables.messages, tables.attempts
        # Its outcome is not known yet: it is being sent, or held.
        self._open = tables.has_status(Status.SENDING, Status.HELD)
        before = self._messages.c.last_error
        self._error_before = sa.case((before == NOT_BEGUN, sa.null()), else_=before)

    @change
    def sent(self, given: Given) -> sa.Update:
        """End it as sent, also with a later attempt under way: run ``overtaken`` for it before."""
        messages = self._messages
        return self._sent(given.finds(messages.c.id), messages.c.claim_token >= given("token"))

    @change
    def overtaken(self, given: Given) -> sa.Update:
        messages, attempts = self._messages, self._attempts
        claim_end = sa.select(messages.c.claim_expires_at).where(
            messages.c.id == attempts.c.message_id
        )
        return (
            sa.update(attempts)
            .where(*self._attempt(given), self._tables.is_under_way)
            .values(outcome=Outcome.UNKNOWN.value, finished_at=claim_end.scalar_subquery())
        )

    @change
    def failed(self, given: Given) -> sa.Update:
        """End it with a status, or retry it after a wait, in seconds from now.

        ``more`` attempts than before may follow. What ``may_expire`` does so before that time.
        """
        row, status, due_at = self._messages.c, given("status"), later(_NOW, given("wait"))
        is_retried, fails = status == Status.SCHEDULED.value, status == Status.FAILED.value
        expires = sa.and_(given("may_expire") == 1, row.expires_at <= due_at)
        may_be_more = row.max_attempts < MOST_ATTEMPTS
        return self._end_claim(
            given,
            status=sa.case((expires, Status.EXPIRED.value), else_=status),
            finished_at=sa.case((sa.or_(expires, fails), _NOW)),
            next_attempt_at=sa.case((fails, row.next_attempt_at), else_=due_at),
            enqueue_at=sa.case((is_retried, later(_NOW, given("enqueue"))), else_=row.enqueue_at),
            last_error=given("error"),
            max_attempts=row.max_attempts + sa.case((may_be_more, given("more")), else_=0),
        )

    @change
    def snoozed(self, given: Given) -> sa.Update:
        row = self._messages.c
        due_at = later(_NOW, given("wait"))
        is_enqueued = given("enqueue") > given("wait")
        return self._end_claim(
            given,
            status=Status.SCHEDULED.value,
            attempt_count=row.attempt_count - 1,
            next_attempt_at=sa.case(
                (row.next_attempt_at > due_at, row.next_attempt_at), else_=due_at
            ),
            enqueue_at=later(_NOW, given("enqueue")),
            enqueued_at=sa.case((is_enqueued, _NOW), else_=row.enqueued_at),
            last_error=self._error_before,
        )

    @change
    def not_begun(self, given: Given) -> sa.Update:
        """Put it back, due as it was; without an ``error`` its worker lives."""
        return self._end_claim(
            given,
            status=Status.SCHEDULED.value,
            attempt_count=self._messages.c.attempt_count - 1,
            enqueue_at=_NOW,
            last_error=sa.func.coalesce(given("error"), self._error_before),
        )

    @change
    def undone_attempt(self, given: Given) -> sa.Delete:
        messages, attempts = self._messages, self._attempts
        # Not EXISTS, for which PostgreSQL may read all messages that fit, to ask them by their ids.
        on_unknown = sa.select(messages.c.on_unknown).where(
            messages.c.id == attempts.c.message_id,
            messages.c.claim_token == attempts.c.token,
            # Put back before, or in the same statement; that one sees it as it was when it began,
            # also where it then waited for the rescue that holds the message.
            self._tables.has_status(Status.SCHEDULED, Status.HELD, Status.SENDING),
        )
        is_unknown = attempts.c.outcome == Outcome.UNKNOWN.value
        was_held = sa.and_(is_unknown, on_unknown.scalar_subquery() == "hold")
        may_go = sa.or_(self._tables.is_under_way, was_held)
        return sa.delete(attempts).where(*self._attempt(given), may_go)

    @change
    def uncounted(self, given: Given) -> sa.Update:
        messages, attempts = self._messages, self._attempts
        is_overtaken = sa.exists().where(
            given.finds(attempts.c.message_id),
            attempts.c.token == messages.c.claim_token,
            attempts.c.outcome == Outcome.UNKNOWN.value,
        )
        return (
            sa.update(messages)
            .where(*self._ours(given), self._tables.has_status(Status.SENT), is_overtaken)
            .values(attempt_count=messages.c.attempt_count - 1)
        )

    @change
    def undone_overtaken(self, given: Given) -> sa.Delete:
        attempts = self._attempts
        is_unknown = attempts.c.outcome == Outcome.UNKNOWN.value
        return sa.delete(attempts).where(*self._attempt(given), is_unknown)

    @change
    def outcome(self, given: Given) -> sa.Update:
        attempts = self._attempts
        is_unknown = attempts.c.outcome == Outcome.UNKNOWN.value
        return (
            sa.update(attempts)
            .where(*self._attempt(given), sa.or_(self._tables.is_under_way, is_unknown))
            .values(
                finished_at=_NOW,
                outcome=given("outcome"),
                error=given("error"),
                receipt=given("receipt"),
            )
        )

    @change
    def renewed(self, given: Given) -> sa.Update:
        return (
            sa.update(self._messages)
            .where(*self._ours(given), self._tables.has_status(Status.SENDING))
            .values(claim_expires_at=later(_NOW, given("wait")))
        )

    def sent_at_once(self) -> sa.Select[Any]:
        """Do ``sent`` and ``outcome`` in one statement; return the ids of what it leaves."""
        names = ("id", "token", "receipt")
        same = {
            "outcome": sa.literal(Outcome.SENT.value),
            "error": cast("sa.ColumnElement[Any]", sa.null()),
        }
        given = GivenArrays(self.backend, names, **same)
        is_under_way = self._tables.has_status(Status.SENDING)
        sent = self._sent(*self._ours(given), is_under_way)
        done = sent.returning(self._messages.c.id).cte("done")
        is_done = self._attempts.c.message_id.in_(sa.select(done.c.id))
        outcome = cast("sa.Update", self.outcome.make(given))
        recorded = outcome.where(is_done, self._tables.is_under_way)
        return _others(given, done).add_cte(recorded.cte("recorded_ids"))

    def snoozed_at_once(self) -> sa.Select[Any]:
        """Do ``snoozed`` and ``undone_attempt`` in one statement; return what it leaves."""
        given = GivenArrays(self.backend, ("id", "token", "wait", "enqueue"))
        is_under_way = self._tables.has_status(Status.SENDING)
        snoozed = cast("sa.Update", self.snoozed.make(given)).where(is_under_way)
        done = snoozed.returning(self._messages.c.id).cte("done")
        undone = self.undone_attempt.make(given).where(self._tables.is_under_way)
        return _others(given, done).add_cte(undone.cte("undone"))

    def _ours(self, given: Given) -> tuple[sa.ColumnElement[bool], ...]:
        messages = self._messages
        return given.finds(messages.c.id), messages.c.claim_token == given("token")

    def _attempt(self, given: Given) -> tuple[sa.ColumnElement[bool], ...]:
        attempts = self._attempts
        return given.finds(attempts.c.message_id), attempts.c.token == given("token")

    def _sent(self, *these: sa.ColumnElement[bool]) -> sa.Update:
        tables = self._tables
        ends = tables.has_status(Status.SENDING, Status.HELD, Status.SCHEDULED, Status.FAILED)
        values = {"status": Status.SENT.value, "finished_at": _NOW, "last_error": None}
        return sa.update(tables.messages).where(*these, ends).values(**values, **_NO_CLAIM)

    def _end_claim(self, given: Given, **values: Any) -> sa.Update:
        these = (*self._ours(given), self._open)
        return sa.update(self._messages).where(*these).values(**values, **_NO_CLAIM)


def _others(given: Given, done: sa.CTE) -> sa.Select[Any]:
    return sa.select(given("id")).where(~sa.exists().where(done.c.id == given("id")))
