"""Changes of rows that are guarded by a token, for one row or for many at once.

Where the database takes arrays, many rows are changed by one statement, which is planned and run
once; elsewhere the statement is run for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, cast

from sqlalchemy import (
    ARRAY,
    CTE,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Float,
    Integer,
    Row,
    Select,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.types import TypeEngine

from dispatcher.message import Outcome, Status
from dispatcher.store.database import Database
from dispatcher.store.engines import StoreEngine
from dispatcher.store.engines.types import Instant, Length, database_now, id_type, later
from dispatcher.store.schema import MOST_ATTEMPTS

GivenRow = dict[str, Any]
_TYPES: dict[str, TypeEngine[Any]] = {
    "id": id_type(), "token": Integer(), "wait": Float(), "enqueue": Float(), "more": Integer(),
    "error": Text(), "outcome": Text(), "receipt": Text(), "send_at": Instant(),
    "next_attempt_at": Instant(),
    "enqueue_at": Instant(), "expires_at": Instant(), "asked_at": Instant(), "until": Instant(),
    "expire_after": Length(), "zone": Text(), "max_attempts": Integer(), "key": Text(),
    "tail": Text(),
}  # fmt: skip
_NO_CLAIM: dict[str, Any] = {"claimed_by": None, "claim_expires_at": None}
_NOW = database_now()
NOT_BEGUN = "not sent: its worker died before the send began"
"""The ``last_error`` of a message whose worker died before the send. If the next worker dies so,
too, the attempt counts."""


class Given:
    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def __call__(self, name: str) -> ColumnElement[Any]:
        self.names[name] = None
        return bindparam(f"given_{name}", type_=_TYPES[name])

    def finds(self, key: Column[Any], name: str = "id") -> ColumnElement[bool]:
        return key == self(name)


class GivenArrays(Given):
    """The values of many rows as arrays; ``same`` are those that all rows have."""

    def __init__(
        self, backend: StoreEngine, names: Iterable[str], **same: ColumnElement[Any]
    ) -> None:
        super().__init__()
        self._same = same
        self._rows = backend.rows_from({name: _TYPES[name] for name in names})

    def __call__(self, name: str) -> ColumnElement[Any]:
        return self._same[name] if name in self._same else self._rows.c[name]

    def finds(self, key: Column[Any], name: str = "id") -> ColumnElement[bool]:
        """Return the condition that ``key`` has the row's value, and so is one of all values.

        The latter is redundant, but it belongs to the table alone: no index of ``key`` can be read
        without it. PostgreSQL joins by reading the whole index where a vacuum has counted no row,
        and then that index may have millions of entries of dead rows.
        """
        every = bindparam(f"given_{name}", type_=ARRAY(_TYPES[name]))
        return and_(super().finds(key, name), key == any_(every))


Make = Callable[[Given], Update | Delete]


class GuardedChange:
    """A guarded statement; ``make`` makes it of the values of a row, for which it asks by name."""

    def __init__(self, backend: StoreEngine, make: Make) -> None:
        self.make = make
        given = Given()
        self._one = make(given)
        self._names = tuple(given.names)
        self._many = make(GivenArrays(backend, self._names)) if backend.takes_arrays else None

    def run(self, connection: Connection, rows: Sequence[GivenRow]) -> int:
        """Change these rows, as far as their tokens are still current; return how many.

        Call it in a transaction where there are several, or SQLite syncs its file for each.
        """
        if not rows:
            return 0
        if self._many is not None and len(rows) > 1:
            return connection.execute(self._many, arrays(rows, self._names)).rowcount
        given = [{f"given_{name}": row[name] for name in self._names} for row in rows]
        return connection.execute(self._one, given).rowcount

    def run_and_read(
        self, database: Database, rows: Sequence[GivenRow], query: Select[Any]
    ) -> Sequence[Row[Any]]:
        def work(connection: Connection) -> Sequence[Row[Any]]:
            self.run(connection, rows)
            return connection.execute(query).all()

        return database.transact(work) if len(rows) > 1 else database.run(work)


def arrays(rows: Sequence[GivenRow], names: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Return rows, at least one, as the arrays that a statement for many is given."""
    return {f"given_{name}": [row[name] for row in rows] for name in names or rows[0]}


def change(
    make: Callable[[ClaimChanges, Given], Update | Delete],
) -> cached_property[GuardedChange]:
    """Turn a method that makes a statement into its change, made when it is first used."""
    return cached_property(lambda changes: GuardedChange(changes.backend, partial(make, changes)))


