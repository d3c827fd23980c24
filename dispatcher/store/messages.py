"""Messages by id and by idempotency key: add, read, change, cancel, retry, release and drop."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dispatcher.errors import MessageNotFound, OutcomeUnknown, StoreUnavailable, Suppressed
from dispatcher.message import Attempt, Body, Message, Outcome, Status
from dispatcher.store.database import Database
from dispatcher.store.engines.base import InsertFailed, Prepared, is_added, transaction
from dispatcher.store.engines.errors import is_broken, takes_no_writes
from dispatcher.store.engines.types import (
    Instant,
    database_now,
    insert_if_absent,
    json_type,
    later,
    where_partitioned,
)
from dispatcher.store.events import EventChanged, hold_events
from dispatcher.store.lists import is_suppressed
from dispatcher.store.schema import (
    AS_NAMED,
    CLOCK_STEP,
    KEYED,
    MOST_ATTEMPTS,
    TAKEN_BACK,
    UNSENT_STATUSES,
    VOID,
    WRITTEN,
    Addition,
    Movable,
    Tables,
    to_attempt,
    to_keyed,
    to_message,
    to_movable,
    to_values,
)

log = logging.getLogger(__name__)

Tokens = Mapping[UUID, int]
"""The ``move_token`` of messages as they were read."""
_ADD_TRIES = 3
_OFTEN_GIVEN = frozenset({"idempotency_key", "enqueued_at"})
DROPPED = "dropped: the outcome of the last attempt is unknown; it may have been sent"
"""The error of a dropped message; the reason follows, where one was given."""


class GivenUp(StoreUnavailable):
    """The reservation was released before the message was stored: it cannot be stored any more."""

    def __init__(self) -> None:
        super().__init__("storing it took longer than its reservation lasted", refused=True)


class NewSlot(NamedTuple):
    """The values that a move gives to a row; it is too late after ``until``."""

    before: Movable
    until: datetime
    send_at: datetime
    next_attempt_at: datetime
    enqueue_at: datetime
    zone: str | None
    expires_at: datetime | None
    expire_after: timedelta | None
    asked_at: datetime | None
    tail: str
    wish: str | None
    token: int

    def values(self) -> dict[str, Any]:
        """Return the parameters of ``Messages._move_locked``."""
        return {
            "of": self.before.message.id,
            "by": self.before.token,
            "move_token": self.token,
            "is_enqueued": self.enqueue_at > self.next_attempt_at,
            **{name: getattr(self, name) for name in NewSlot._fields[2:-1]},
        }


class ChangedRows(NamedTuple):
    """``newly_changed`` may lack one that was changed just before the connection broke."""

    rows: Mapping[UUID, Movable]
    newly_changed: Collection[UUID]


class _NotInserted(Exception): ...


def new_token() -> int:
    """Return the ``move_token`` of a change, which tells it from any other one of the message."""
    return random.getrandbits(30)


def _inserts(
    database: Database, columns: Sequence[str] = WRITTEN
) -> tuple[sa.Insert, sa.Select[Any], list[str]]:
    """Return what stores a message, what stores its key as well, and the names of their values.

    The id must be new, also in partitions: a server may run the first after its client gave it up,
    stored the message again, and sent it. The second returns a row if both are stored.
    """
    messages, keys = database.tables.messages, database.tables.keys
    new = {name: sa.bindparam(f"new_{name}", type_=messages.c[name].type) for name in columns}
    fingerprint = sa.bindparam("new_fingerprint", type_=keys.c.fingerprint.type)
    is_not_suppressed = ~database.tables.suppressed(new["recipient"], new["channel"])
    # The length is written out, because a prepared statement has no other values.
    step: sa.ColumnElement[float] = sa.literal_column(f"-{CLOCK_STEP.total_seconds()}")
    is_it = messages.c.id == new["id"]
    # Not by OR, for which PostgreSQL 18 skips ``…_history_other``.
    is_new = where_partitioned(
        sa.and_(
            ~sa.exists().where(is_it, database.tables.is_live),
            ~sa.exists().where(is_it, messages.c.finished_at >= later(new["created_at"], step)),
        )
    )
    row = sa.select(*new.values()).where(is_not_suppressed, is_new)
    message = insert_if_absent(messages).from_select(columns, row)
    key_row = sa.select(new["idempotency_key"], new["id"], fingerprint)
    key = insert_if_absent(keys).from_select(KEYED, key_row.where(is_not_suppressed, is_new))
    keyed = sa.select(*new.values()).select_from(key.returning(keys.c.message_id).cte("keyed"))
    added = sa.insert(messages).from_select(columns, keyed).returning(messages.c.id)
    names = [bind.key for bind in (*new.values(), fingerprint)]
    return message, sa.select(added.cte("added").c.id), names


class Messages:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = tables = database.tables
        backend, engine = database.backend, database.engine
        row, has_id = tables.messages.c, tables.has_id("values")
        is_enqueued = sa.bindparam("is_enqueued", type_=sa.Boolean())
        is_same = (row.id == sa.bindparam("of"), row.move_token == sa.bindparam("by"))
        is_in_time = sa.bindparam("until", type_=Instant()) >= database_now()
        self._move_locked = sa.update(tables.messages).where(*is_same, tables.is_live)
        self._move_locked = self._move_locked.values(
            enqueued_at=sa.case((is_enqueued, database_now()), else_=row.enqueued_at),
            delayed_by=sa.null(),  # it has another time, for which it may be delayed anew
        )
        self._move = self._move_locked.where(tables.is_scheduled, is_in_time)
        self._movables = tables.movable.where(has_id)
        self._movable = tables.movable.where(row.id == sa.bindparam("of"))
        columns = (row.id, row.move_token, tables.is_scheduled.label("is_scheduled"))
        locked = sa.select(*columns).where(has_id, tables.is_live)
        self._lock_live = locked.order_by(row.id).with_for_update()
        self._cancel = (
            sa.update(tables.messages)
            .where(has_id, tables.is_live)
            .values(
                status=Status.CANCELLED.value,
                finished_at=database_now(),
                last_error=sa.func.coalesce(
                    sa.bindparam("because", type_=sa.Text()), row.last_error
                ),
            )
        )
        now, priority = database_now(), sa.bindparam("priority", type_=sa.SmallInteger())
        # It was not tried: what it waits for is a limit, which may let it go now.
        is_due = sa.and_(row.send_at <= now, row.attempt_count == 0, row.priority < priority)
        comes = sa.and_(is_due, row.next_attempt_at > now)
        body = sa.bindparam("body", type_=json_type(none_as_null=True))
        # MariaDB assigns in this order, and reads what it has assigned.
        self._update = (
            sa.update(tables.messages)
            .where(has_id, tables.is_live)
            .ordered_values(
                (row.enqueue_at, sa.case((comes, now), else_=row.enqueue_at)),
                (row.next_attempt_at, sa.case((comes, now), else_=row.next_attempt_at)),
                (row.priority, sa.func.coalesce(priority, row.priority)),
                (row.body, sa.func.coalesce(body, row.body)),
                (row.move_token, sa.bindparam("move_token")),
            )
        )
        message, keyed, names = _inserts(database)
        self._insert = Prepared(engine, message, names)
        # SQLite's driver looks for an adapter of each None: these would cost a submit 3 %.
        rare = [name for name in WRITTEN if row[name].nullable and name not in _OFTEN_GIVEN]
        usual, *_ = _inserts(database, [name for name in WRITTEN if name not in rare])
        self._insert_usual = Prepared(engine, usual, names)
        self._rare_of = itemgetter(*map(WRITTEN.index, rare))
        self._insert_key = Prepared(engine, insert_if_absent(tables.keys), KEYED)
        self._insert_rows = Prepared(engine, sa.insert(tables.messages), WRITTEN)
        self._insert_keys = Prepared(engine, sa.insert(tables.keys), KEYED)
        self._insert_directly = backend.direct_insert(engine, self._insert)
        self._insert_keyed_directly = backend.direct_insert(engine, Prepared(engine, keyed, names))

    def add(self, addition: Addition, *, perhaps_stored: bool = False) -> Message:
        """Store a message, or find the one that has its idempotency key already; return that.

        ``perhaps_stored``: an earlier call may have stored this one. Raises StoreUnavailable when
        nothing was stored, Suppressed, GivenUp, OutcomeUnknown.
        """
        is_keyed = addition.message.idempotency_key is not None
        insert = self._insert_keyed_directly if is_keyed else self._insert_directly
        is_plain = addition.supersedes is None and addition.event_token is None
        if insert is not None and not perhaps_stored and is_plain:
            try:
                if insert((*to_values(addition), addition.fingerprint)):
                    return addition.message
            except InsertFailed as failed:
                perhaps_stored = failed.perhaps_done
        return self._add_in_steps(addition, perhaps_stored=perhaps_stored)

    def _add_in_steps(self, addition: Addition, *, perhaps_stored: bool) -> Message:
        message = addition.message

        def work(connection: sa.Connection) -> Message | Addition:
            nonlocal perhaps_stored
            try:
                if self._try_insert(connection, addition, perhaps_stored=perhaps_stored):
                    return message
                return self._stored(connection, addition)
            except EventChanged:
                # The lock of the event was held by whatever stored the message before.
                stored = self._stored(connection, addition) if perhaps_stored else addition
                if isinstance(stored, Message):
                    return stored
                raise
            except DBAPIError as error:
                perhaps_stored |= is_broken(error) and not takes_no_writes(error)
                raise

        for _ in range(_ADD_TRIES):
            try:
                stored = self._database.run(work)
            except StoreUnavailable as error:
                if perhaps_stored and not error.refused:
                    raise OutcomeUnknown(error.reason, message.id) from error.__cause__
                raise
            if isinstance(stored, Message):
                # Perhaps the row is this call's own, whose answer was lost.
                return message if perhaps_stored and stored.id == message.id else stored
            addition = stored
        problem = "other calls kept freeing and taking the idempotency key"
        raise StoreUnavailable(problem, remedy="try again")

    def add_together(
        self, additions: Sequence[Addition], *, perhaps_stored: bool = False
    ) -> bool | None:
        """Store all of these messages or none; return whether they are stored.

        None where the connection broke and they may be: then add them one by one. Raises
        EventChanged.
        """
        backend, tables = self._database.backend, self._tables
        keyed = [to_keyed(row) for row in additions if row.message.idempotency_key is not None]

        def work(connection: sa.Connection) -> None:
            hold_events(tables, connection, additions)
            take_keys_over(tables, connection, additions)
            backend.insert_rows(connection, self._insert_rows, map(to_values, additions))
            if keyed:
                backend.insert_rows(connection, self._insert_keys, iter(keyed))
            # A duplicate submit may have stored one under the same id, and taken it back.
            ids = [addition.message.id for addition in additions]
            if (keyed or perhaps_stored) and backend.ended_before(connection, tables, ids):
                raise StoreUnavailable("one of the messages was stored before", refused=True)

        try:
            # A server does not commit a transaction whose client has given it up.
            self._database.transact(work, once=True)
        except EventChanged:
            raise
        except StoreUnavailable as error:
            log.warning("batch of %d messages not stored together: %s", len(additions), error)
            return False if error.refused or takes_no_writes(error.__cause__) else None
        return True

    def get(self, message_id: UUID) -> Message:
        return self.movable(message_id).message

    def find_many(self, message_ids: Sequence[UUID]) -> list[Message]:
        return [row.message for row in self.movables(message_ids).values()]

    def with_keys(self, keys: Sequence[str]) -> dict[str, tuple[Message, str]]:
        return with_keys(self._tables, lambda query: self._database.read_of(query, keys))

    def unsent(self, messages: Sequence[Message]) -> set[UUID]:
        return self._database.run(lambda connection: unsent(self._tables, connection, messages))

    def has(self, message_ids: Sequence[UUID]) -> bool:
        """Return whether all are stored, none taken back; a duplicate may have stored one alone."""
        error = self._tables.messages.c.last_error
        query = self._tables.present.where(sa.or_(error.is_(None), error != TAKEN_BACK))
        rows = self._database.read_of(query, message_ids)
        return {row.id for row in rows} == set(message_ids)

    def attempts(self, message_id: UUID) -> list[Attempt]:
        attempts = self._tables.attempts
        query = sa.select(attempts).where(attempts.c.message_id == message_id)
        return [to_attempt(row) for row in self._database.read(query.order_by(attempts.c.token))]

    def movable(self, message_id: UUID) -> Movable:
        row = self.movables([message_id]).get(message_id)
        if row is None:
            raise MessageNotFound(message_id)
        return row

    def movables(self, message_ids: Sequence[UUID]) -> dict[UUID, Movable]:
        rows: Sequence[sa.Row[Any]]
        if len(message_ids) == 1:
            rows = self._database.read(*self._reading(message_ids))
        else:
            rows = self._database.read_of(self._movables, message_ids)
        return {row.id: to_movable(row) for row in rows}

    def _reading(self, message_ids: Sequence[UUID]) -> tuple[sa.Select[Any], dict[str, Any]]:
        """Return the query of these messages, and its parameters.

        PostgreSQL plans a query by an array each time, over the partitions of all days.
        """
        if len(message_ids) == 1:
            return self._movable, {"of": message_ids[0]}
        return self._movables, {"values": message_ids}

    def cancel(
        self,
        message_ids: Sequence[UUID],
        *,
        tokens: Tokens | None = None,
        because: str | None = None,
    ) -> ChangedRows:
        """Cancel those that are still scheduled, and have these tokens if there are any."""
        return self._change(self._cancel, message_ids, tokens, because=because)

    def update(
        self,
        message_ids: Sequence[UUID],
        *,
        tokens: Tokens | None = None,
        body: Body | None = None,
        priority: int | None = None,
    ) -> ChangedRows:
        """Give a body, a priority, or both to those that :meth:`cancel` would cancel.

        One that waits for a limit, and gets a larger one, is due now: it asks for another turn.
        """
        values = {"body": body, "priority": priority, "move_token": new_token()}
        rows, _ = self._change(self._update, message_ids, tokens, **values)
        own = {id_ for id_, row in rows.items() if row.token == values["move_token"]}
        return ChangedRows(rows, own)

    def _change(
        self, change: sa.Update, message_ids: Sequence[UUID], tokens: Tokens | None, **values: Any
    ) -> ChangedRows:
        own = values.get("move_token")  # it has this one where the reply of a COMMIT was lost
        runs = 0

        def work(connection: sa.Connection) -> ChangedRows:
            nonlocal runs
            runs += 1
            live = connection.execute(self._lock_live, {"values": message_ids})
            scheduled = [row for row in live if row.is_scheduled]
            changing = {
                row.id
                for row in scheduled
                if tokens is None or row.move_token in (tokens[row.id], own)
            }
            if runs > 1 and len(changing) < len(scheduled):
                problem = "the connection broke, and this call may have changed the message"
                raise StoreUnavailable(problem, remedy="read it again")
            if changing:
                connection.execute(change, {"values": [*changing], **values})
            rows = connection.execute(*self._reading(message_ids))
            return ChangedRows({row.id: to_movable(row) for row in rows}, changing)

        return self._database.transact(work)

    def move(self, moves: Sequence[NewSlot]) -> dict[UUID, Movable]:
        """Move each unless it has changed, or it is too late: it is booked no longer.

        Return the rows, in which the tail tells who moved it last, or else the token does.
        """
        by_id = sorted(moves, key=lambda move: move.before.message.id)
        rows = [{**move.values(), "until": move.until} for move in by_id]
        reading = self._reading([row["of"] for row in rows])

        def work(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
            connection.execute(self._move, rows)
            return connection.execute(*reading).all()

        [first, *more] = moves
        is_alone = not more and first.tail != first.before.tail
        stored = self._database.run(work) if is_alone else self._database.transact(work)
        return {row.id: to_movable(row) for row in stored}

    def change_locked(
        self,
        connection: sa.Connection,
        moves: Sequence[NewSlot],
        cancelled: Sequence[UUID],
        because: str,
    ) -> None:
        """Move and cancel messages that this transaction has locked.

        A move is never too late: reconcile leaves the reservations of a locked message alone.
        """
        if moves:
            connection.execute(self._move_locked, [move.values() for move in moves])
        if cancelled:
            connection.execute(self._cancel, {"values": cancelled, "because": because})

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        tables = self._tables
        change = sa.update(tables.messages).where(tables.has_id(message_ids), tables.is_scheduled)
        self._database.execute(change.values(enqueue_at=database_now(), enqueued_at=None))

    def _try_insert(
        self, connection: sa.Connection, addition: Addition, *, perhaps_stored: bool
    ) -> bool:
        """Store a message and its key, both or none; return whether they were stored.

        One that has ended is looked for once this one is inserted: none can be stored between.
        """
        backend, message, values = self._database.backend, addition.message, to_values(addition)
        is_usual = {None}.issuperset(self._rare_of(values))
        rows = [(self._insert_usual if is_usual else self._insert, values)]
        if message.idempotency_key is not None:
            rows.insert(0, (self._insert_key, to_keyed(addition)))
        elif not perhaps_stored and addition.event_token is None:
            return is_added(connection, *rows[0])

        with suppress(_NotInserted), transaction(connection, backend.begin):
            hold_events(self._tables, connection, [addition])
            take_keys_over(self._tables, connection, [addition])
            is_there = all(is_added(connection, insert, row) for insert, row in rows)
            if is_there and not backend.ended_before(connection, self._tables, [message.id]):
                return True
            raise _NotInserted
        return False

    def _stored(self, connection: sa.Connection, addition: Addition) -> Message | Addition:
        message, tables = addition.message, self._tables
        key = message.idempotency_key
        query = sa.select(*tables.message_columns)
        mine = connection.execute(query.where(tables.messages.c.id == message.id)).one_or_none()
        if mine is None and key is not None:
            mine = connection.execute(tables.keyed, {"values": [key]}).one_or_none()
            if mine is not None and unsent(tables, connection, [to_message(mine)]):
                addition, mine = addition._replace(supersedes=mine.id), None
        if mine is None:
            if is_suppressed(tables, connection, message.recipient, message.channel):
                raise Suppressed(message.channel)
            if key is not None:
                free_key_without_message(tables, connection, key)
            return addition
        lost_its_key = mine.idempotency_key is None and message.idempotency_key is not None
        if mine.status == VOID or lost_its_key:
            raise GivenUp  # or taken back
        return to_message(mine)


class StoppedMessage(NamedTuple):
    """``is_unknown``: its last attempt's outcome. ``is_superseded``: a later one has its key."""

    message: Message
    token: int
    is_unknown: bool
    is_superseded: bool


