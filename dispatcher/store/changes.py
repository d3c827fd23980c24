"""What delivery writes into rows that it has claimed, for one of them or for many at once.

PostgreSQL takes many rows as arrays in one statement, which is planned and run once; SQLite runs
the statement for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    column,
    delete,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from dispatcher.message import Outcome, Status
from dispatcher.store.columns import id_type
from dispatcher.store.instants import database_now, later
from dispatcher.store.schema import attempts, has_status, messages

Row = dict[str, Any]
_Given = Callable[[str], ColumnElement[Any]]

_TYPES: dict[str, TypeEngine[Any]] = {
    "id": id_type(), "token": Integer(), "wait": Float(), "enqueue": Float(), "error": Text(),
    "outcome": Text(), "receipt": Text(),
}  # fmt: skip
_NO_CLAIM: dict[str, Any] = {"claimed_by": None, "claim_expires_at": None}
_NOW = database_now()
_OPEN = has_status(Status.SENDING, Status.HELD)
"""Nobody knows its outcome yet: it is under way, or held until its worker, or a person, tells."""


class Change:
    """A guarded statement; ``names`` are what each row gives, ``id`` and ``token`` first."""

    def __init__(self, make: Callable[[_Given], Update | Delete], *names: str) -> None:
        self._names = ("id", "token", *names)
        self.make = make
        self._one = make(lambda name: bindparam(f"given_{name}", type_=_TYPES[name]))
        self._many = make(_from_arrays(self._names))

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Change what these rows name, as far as it is still theirs."""
        if not rows:
            return
        if connection.dialect.name == "postgresql" and len(rows) > 1:
            connection.execute(self._many, arrays(rows))
        else:
            ones = [{f"given_{name}": row[name] for name in self._names} for row in rows]
            connection.execute(self._one, ones)


