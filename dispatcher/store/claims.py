"""Claims: take messages to deliver them, record their outcomes, put them back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Float,
    Select,
    Update,
    and_,
    any_,
    bindparam,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.changes import Changes, GivenRow, arrays
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, id_type, later
from dispatcher.store.schema import Tables, to_message
from dispatcher.store.suppressions import REASON

_NO_WAIT = timedelta(0)
_NOW = database_now()
_BEGUN = ["message_id", "token", "started_at"]
_SEND_AT, _NEXT_ATTEMPT_AT, _EXPIRES_AT = (
    list(Message.__dataclass_fields__).index(name)
    for name in ("send_at", "next_attempt_at", "expires_at")
)


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
class Result:
    """A send that the transport accepted."""

    claim: Claim
    receipt: str | None
    outcome: ClassVar[Outcome] = Outcome.SENT


@dataclass(frozen=True, slots=True)
class Failure:
    """A send that failed. ``wait`` until the next try; None when there will be none.

    With an unknown outcome a message whose ``on_unknown`` is ``hold`` is held, whatever the wait.
    ``error_type`` names the type of the exception; the store does not keep it.
    """

    claim: Claim
    outcome: Outcome
    error: str
    wait: timedelta | None
    error_type: str | None = None

    @property
    def is_held(self) -> bool:
        """Whether the message is held for the decision of an operator."""
        return self.outcome is Outcome.UNKNOWN and self.claim.message.on_unknown == "hold"


class Unclaimed(NamedTuple):
    """Messages that could not be claimed.

    ``waits`` of those that are early; the channels of those that have now ended: expired, or
    cancelled because their recipient has opted out.
    """

    waits: dict[UUID, timedelta]
    expired: dict[UUID, str]
    cancelled: dict[UUID, str]


class Claims:
    """Takes messages to deliver them and records their outcomes.

    The database's clock alone decides what is due. Every call may be run again. Messages to which
    ``leaves`` applies are not taken.
    """

    def __init__(
        self, database: Database, *, ttl: timedelta, leaves: ColumnElement[bool] | None = None
    ) -> None:
        tables = database.tables
        self._database = database
        self._tables = tables
        self._changes = Changes(database)
        self._ttl = ttl
        wanted = ~tables.is_suppressed
        self._takes = wanted if leaves is None else and_(wanted, ~leaves)
        direct = partial(database.backend.direct, database.engine)
        self._claim_at_once = direct(lambda: claim_at_once(tables, self._takes))
        self._sent_at_once = direct(self._changes.sent_at_once)
        self._snoozed_at_once = direct(self._changes.snoozed_at_once)

    def claim(
        self,
        message_ids: Sequence[UUID],
        *,
        ahead: timedelta = _NO_WAIT,
        mark: UUID | None = None,
    ) -> list[Claim]:
        """Take those messages that are scheduled and due, or due within ``ahead``.

        Those past their expiry are not taken, nor those whose recipient has opted out. The attempt
        is written with the claim, so that an attempt that kills its process counts. A claim that
        is run again knows its messages by ``mark``, a new one by default.
        """
        values: dict[str, Any] = {
            "ids": list(message_ids),
            "mark": mark or uuid4(),
            "ahead": ahead.total_seconds(),
            "ttl": self._ttl.total_seconds(),
        }
        rows: Sequence[Any] | None = self._claim_at_once(values)
        if rows is None:
            rows = self._database.transact(partial(self._claim_step_by_step, **values))
        return [
            Claim(
                to_message(row),
                row[-2],
                max(0.0, (row[_NEXT_ATTEMPT_AT] - row[-1]).total_seconds()),
                row[_EXPIRES_AT] and (row[_EXPIRES_AT] - row[-1]).total_seconds(),
                (row[-1] - row[_SEND_AT]).total_seconds(),
            )
            for row in rows
        ]

    def renew(self, claims: Sequence[Claim]) -> set[UUID]:
        """Extend claims to their whole length from now on; return those that are still current."""
        rows = [_key(each) | {"wait": self._ttl.total_seconds()} for each in claims]
        tokens = _tokens(rows)
        query = self._last_claims(tokens, Status.SENDING)
        held = self._changes.renewed.run_and_read(self._database, rows, query)
        return {row.id for row in held if row.token == tokens[row.id]}

    def unclaimed(self, message_ids: Sequence[UUID]) -> Unclaimed:
        """Read messages that could not be claimed.

        End those that are past their expiry, and those whose recipient has opted out.
        """
        tables = self._tables
        messages = tables.messages
        now = database_now()
        is_late = and_(messages.c.next_attempt_at <= now, messages.c.expires_at <= now)
        read = select(
            messages.c.id,
            messages.c.next_attempt_at,
            now.label("now"),
            is_late.label("is_late"),
            tables.is_suppressed.label("is_suppressed"),
        ).where(messages.c.id.in_(message_ids), tables.is_scheduled)
        rows = self._database.read(read)
        unwanted = [row.id for row in rows if row.is_suppressed]
        late = [row.id for row in rows if row.is_late and not row.is_suppressed]
        return Unclaimed(
            {
                row.id: row.next_attempt_at - row.now
                for row in rows
                if row.next_attempt_at > row.now and not row.is_suppressed
            },
            self._end(late, is_late, status=Status.EXPIRED.value),
            self._end(
                unwanted, tables.is_suppressed, status=Status.CANCELLED.value, last_error=REASON
            ),
        )

    def _end(
        self, message_ids: Sequence[UUID], reason: ColumnElement[bool], **values: str
    ) -> dict[UUID, str]:
        """End those of scheduled messages to which ``reason`` applies; return their channels."""
        if not message_ids:
            return {}
        messages, guard = self._tables.messages, and_(self._tables.is_scheduled, reason)
        these = select(messages.c.id).where(messages.c.id.in_(message_ids), guard)
        locked = these.order_by(messages.c.id).with_for_update()
        end = update(messages).where(guard).values(finished_at=database_now(), **values)
        rows = self._database.update_returning(locked, end, messages.c.id, messages.c.channel)
        return dict(tuple(row) for row in rows)

    def enqueue_when_due(self, message_ids: Sequence[UUID]) -> None:
        """Let maintenance enqueue these when they are due at the latest.

        Their task came far too early, perhaps for the time before a reschedule.
        """
        messages = self._tables.messages
        these = (messages.c.id.in_(message_ids), self._tables.is_scheduled)
        is_later = messages.c.enqueue_at > messages.c.next_attempt_at
        change = update(messages).where(*these, is_later)
        self._database.execute(change.values(enqueue_at=messages.c.next_attempt_at))

    def record(
        self, results: Sequence[Result], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        """Record the outcomes of claims, in one transaction; return the messages that expire by it.

        A success ends the message as sent, however late it comes and whichever claim followed: it
        prevents another send. Only a cancelled or expired message stays as it is. A failure is
        ignored where another claim followed: its token is not current. It is recorded where the
        message is held because its outcome was unknown. Messages to retry are due ``wait`` from now
        and enqueued by maintenance ``enqueue_in`` after that.
        """
        sent: list[GivenRow] = [
            {"id": each.claim.message.id, "token": each.claim.token, "receipt": each.receipt}
            for each in results
        ]
        # []: all are recorded. Rows were overtaken; None: run it by SQLAlchemy. Both step by step.
        if not failures and sent and self._sent_at_once(arrays(sent)) == []:
            return set()
        ended: list[GivenRow] = []
        held: list[GivenRow] = []
        again: list[GivenRow] = []
        dated: dict[UUID, int] = {}
        outcomes: list[GivenRow] = [
            each | {"outcome": Outcome.SENT.value, "error": None} for each in sent
        ]
        for each in failures:
            claim = each.claim
            row: GivenRow = {
                "id": claim.message.id, "token": claim.token,
                "outcome": each.outcome.value, "error": each.error, "receipt": None,
            }  # fmt: skip
            outcomes.append(row)
            if each.is_held:
                held.append(row)
            elif each.wait is None:
                ended.append(row)
            else:
                again.append(row | _waits(each.wait, enqueue_in))
                if claim.expires_in is not None:
                    dated[claim.message.id] = claim.token

        def work(connection: Connection) -> set[UUID]:
            tokens = _tokens(sent)
            last = self._locked(connection, tokens, Status.SENDING)
            self._changes.overtaken.run(
                connection, [row for row in last if row["token"] > tokens[row["id"]]]
            )
            self._changes.sent.run(connection, sent)
            self._changes.failed.run(connection, ended)
            self._changes.held.run(connection, held)
            self._changes.again.run(connection, again)
            expired = self._without_time(connection, dated) if dated else set()
            self._changes.expired.run(connection, again)
            self._changes.outcome.run(connection, outcomes)
            return expired

        return self._database.transact(work)

    def put_back(
        self, snoozed: Iterable[tuple[Claim, timedelta]], *, enqueue_in: timedelta
    ) -> None:
        """Return claims that were not sent: due again after the wait, no attempt counted.

        Maintenance enqueues them ``enqueue_in`` after that, unless the caller does.
        """
        rows = [_key(claim) | _waits(wait, enqueue_in) for claim, wait in snoozed]
        if not rows or self._snoozed_at_once(arrays(rows)) == []:
            return

        def work(connection: Connection) -> None:
            self._changes.snoozed.run(connection, rows)
            self._changes.undone_attempt.run(connection, rows)
            tokens = _tokens(rows)
            last = self._locked(connection, tokens, Status.SENT)
            overtaken = [row for row in last if row["token"] == tokens[row["id"]]]
            self._changes.uncounted.run(connection, overtaken)
            self._changes.undone_overtaken.run(connection, overtaken)

        self._database.transact(work)

    def _claim_step_by_step(
        self, connection: Connection, *, ids: list[UUID], mark: UUID, ahead: float, ttl: float
    ) -> Sequence[Any]:
        """Claim in the transaction of this connection.

        It knows its messages by the mark, so that it may be run again; then it returns those too.
        """
        tables = self._tables
        messages, attempts = tables.messages, tables.attempts
        these = messages.c.id.in_(ids)
        found = _wanted(tables, and_(these, self._takes), ahead)
        wanted = self._database.backend.ids_found(connection, found)
        connection.execute(_take(tables, mark, ttl).where(messages.c.id.in_(wanted)))
        mine = and_(these, messages.c.claimed_by == mark)
        is_begun = select(literal(1)).where(
            attempts.c.message_id == messages.c.id, attempts.c.token == messages.c.claim_token
        )
        columns = (messages.c.id, messages.c.claim_token, _starts_at(messages.c.next_attempt_at))
        begin = select(*columns).where(mine, ~is_begun.exists())
        connection.execute(insert(attempts).from_select(_BEGUN, begin))
        read = (
            select(*tables.message_columns, messages.c.claim_token, _NOW.label("now"))
            .where(mine)
            .order_by(messages.c.next_attempt_at, messages.c.id)
        )
        return connection.execute(read).all()

    def _last_claims(self, message_ids: Iterable[UUID], status: Status) -> Select[Any]:
        """Return the query of the last claims of those of the messages that have this status."""
        messages = self._tables.messages
        these = self._database.one_of(messages.c.id, list(message_ids))
        query = select(messages.c.id, messages.c.claim_token.label("token"))
        return query.where(these, self._tables.has_status(status))

    def _locked(
        self, connection: Connection, message_ids: Collection[UUID], status: Status
    ) -> list[GivenRow]:
        """Lock those of the messages that have this status; return their last claims."""
        if not message_ids:
            return []
        query = self._last_claims(message_ids, status).order_by(self._tables.messages.c.id)
        return [row._asdict() for row in connection.execute(query.with_for_update())]

    def _without_time(self, connection: Connection, tokens: Mapping[UUID, int]) -> set[UUID]:
        """Return those that the change ``expired`` will end."""
        row = self._tables.messages.c
        query = self._last_claims(tokens, Status.SCHEDULED)
        rows = connection.execute(query.where(row.expires_at <= row.next_attempt_at))
        return {row.id for row in rows if row.token == tokens[row.id]}


def _key(claim: Claim) -> GivenRow:
    return {"id": claim.message.id, "token": claim.token}


def _tokens(rows: Sequence[GivenRow]) -> dict[UUID, int]:
    return {row["id"]: row["token"] for row in rows}


def _waits(wait: timedelta | None, enqueue_in: timedelta) -> GivenRow:
    seconds = wait.total_seconds() if wait else 0.0
    return {"wait": seconds, "enqueue": max(0.0, seconds + enqueue_in.total_seconds())}


def claim_at_once(tables: Tables, takes: ColumnElement[bool]) -> Select[Any]:
    """Return the statement that takes messages, begins their attempts and returns them.

    It takes only messages to which ``takes`` applies.
    """
    messages, attempts = tables.messages, tables.attempts
    these = messages.c.id == any_(bindparam("ids", type_=ARRAY(id_type())))
    wanted = _wanted(tables, and_(these, takes), bindparam("ahead", type_=Float())).cte("wanted")
    take = _take(tables, bindparam("mark", type_=id_type()), bindparam("ttl", type_=Float()))
    taken = (
        # As in GivenArrays: "these" is redundant, and keeps to look-ups by id.
        take.where(these, messages.c.id == wanted.c.id)
        .returning(*tables.message_columns, messages.c.claim_token)
        .cte("taken")
    )
    columns = (taken.c.id, taken.c.claim_token, _starts_at(taken.c.next_attempt_at))
    begun = insert(attempts).from_select(_BEGUN, select(*columns)).cte("begun")
    # The later the clock is read, the shorter is the wait of a message that is not due yet.
    return (
        select(*taken.c, func.clock_timestamp().label("now"))
        .order_by(taken.c.next_attempt_at, taken.c.id)
        .add_cte(begun)
    )


def _wanted(
    tables: Tables, these: ColumnElement[bool], ahead: ColumnElement[float] | float
) -> Select[Any]:
    messages = tables.messages
    return (
        select(messages.c.id)
        .where(
            these,
            tables.is_scheduled,
            messages.c.next_attempt_at <= later(_NOW, ahead),
            or_(messages.c.expires_at.is_(None), messages.c.expires_at > _NOW),
        )
        .order_by(messages.c.id)
        .with_for_update(skip_locked=True)
    )


def _take(tables: Tables, mark: Any, ttl: ColumnElement[float] | float) -> Update:
    messages = tables.messages
    return (
        update(messages)
        .where(tables.is_scheduled)
        .values(
            status=Status.SENDING.value,
            claim_token=messages.c.claim_token + 1,
            attempt_count=messages.c.attempt_count + 1,
            claimed_by=mark,
            claim_expires_at=later(_NOW, ttl),
        )
    )


def _starts_at(due_at: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return when the attempt begins: not before its message is due, though claimed earlier."""
    return case((due_at > _NOW, due_at), else_=_NOW)