class StoppedMessages:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = tables = database.tables
        row, now = tables.messages.c, database_now()
        self._due_now = {
            "next_attempt_at": now, "enqueue_at": now,
            # Then its next status is reported, also if it is the last one again.
            "notified_status": sa.case((row.notified_status.is_not(None), Status.SCHEDULED.value)),
        }  # fmt: skip
        retry = sa.update(tables.messages).where(
            row.id == sa.bindparam("of"),
            row.claim_token == sa.bindparam("by"),
            tables.has_status(Status.FAILED),
            sa.or_(row.expires_at.is_(None), row.expires_at > now),
        )
        self._retry = retry.values(status=Status.SCHEDULED.value, finished_at=None, **self._due_now)

    def release(self, held: Message) -> Message:
        """Give a held message one more attempt, at once; expire it past its expiry.

        It is not changed if it was tried since it was read. Raises MessageNotFound.
        """
        row, now = self._tables.messages.c, database_now()
        too_late = row.expires_at <= now
        used_up = row.attempt_count >= row.max_attempts
        return self._change(
            held,
            status=sa.case((too_late, Status.EXPIRED.value), else_=Status.SCHEDULED.value),
            finished_at=sa.case((too_late, now)),
            max_attempts=sa.case((used_up, row.attempt_count + 1), else_=row.max_attempts),
            **self._due_now,
        )

    def drop(self, held: Message, *, reason: str | None = None) -> Message:
        error = DROPPED if reason is None else f"{DROPPED}; {reason}"
        return self._change(
            held, status=Status.FAILED.value, finished_at=database_now(), last_error=error
        )

    def _change(self, held: Message, **values: Any) -> Message:
        messages, tables = self._tables.messages, self._tables
        change = sa.update(messages).where(
            messages.c.id == sa.bindparam("of"),
            tables.has_status(Status.HELD),
            # Every attempt counts one more: held again, it is another decision.
            messages.c.attempt_count == held.attempt_count,
        )
        this = {"of": held.id}
        rows = self._database.change_each(change.values(**values), [this], tables.of_id, this)
        if not rows:
            raise MessageNotFound(held.id)
        return to_message(rows[0])

    def look(self, message_ids: Sequence[UUID]) -> dict[UUID, StoppedMessage]:
        return _standing(self._database.read(self._query(message_ids)))

    def retry(self, additions: Sequence[tuple[StoppedMessage, int]]) -> dict[UUID, StoppedMessage]:
        """Give failed messages more attempts, unless they have changed or are past their expiry."""
        rows = [
            {
                "of": stopped.message.id,
                "by": stopped.token,
                "max_attempts": min(stopped.message.attempt_count + more, MOST_ATTEMPTS),
            }
            for stopped, more in sorted(additions, key=lambda addition: addition[0].message.id)
        ]
        query = self._query([stopped.message.id for stopped, _ in additions])
        return _standing(self._database.change_each(self._retry, rows, query))

    def _query(self, message_ids: Sequence[UUID]) -> sa.Select[Any]:
        tables = self._tables
        messages, attempts = tables.messages, tables.attempts
        unknown = sa.exists().where(
            attempts.c.message_id == messages.c.id,
            attempts.c.token == messages.c.claim_token,
            attempts.c.outcome == Outcome.UNKNOWN.value,
        )
        has_key = sa.exists().where(
            tables.keys.c.idempotency_key == messages.c.idempotency_key,
            tables.keys.c.message_id == messages.c.id,
        )
        superseded = sa.and_(messages.c.idempotency_key.is_not(None), ~has_key)
        return tables.stored.where(tables.has_id(message_ids)).add_columns(
            messages.c.claim_token,
            unknown.label("is_unknown"),
            superseded.label("is_superseded"),
        )