def arrays(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows as the arrays that a statement for many is given; at least one row."""
    return {f"given_{name}": [row[name] for row in rows] for name in rows[0]}


def _from_arrays(names: Sequence[str]) -> _Given:
    columns = [column(name, _TYPES[name]) for name in names]
    given = [bindparam(f"given_{name}", type_=ARRAY(_TYPES[name])) for name in names]
    table = func.unnest(*given).table_valued(*columns, name="given").render_derived()
    return lambda name: table.c[name]


def _ours(given: _Given) -> tuple[ColumnElement[bool], ...]:
    return messages.c.id == given("id"), messages.c.claim_token == given("token")


def _attempt(given: _Given) -> tuple[ColumnElement[bool], ...]:
    return attempts.c.message_id == given("id"), attempts.c.token == given("token")


def _sent(*these: ColumnElement[bool]) -> Update:
    ends = has_status(Status.SENDING, Status.HELD, Status.SCHEDULED, Status.FAILED)
    said = {"status": Status.SENT.value, "finished_at": _NOW, "last_error": None}
    return update(messages).where(*these, ends).values(**said, **_NO_CLAIM)


SENT = Change(
    lambda given: _sent(messages.c.id == given("id"), messages.c.claim_token >= given("token"))
)
"""The provider took it, by this claim or an earlier one.

Also when its claim has run out, and whatever came of it since: it was sent, even if a later attempt
has failed or is under way. That one is to be OVERTAKEN before.
"""

OVERTAKEN = Change(
    lambda given: (
        update(attempts)
        .where(*_attempt(given), attempts.c.finished_at.is_(None))
        .values(
            outcome=Outcome.UNKNOWN.value,
            finished_at=select(messages.c.claim_expires_at)
            .where(messages.c.id == attempts.c.message_id)
            .scalar_subquery(),
        )
    )
)
"""An earlier attempt has ended the message while this one is under way.

Its worker may still tell what came of it. Until then its permit counts at the end of its claim, as
it would after a rescue.
"""

FAILED = Change(
    lambda given: update(messages)
    .where(*_ours(given), _OPEN)
    .values(
        status=Status.FAILED.value, finished_at=_NOW, last_error=given("error"), **_NO_CLAIM
    ),
    "error",
)  # fmt: skip
"""It will not be tried again."""

AGAIN = Change(
    lambda given: update(messages)
    .where(*_ours(given), _OPEN)
    .values(
        status=Status.SCHEDULED.value,
        next_attempt_at=later(_NOW, given("wait")),
        enqueue_at=later(_NOW, given("enqueue")),
        last_error=given("error"),
        **_NO_CLAIM,
    ),
    "wait", "enqueue", "error",
)  # fmt: skip
"""It will be tried again after a wait, in seconds from now."""

UNTOLD = Change(
    lambda given: update(messages)
    .where(*_ours(given), _OPEN)
    .values(
        status=Status.HELD.value, next_attempt_at=_NOW, last_error=given("error"), **_NO_CLAIM
    ),
    "error",
)  # fmt: skip
"""Its transport cannot tell what came of it: a person decides."""

EXPIRED = Change(
    lambda given: (
        update(messages)
        .where(
            *_ours(given),
            has_status(Status.SCHEDULED),
            messages.c.expires_at <= messages.c.next_attempt_at,
        )
        .values(status=Status.EXPIRED.value, finished_at=_NOW)
    )
)
"""Its next try would come after its expiry."""

SNOOZED = Change(
    lambda given: update(messages)
    .where(*_ours(given), _OPEN)
    .values(
        status=Status.SCHEDULED.value,
        attempt_count=messages.c.attempt_count - 1,
        next_attempt_at=later(_NOW, given("wait")),
        enqueue_at=later(_NOW, given("enqueue")),
        enqueued_at=case(
            (given("enqueue") > given("wait"), _NOW), else_=messages.c.enqueued_at
        ),
        **_NO_CLAIM,
    ),
    "wait", "enqueue",
)  # fmt: skip
"""It was not handed over, and no attempt counts.

Where the sweep is to look only after it is due, whoever puts it back gives it to Celery.
"""

_WAS_HELD = (
    select(literal(1))
    .where(
        messages.c.id == attempts.c.message_id,
        messages.c.claim_token == attempts.c.token,
        has_status(Status.SCHEDULED, Status.HELD),  # put back before, or in the same statement
        messages.c.on_unknown == "hold",
        attempts.c.outcome == Outcome.UNKNOWN.value,
    )
    .exists()
)

UNDONE_ATTEMPT = Change(
    lambda given: delete(attempts).where(
        *_attempt(given), or_(attempts.c.finished_at.is_(None), _WAS_HELD)
    )
)
"""The attempt that its claim wrote did not happen; also where its message was held for it."""

_IS_OVERTAKEN = and_(
    has_status(Status.SENT),
    select(literal(1))
    .where(
        attempts.c.message_id == messages.c.id,
        attempts.c.token == messages.c.claim_token,
        attempts.c.outcome == Outcome.UNKNOWN.value,
    )
    .exists(),
)

UNCOUNTED = Change(
    lambda given: (
        update(messages)
        .where(*_ours(given), _IS_OVERTAKEN)
        .values(attempt_count=messages.c.attempt_count - 1)
    )
)
"""It was sent by an earlier attempt, and the overtaken one was not handed over."""

UNDONE_OVERTAKEN = Change(
    lambda given: delete(attempts).where(
        *_attempt(given), attempts.c.outcome == Outcome.UNKNOWN.value
    )
)
"""The attempt that was UNCOUNTED did not happen."""

OUTCOME = Change(
    lambda given: update(attempts)
    .where(
        *_attempt(given),
        or_(attempts.c.finished_at.is_(None), attempts.c.outcome == Outcome.UNKNOWN.value),
    )
    .values(
        finished_at=_NOW,
        outcome=given("outcome"),
        error=given("error"),
        receipt=given("receipt"),
    ),
    "outcome", "error", "receipt",
)  # fmt: skip
"""What came of an attempt."""

RENEWED = Change(
    lambda given: (
        update(messages)
        .where(*_ours(given), has_status(Status.SENDING))
        .values(claim_expires_at=later(_NOW, given("wait")))
    ),
    "wait",
)
"""Its hand-over lasts: the claim holds for longer, in seconds from now."""


def sent_at_once() -> Select[Any]:
    """Return the statement that does SENT and OUTCOME for rows of id, token and receipt.

    Only for claims that are the last ones, and open; it returns the ids of the other messages.
    """
    given = _from_arrays(("id", "token", "receipt"))
    said: dict[str, ColumnElement[Any]] = {
        "outcome": literal(Outcome.SENT.value), "error": null()
    }  # fmt: skip
    done = _sent(*_ours(given)).returning(messages.c.id).cte("done")
    outcome = cast("Update", OUTCOME.make(lambda name: said[name] if name in said else given(name)))
    told = outcome.where(attempts.c.message_id.in_(select(done.c.id)))
    return _others(given, done).add_cte(told.cte("told"))


def snoozed_at_once() -> Select[Any]:
    """Return the statement that does SNOOZED and UNDONE_ATTEMPT for the rows of the former.

    It returns the ids of the messages to which SNOOZED does not apply.
    """
    given = _from_arrays(("id", "token", "wait", "enqueue"))
    done = cast("Update", SNOOZED.make(given)).returning(messages.c.id).cte("done")
    return _others(given, done).add_cte(UNDONE_ATTEMPT.make(given).cte("undone"))


def _others(given: _Given, done: CTE) -> Select[Any]:
    return select(given("id")).where(~exists().where(done.c.id == given("id")))
