"""Changes of rows that are guarded by a token, for one row or for many at once.

Where the database takes arrays, many rows are changed by one statement, which is planned and run
once; elsewhere the statement is run for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Delete,
    Float,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    case,
    delete,
    exists,
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

GivenRow = dict[str, Any]
Given = Callable[[str], ColumnElement[Any]]

_TYPES: dict[str, TypeEngine[Any]] = {
    "id": id_type(), "token": Integer(), "wait": Float(), "enqueue": Float(), "error": Text(),
    "outcome": Text(), "receipt": Text(), "send_at": Instant(), "next_attempt_at": Instant(),
    "enqueue_at": Instant(), "expires_at": Instant(), "asked_at": Instant(), "until": Instant(),
    "expire_after": Length(), "zone": Text(), "max_attempts": Integer(),
}  # fmt: skip
_NO_CLAIM: dict[str, Any] = {"claimed_by": None, "claim_expires_at": None}
_NOW = database_now()


class Change:
    """A guarded statement; ``names`` are the values of each row, ``id`` and ``token`` first."""

    def __init__(
        self, backend: StoreEngine, make: Callable[[Given], Update | Delete], *names: str
    ) -> None:
        self._names = ("id", "token", *names)
        self.make = make
        self._one = make(lambda name: bindparam(f"given_{name}", type_=_TYPES[name]))
        self._many = None
        if backend.takes_arrays:
            self._many = make(_given_as_arrays(backend, self._names))

    def run(self, connection: Connection, rows: Sequence[GivenRow]) -> None:
        """Change these rows, as far as their tokens are still current.

        Call it in a transaction where there are several, or SQLite syncs its file for each.
        """
        if not rows:
            return
        ones = [{name: row[name] for name in self._names} for row in rows]
        if self._many is not None and len(ones) > 1:
            connection.execute(self._many, arrays(ones))
        else:
            given = [{f"given_{name}": value for name, value in one.items()} for one in ones]
            connection.execute(self._one, given)


def arrays(rows: Sequence[GivenRow]) -> dict[str, list[Any]]:
    """Return rows as the arrays that a statement for many is given; at least one row."""
    return {f"given_{name}": [row[name] for row in rows] for name in rows[0]}


def _given_as_arrays(backend: StoreEngine, names: Sequence[str]) -> Given:
    table = backend.rows_from({name: _TYPES[name] for name in names})
    return lambda name: table.c[name]


class Changes:
    """The guarded statements, by the names of one database's tables."""

    def __init__(self, database: Database) -> None:
        self._backend = database.backend
        self._tables = tables = database.tables
        # Its outcome is not known yet: it is being sent, or held.
        self._open = tables.has_status(Status.SENDING, Status.HELD)

    @cached_property
    def sent(self) -> Change:
        """The provider accepted it, by this claim or an earlier one.

        Also when its claim has run out, whatever its status since: it was sent, even if a later
        attempt has failed or is under way. Run ``overtaken`` for that one before.
        """
        messages = self._tables.messages
        return self._change(
            lambda given: self._sent(
                messages.c.id == given("id"), messages.c.claim_token >= given("token")
            )
        )

    @cached_property
    def overtaken(self) -> Change:
        """An earlier attempt has ended the message while this one is under way.

        Its worker may still record its outcome. Until then its permit counts at the end of its
        claim, as after a rescue.
        """
        messages, attempts = self._tables.messages, self._tables.attempts
        return self._change(
            lambda given: (
                update(attempts)
                .where(*self._attempt(given), attempts.c.finished_at.is_(None))
                .values(
                    outcome=Outcome.UNKNOWN.value,
                    finished_at=select(messages.c.claim_expires_at)
                    .where(messages.c.id == attempts.c.message_id)
                    .scalar_subquery(),
                )
            )
        )

    @cached_property
    def failed(self) -> Change:
        """It fails: no further attempt."""
        messages = self._tables.messages
        return self._change(
            lambda given: (
                update(messages)
                .where(*self._ours(given), self._open)
                .values(
                    status=Status.FAILED.value,
                    finished_at=_NOW,
                    last_error=given("error"),
                    **_NO_CLAIM,
                )
            ),
            "error",
        )

    @cached_property
    def again(self) -> Change:
        """It is retried after a wait, in seconds from now."""
        messages = self._tables.messages
        return self._change(
            lambda given: (
                update(messages)
                .where(*self._ours(given), self._open)
                .values(
                    status=Status.SCHEDULED.value,
                    next_attempt_at=later(_NOW, given("wait")),
                    enqueue_at=later(_NOW, given("enqueue")),
                    last_error=given("error"),
                    **_NO_CLAIM,
                )
            ),
            "wait",
            "enqueue",
            "error",
        )

    @cached_property
    def held(self) -> Change:
        """The outcome of its attempt is unknown: it is held for the decision of an operator."""
        messages = self._tables.messages
        return self._change(
            lambda given: (
                update(messages)
                .where(*self._ours(given), self._open)
                .values(
                    status=Status.HELD.value,
                    next_attempt_at=_NOW,
                    last_error=given("error"),
                    **_NO_CLAIM,
                )
            ),
            "error",
        )

    @cached_property
    def expired(self) -> Change:
        """It expires: its next attempt would come after its expiry."""
        messages = self._tables.messages
        return self._change(
            lambda given: (
                update(messages)
                .where(
                    *self._ours(given),
                    self._tables.has_status(Status.SCHEDULED),
                    messages.c.expires_at <= messages.c.next_attempt_at,
                )
                .values(status=Status.EXPIRED.value, finished_at=_NOW)
            )
        )

    @cached_property
    def snoozed(self) -> Change:
        """It was not sent: no attempt counts, and it is not due earlier than before.

        Where maintenance would enqueue it only after it is due, the caller enqueues it.
        """
        messages = self._tables.messages
        return self._change(
            lambda given: (
                update(messages)
                .where(*self._ours(given), self._open)
                .values(
                    status=Status.SCHEDULED.value,
                    attempt_count=messages.c.attempt_count - 1,
                    next_attempt_at=_not_before(messages.c.next_attempt_at, given("wait")),
                    enqueue_at=later(_NOW, given("enqueue")),
                    enqueued_at=case(
                        (given("enqueue") > given("wait"), _NOW), else_=messages.c.enqueued_at
                    ),
                    **_NO_CLAIM,
                )
            ),
            "wait",
            "enqueue",
        )

    @cached_property
    def not_begun(self) -> Change:
        """Its worker died before it began to send it: due as it was, and no attempt counts."""
        messages = self._tables.messages
        return self._change(
            lambda given: (
                update(messages)
                .where(*self._ours(given), self._open)
                .values(
                    status=Status.SCHEDULED.value,
                    attempt_count=messages.c.attempt_count - 1,
                    enqueue_at=_NOW,
                    last_error=given("error"),
                    **_NO_CLAIM,
                )
            ),
            "error",
        )

    @cached_property
    def undone_attempt(self) -> Change:
        """Its claim's attempt did not happen; also where its message was held for it."""
        messages, attempts = self._tables.messages, self._tables.attempts
        was_held = (
            select(literal(1))
            .where(
                messages.c.id == attempts.c.message_id,
                messages.c.claim_token == attempts.c.token,
                # put back before, or in the same statement
                self._tables.has_status(Status.SCHEDULED, Status.HELD),
                messages.c.on_unknown == "hold",
                attempts.c.outcome == Outcome.UNKNOWN.value,
            )
            .exists()
        )
        return self._change(
            lambda given: delete(attempts).where(
                *self._attempt(given), or_(attempts.c.finished_at.is_(None), was_held)
            )
        )

    @cached_property
    def uncounted(self) -> Change:
        """It was sent by an earlier attempt, and the overtaken one was not sent."""
        messages, attempts = self._tables.messages, self._tables.attempts
        is_overtaken = and_(
            self._tables.has_status(Status.SENT),
            select(literal(1))
            .where(
                attempts.c.message_id == messages.c.id,
                attempts.c.token == messages.c.claim_token,
                attempts.c.outcome == Outcome.UNKNOWN.value,
            )
            .exists(),
        )
        return self._change(
            lambda given: (
                update(messages)
                .where(*self._ours(given), is_overtaken)
                .values(attempt_count=messages.c.attempt_count - 1)
            )
        )

    @cached_property
    def undone_overtaken(self) -> Change:
        """The attempt that was ``uncounted`` did not happen."""
        attempts = self._tables.attempts
        return self._change(
            lambda given: delete(attempts).where(
                *self._attempt(given), attempts.c.outcome == Outcome.UNKNOWN.value
            )
        )

    @cached_property
    def outcome(self) -> Change:
        """The outcome of an attempt."""
        attempts = self._tables.attempts
        return self._change(
            lambda given: (
                update(attempts)
                .where(
                    *self._attempt(given),
                    or_(
                        attempts.c.finished_at.is_(None),
                        attempts.c.outcome == Outcome.UNKNOWN.value,
                    ),
                )
                .values(
                    finished_at=_NOW,
                    outcome=given("outcome"),
                    error=given("error"),
                    receipt=given("receipt"),
                )
            ),
            "outcome",
            "error",
            "receipt",
        )

    @cached_property
    def renewed(self) -> Change:
        """Its send takes long: its claim ends later, in seconds from now."""
        messages = self._tables.messages
        return self._change(
            lambda given: (
                update(messages)
                .where(*self._ours(given), self._tables.has_status(Status.SENDING))
                .values(claim_expires_at=later(_NOW, given("wait")))
            ),
            "wait",
        )

    def sent_at_once(self) -> Select[Any]:
        """Return the statement that does ``sent`` and ``outcome`` for rows of id, token, receipt.

        Only for claims that are the last ones, and open; it returns the ids of the other messages.
        """
        given = _given_as_arrays(self._backend, ("id", "token", "receipt"))
        fixed: dict[str, ColumnElement[Any]] = {
            "outcome": literal(Outcome.SENT.value), "error": null()
        }  # fmt: skip
        done = self._sent(*self._ours(given)).returning(self._tables.messages.c.id).cte("done")
        outcome = cast(
            "Update",
            self.outcome.make(lambda name: fixed[name] if name in fixed else given(name)),
        )
        recorded = outcome.where(self._tables.attempts.c.message_id.in_(select(done.c.id)))
        return _others(given, done).add_cte(recorded.cte("told"))

    def snoozed_at_once(self) -> Select[Any]:
        """Return the statement that does ``snoozed`` and ``undone_attempt`` for the former's rows.

        It returns the ids of the messages to which ``snoozed`` does not apply.
        """
        given = _given_as_arrays(self._backend, ("id", "token", "wait", "enqueue"))
        snoozed = cast("Update", self.snoozed.make(given))
        done = snoozed.returning(self._tables.messages.c.id).cte("done")
        return _others(given, done).add_cte(self.undone_attempt.make(given).cte("undone"))

    def _change(self, make: Callable[[Given], Update | Delete], *names: str) -> Change:
        return Change(self._backend, make, *names)

    def _ours(self, given: Given) -> tuple[ColumnElement[bool], ...]:
        messages = self._tables.messages
        return messages.c.id == given("id"), messages.c.claim_token == given("token")

    def _attempt(self, given: Given) -> tuple[ColumnElement[bool], ...]:
        attempts = self._tables.attempts
        return attempts.c.message_id == given("id"), attempts.c.token == given("token")

    def _sent(self, *these: ColumnElement[bool]) -> Update:
        tables = self._tables
        ends = tables.has_status(Status.SENDING, Status.HELD, Status.SCHEDULED, Status.FAILED)
        values = {"status": Status.SENT.value, "finished_at": _NOW, "last_error": None}
        return update(tables.messages).where(*these, ends).values(**values, **_NO_CLAIM)


def _not_before(due_at: ColumnElement[Any], wait: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((due_at > later(_NOW, wait), due_at), else_=later(_NOW, wait))


def _others(given: Given, done: CTE) -> Select[Any]:
    return select(given("id")).where(~exists().where(done.c.id == given("id")))