def _standing(rows: Sequence[sa.Row[Any]]) -> dict[UUID, StoppedMessage]:
    return {
        row.id: StoppedMessage(
            to_message(row), row.claim_token, bool(row.is_unknown), bool(row.is_superseded)
        )
        for row in rows
    }


def with_keys(
    tables: Tables, read: Callable[[sa.Select[Any]], Sequence[sa.Row[Any]]]
) -> dict[str, tuple[Message, str]]:
    """Return the messages of the keys that ``read`` selects, with fingerprints.

    The keys are asked first: a look at the messages opens the partitions of all days.
    """
    rows = read(tables.keyed) if read(tables.taken_keys) else ()
    return {row.idempotency_key: (to_message(row), row.fingerprint) for row in rows}


def unsent(tables: Tables, connection: sa.Connection, messages: Sequence[Message]) -> set[UUID]:
    ended = [message for message in messages if message.status in UNSENT_STATUSES]
    tried = [message.id for message in ended if message.attempt_count]
    attempts = tables.attempts.c
    query = sa.select(attempts.message_id).where(
        attempts.message_id.in_(tried), _is_perhaps_sent(tables)
    )
    sent = connection.scalars(query, execution_options=AS_NAMED) if tried else ()
    return {message.id for message in ended}.difference(sent)