class ClaimChanges:
    def __init__(self, database: Database) -> None:
        self.backend = database.backend
        self._tables = tables = database.tables
        self._messages, self._attempts = tables.messages, tables.attempts
        # Its outcome is not known yet: it is being sent, or held.
        self._open = tables.has_status(Status.SENDING, Status.HELD)
        before = self._messages.c.last_error
        self._error_before = case((before == NOT_BEGUN, null()), else_=before)

    @change
    def sent(self, given: Given) -> Update:
        """End it as sent: the provider accepted it, by this claim or an earlier one.

        Whatever its status, also with a later attempt under way: run ``overtaken`` for it before.
        """
        messages = self._messages
        return self._sent(given.finds(messages.c.id), messages.c.claim_token >= given("token"))

    @change
    def overtaken(self, given: Given) -> Update:
        """End an attempt under way whose message an earlier attempt has ended.

        Until its worker records it, its permit counts at the end of its claim, as after a rescue.
        """
        messages, attempts = self._messages, self._attempts
        claim_end = select(messages.c.claim_expires_at).where(
            messages.c.id == attempts.c.message_id
        )
        return (
            update(attempts)
            .where(*self._attempt(given), self._tables.is_under_way)
            .values(outcome=Outcome.UNKNOWN.value, finished_at=claim_end.scalar_subquery())
        )

    @change
    def failed(self, given: Given) -> Update:
        return self._end_claim(
            given, status=Status.FAILED.value, finished_at=_NOW, last_error=given("error")
        )

    @change
    def again(self, given: Given) -> Update:
        """Retry it after a wait, in seconds from now; ``more`` attempts than before may follow."""
        row = self._messages.c
        return self._end_claim(
            given,
            status=Status.SCHEDULED.value,
            next_attempt_at=later(_NOW, given("wait")),
            enqueue_at=later(_NOW, given("enqueue")),
            last_error=given("error"),
            max_attempts=case(
                (row.max_attempts < MOST_ATTEMPTS, row.max_attempts + given("more")),
                else_=row.max_attempts,
            ),
        )

    @change
    def held(self, given: Given) -> Update:
        return self._end_claim(
            given, status=Status.HELD.value, next_attempt_at=_NOW, last_error=given("error")
        )

    @change
    def expired(self, given: Given) -> Update:
        messages = self._messages
        too_late = messages.c.expires_at <= messages.c.next_attempt_at
        return (
            update(messages)
            .where(*self._ours(given), self._tables.is_scheduled, too_late)
            .values(status=Status.EXPIRED.value, finished_at=_NOW)
        )

    @change
    def snoozed(self, given: Given) -> Update:
        """Put it back unsent: no attempt counts, and it is not due earlier than before.

        It clears ``NOT_BEGUN``: a worker that lives shows that its message does not kill.
        """
        row = self._messages.c
        due_at = later(_NOW, given("wait"))
        is_enqueued = given("enqueue") > given("wait")
        return self._end_claim(
            given,
            status=Status.SCHEDULED.value,
            attempt_count=row.attempt_count - 1,
            next_attempt_at=case((row.next_attempt_at > due_at, row.next_attempt_at), else_=due_at),
            enqueue_at=later(_NOW, given("enqueue")),
            enqueued_at=case((is_enqueued, _NOW), else_=row.enqueued_at),
            last_error=self._error_before,
        )

    @change
    def not_begun(self, given: Given) -> Update:
        """Put it back, due as it was; without an ``error`` its worker lives."""
        return self._end_claim(
            given,
            status=Status.SCHEDULED.value,
            attempt_count=self._messages.c.attempt_count - 1,
            enqueue_at=_NOW,
            last_error=func.coalesce(given("error"), self._error_before),
        )

    @change
    def undone_attempt(self, given: Given) -> Delete:
        """Delete its claim's attempt: it did not happen, also where its message was held for it."""
        messages, attempts = self._messages, self._attempts
        # Not EXISTS, for which PostgreSQL may read all messages that fit, to ask them by their ids.
        on_unknown = select(messages.c.on_unknown).where(
            messages.c.id == attempts.c.message_id,
            messages.c.claim_token == attempts.c.token,
            # Put back before, or in the same statement; that one sees it as it was when it began,
            # also where it then waited for the rescue that holds the message.
            self._tables.has_status(Status.SCHEDULED, Status.HELD, Status.SENDING),
        )
        is_unknown = attempts.c.outcome == Outcome.UNKNOWN.value
        was_held = and_(is_unknown, on_unknown.scalar_subquery() == "hold")
        may_go = or_(self._tables.is_under_way, was_held)
        return delete(attempts).where(*self._attempt(given), may_go)

    @change
    def uncounted(self, given: Given) -> Update:
        """Count no overtaken attempt that was not sent: an earlier one was."""
        messages, attempts = self._messages, self._attempts
        is_overtaken = exists().where(
            given.finds(attempts.c.message_id),
            attempts.c.token == messages.c.claim_token,
            attempts.c.outcome == Outcome.UNKNOWN.value,
        )
        return (
            update(messages)
            .where(*self._ours(given), self._tables.has_status(Status.SENT), is_overtaken)
            .values(attempt_count=messages.c.attempt_count - 1)
        )

    @change
    def undone_overtaken(self, given: Given) -> Delete:
        attempts = self._attempts
        is_unknown = attempts.c.outcome == Outcome.UNKNOWN.value
        return delete(attempts).where(*self._attempt(given), is_unknown)

    @change
    def outcome(self, given: Given) -> Update:
        attempts = self._attempts
        is_unknown = attempts.c.outcome == Outcome.UNKNOWN.value
        return (
            update(attempts)
            .where(*self._attempt(given), or_(self._tables.is_under_way, is_unknown))
            .values(
                finished_at=_NOW,
                outcome=given("outcome"),
                error=given("error"),
                receipt=given("receipt"),
            )
        )

    @change
    def renewed(self, given: Given) -> Update:
        return (
            update(self._messages)
            .where(*self._ours(given), self._tables.has_status(Status.SENDING))
            .values(claim_expires_at=later(_NOW, given("wait")))
        )

    def sent_at_once(self) -> Select[Any]:
        """Do ``sent`` and ``outcome`` in one statement, for claims that are under way.

        It returns the ids of the other messages, with which it does nothing.
        """
        names = ("id", "token", "receipt")
        same = {"outcome": literal(Outcome.SENT.value), "error": cast("ColumnElement[Any]", null())}
        given = GivenArrays(self.backend, names, **same)
        is_under_way = self._tables.has_status(Status.SENDING)
        sent = self._sent(*self._ours(given), is_under_way)
        done = sent.returning(self._messages.c.id).cte("done")
        is_done = self._attempts.c.message_id.in_(select(done.c.id))
        outcome = cast("Update", self.outcome.make(given))
        recorded = outcome.where(is_done, self._tables.is_under_way)
        return _others(given, done).add_cte(recorded.cte("recorded_ids"))

    def snoozed_at_once(self) -> Select[Any]:
        """Do ``snoozed`` and ``undone_attempt`` in one statement, as the former."""
        given = GivenArrays(self.backend, ("id", "token", "wait", "enqueue"))
        is_under_way = self._tables.has_status(Status.SENDING)
        snoozed = cast("Update", self.snoozed.make(given)).where(is_under_way)
        done = snoozed.returning(self._messages.c.id).cte("done")
        undone = self.undone_attempt.make(given).where(self._tables.is_under_way)
        return _others(given, done).add_cte(undone.cte("undone"))

    def _ours(self, given: Given) -> tuple[ColumnElement[bool], ...]:
        messages = self._messages
        return given.finds(messages.c.id), messages.c.claim_token == given("token")

    def _attempt(self, given: Given) -> tuple[ColumnElement[bool], ...]:
        attempts = self._attempts
        return given.finds(attempts.c.message_id), attempts.c.token == given("token")

    def _sent(self, *these: ColumnElement[bool]) -> Update:
        tables = self._tables
        ends = tables.has_status(Status.SENDING, Status.HELD, Status.SCHEDULED, Status.FAILED)
        values = {"status": Status.SENT.value, "finished_at": _NOW, "last_error": None}
        return update(tables.messages).where(*these, ends).values(**values, **_NO_CLAIM)

    def _end_claim(self, given: Given, **values: Any) -> Update:
        these = (*self._ours(given), self._open)
        return update(self._messages).where(*these).values(**values, **_NO_CLAIM)


def _others(given: Given, done: CTE) -> Select[Any]:
    return select(given("id")).where(~exists().where(done.c.id == given("id")))