def take_keys_over(
    tables: Tables, connection: sa.Connection, additions: Iterable[Addition]
) -> None:
    """Free the keys of superseded messages; their token stops a retry that was judged before."""
    messages, attempts = tables.messages, tables.attempts
    superseding = [(row.supersedes, row.message) for row in additions if row.supersedes]
    for old, message in sorted(superseding, key=itemgetter(0)):
        this = (
            messages.c.id == old,
            messages.c.idempotency_key == message.idempotency_key,
            messages.c.status.in_([status.value for status in UNSENT_STATUSES]),
        )
        lock = sa.update(messages).where(*this).values(claim_token=messages.c.claim_token + 1)
        is_tried = sa.exists().where(attempts.c.message_id == old, _is_perhaps_sent(tables))
        free = free_key(tables, message.idempotency_key or "", old)
        connection.execute(lock, execution_options=AS_NAMED)
        connection.execute(
            free.where(sa.exists().where(*this), ~is_tried), execution_options=AS_NAMED
        )


def _is_perhaps_sent(tables: Tables) -> sa.ColumnElement[bool]:
    outcome = tables.attempts.c.outcome
    return sa.or_(outcome.is_(None), outcome.in_([Outcome.SENT.value, Outcome.UNKNOWN.value]))


def free_key(
    tables: Tables, key: str | sa.BindParameter[str], message_id: UUID | sa.BindParameter[UUID]
) -> sa.Delete:
    row = tables.keys.c
    return sa.delete(tables.keys).where(row.idempotency_key == key, row.message_id == message_id)


def free_key_without_message(tables: Tables, connection: sa.Connection, key: str) -> None:
    messages, keys = tables.messages, tables.keys
    has_message = sa.exists().where(messages.c.id == keys.c.message_id)
    query = sa.select(keys.c.message_id).where(keys.c.idempotency_key == key, ~has_message)
    for (message_id,) in connection.execute(query, execution_options=AS_NAMED).all():
        connection.execute(free_key(tables, key, message_id), execution_options=AS_NAMED)
