"""What those who deliver need: claim, record, put back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, select, update

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.changes import (
    AGAIN,
    EXPIRED,
    FAILED,
    OUTCOME,
    OVERTAKEN,
    RENEWED,
    SENT,
    SNOOZED,
    UNCOUNTED,
    UNDONE_ATTEMPT,
    UNDONE_OVERTAKEN,
    UNTOLD,
    Row,
    arrays,
    sent_at_once,
    snoozed_at_once,
)
from dispatcher.store.chosen import change_chosen
from dispatcher.store.claiming import Claiming, at_once
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now
from dispatcher.store.messages import to_message
from dispatcher.store.schema import IS_SUPPRESSED, has_status, messages
from dispatcher.store.suppressions import REASON

_NO_WAIT = timedelta(0)
_SEND_AT, _NEXT_ATTEMPT_AT, _EXPIRES_AT = (
    list(Message.__dataclass_fields__).index(name)
    for name in ("send_at", "next_attempt_at", "expires_at")
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A message that is ours to deliver until the claim ends. The token fences our record.

    ``due_in`` is how long it then still had to wait for its instant, in seconds; ``expires_in`` the
    time it had left, None for ever. ``late_by`` is how long ago its promised time was, in seconds.
    """

    message: Message
    token: int
    due_in: float = 0.0
    expires_in: float | None = None
    late_by: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """A hand-over that the transport accepted."""

    claim: Claim
    receipt: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A hand-over that failed. ``wait`` until the next try; None when there will be none.

    With an unknown outcome a message is held that says so, whatever the wait. ``error_type`` names
    the type of what was raised; the store does not keep it.
    """

    claim: Claim
    outcome: Outcome
    error: str
    wait: timedelta | None
    error_type: str | None = None

    @property
    def is_held(self) -> bool:
        """Whether a person is to decide about it."""
        return self.outcome is Outcome.UNKNOWN and self.claim.message.on_unknown == "hold"


class Unclaimed(NamedTuple):
    """What could not be claimed: how long what is early has to wait, and what has now ended.

    That with the channels; what is cancelled had a recipient who has opted out.
    """

    waits: dict[UUID, timedelta]
    expired: dict[UUID, str]
    cancelled: dict[UUID, str]


class Claims:
    """Takes messages to deliver them and writes down what came of it.

    The database's clock alone decides what is due. Every call may be run again. What ``leaves``
    describes is not taken.
    """

    def __init__(
        self, database: Database, *, ttl: timedelta, leaves: ColumnElement[bool] | None = None
    ) -> None:
        self._database = database
        self._ttl = ttl
        self._takes = ~IS_SUPPRESSED if leaves is None else and_(~IS_SUPPRESSED, ~leaves)
        self._claim_at_once = database.straight(at_once(self._takes))
        self._sent_at_once = database.straight(sent_at_once())
        self._snoozed_at_once = database.straight(snoozed_at_once())

    def claim(self, message_ids: Sequence[UUID], *, ahead: timedelta = _NO_WAIT) -> list[Claim]:
        """Take those messages that are scheduled and due, or due within ``ahead``.

        Those past their expiry are not taken, nor those whose recipient has opted out. The attempt
        is written with the claim, so that one which kills its process counts.
        """
        claiming = Claiming(message_ids, ahead=ahead, ttl=self._ttl, takes=self._takes)
        rows: Sequence[Any] | None = self._claim_at_once(claiming.values)
        if rows is None:
            rows = self._database.transact(claiming.step_by_step)
        return [
            Claim(
                to_message(row),
                row[-2],
                max(0.0, (row[_NEXT_ATTEMPT_AT] - row[-1]).total_seconds()),
                _seconds_until(row[_EXPIRES_AT], row[-1]),
                (row[-1] - row[_SEND_AT]).total_seconds(),
            )
            for row in rows
        ]

    def renew(self, claims: Sequence[Claim]) -> set[UUID]:
        """Let claims last for their whole length from now on; return which are still ours."""
        rows = [_key(each) | {"wait": self._ttl.total_seconds()} for each in claims]
        tokens = {each.message.id: each.token for each in claims}
        query = select(messages.c.id, messages.c.claim_token).where(
            self._database.one_of(messages.c.id, list(tokens)),
            has_status(Status.SENDING),
        )

        def work(connection: Connection) -> Sequence[Any]:
            RENEWED.run(connection, rows)
            return connection.execute(query).all()

        held = self._database.transact(work)
        return {row.id for row in held if row.claim_token == tokens[row.id]}

    def unclaimed(self, message_ids: Sequence[UUID]) -> Unclaimed:
        """Look after messages that could not be claimed.

        End those that are past their expiry, and those whose recipient has opted out.
        """
        now = database_now()
        is_late = and_(messages.c.next_attempt_at <= now, messages.c.expires_at <= now)
        these = (messages.c.id.in_(message_ids), has_status(Status.SCHEDULED))
        read = select(
            messages.c.id,
            messages.c.next_attempt_at,
            now.label("now"),
            is_late.label("is_late"),
            IS_SUPPRESSED.label("is_suppressed"),
        ).where(*these)
        rows = self._database.run(lambda connection: connection.execute(read).all())
        unwanted = [row.id for row in rows if row.is_suppressed]
        late = [row.id for row in rows if row.is_late and not row.is_suppressed]
        return Unclaimed(
            {
                row.id: row.next_attempt_at - row.now
                for row in rows
                if row.next_attempt_at > row.now and not row.is_suppressed
            },
            self._end(late, is_late, status=Status.EXPIRED.value),
            self._end(unwanted, IS_SUPPRESSED, status=Status.CANCELLED.value, last_error=REASON),
        )

    def _end(
        self, message_ids: Sequence[UUID], reason: ColumnElement[bool], **values: str
    ) -> dict[UUID, str]:
        """End those of scheduled messages to which ``reason`` applies; return their channels."""
        if not message_ids:
            return {}
        these = (
            select(messages.c.id)
            .where(messages.c.id.in_(message_ids), has_status(Status.SCHEDULED), reason)
            .order_by(messages.c.id)
            .with_for_update()
        )
        end = (
            update(messages)
            .where(has_status(Status.SCHEDULED), reason)
            .values(finished_at=database_now(), **values)
        )
        rows = change_chosen(self._database, these, end, messages.c.id, messages.c.channel)
        return dict(tuple(row) for row in rows)

    def enqueue_when_due(self, message_ids: Sequence[UUID]) -> None:
        """Let the sweep hand these over when they are due at the latest.

        Their task came far too early, and was perhaps that of a time before a reschedule.
        """
        statement = (
            update(messages)
            .where(
                messages.c.id.in_(message_ids),
                has_status(Status.SCHEDULED),
                messages.c.enqueue_at > messages.c.next_attempt_at,
            )
            .values(enqueue_at=messages.c.next_attempt_at)
        )
        self._database.run(lambda connection: connection.execute(statement))

    def record(
        self, results: Sequence[Result], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        """Write down what came of claims, in one transaction; return what has expired by that.

        A success ends the message as sent, however late it comes and whoever has claimed it since:
        it stops a further sending. Only what was cancelled or has expired stays as it is. A failure
        is refused silently where another claim has been made: the token fences. It is taken where
        the message is held for want of it. Messages to be tried again are due ``wait`` from now and
        handed over by the sweep ``enqueue_in`` after that.
        """
        sent = [_key(each.claim) | {"receipt": each.receipt} for each in results]
        if not failures and sent and self._sent_at_once(arrays(sent)) == []:
            return set()
        again = [each for each in failures if each.wait is not None and not each.is_held]
        untold = [each for each in failures if each.is_held]
        ended = [each for each in failures if each.wait is None and not each.is_held]

        def work(connection: Connection) -> set[UUID]:
            succeeded = [_key(each.claim) for each in results]
            last = self._last_claims(connection, succeeded, Status.SENDING)
            tokens = {each.claim.message.id: each.claim.token for each in results}
            OVERTAKEN.run(connection, [row for row in last if row["token"] > tokens[row["id"]]])
            SENT.run(connection, succeeded)
            FAILED.run(connection, [_key(each.claim) | {"error": each.error} for each in ended])
            UNTOLD.run(connection, [_key(each.claim) | {"error": each.error} for each in untold])
            rows = [
                _key(each.claim) | _waits(each.wait, enqueue_in) | {"error": each.error}
                for each in again
            ]
            AGAIN.run(connection, rows)
            expired = self._without_time(connection, again)
            EXPIRED.run(connection, [_key(each.claim) for each in again])
            outcomes = [
                _key(each.claim)
                | {"outcome": Outcome.SENT.value, "error": None, "receipt": each.receipt}
                for each in results
            ] + [
                _key(each.claim)
                | {"outcome": each.outcome.value, "error": each.error, "receipt": None}
                for each in failures
            ]
            OUTCOME.run(connection, outcomes)
            return expired

        return self._database.transact(work)

    def put_back(
        self, snoozed: Iterable[tuple[Claim, timedelta]], *, enqueue_in: timedelta
    ) -> None:
        """Return claims that were not handed over: due again after the wait, no attempt counted.

        The sweep hands them over ``enqueue_in`` after that, unless the caller publishes them.
        """
        given = list(snoozed)
        rows = [_key(claim) | _waits(wait, enqueue_in) for claim, wait in given]
        if not rows or self._snoozed_at_once(arrays(rows)) == []:
            return

        def work(connection: Connection) -> None:
            SNOOZED.run(connection, rows)
            UNDONE_ATTEMPT.run(connection, [_key(claim) for claim, _ in given])
            last = self._last_claims(connection, rows, Status.SENT)
            ours = {row["id"]: row["token"] for row in rows}
            overtaken = [row for row in last if row["token"] == ours[row["id"]]]
            UNCOUNTED.run(connection, overtaken)
            UNDONE_OVERTAKEN.run(connection, overtaken)

        self._database.transact(work)

    def _without_time(self, connection: Connection, again: Sequence[Failure]) -> set[UUID]:
        """Return those of which ``EXPIRED`` will end."""
        claims = [each.claim for each in again if each.claim.expires_in is not None]
        if not claims:
            return set()
        tokens = {each.message.id: each.token for each in claims}
        query = select(messages.c.id, messages.c.claim_token).where(
            self._database.one_of(messages.c.id, list(tokens)),
            has_status(Status.SCHEDULED),
            messages.c.expires_at <= messages.c.next_attempt_at,
        )
        rows = connection.execute(query)
        return {row.id for row in rows if row.claim_token == tokens[row.id]}

    def _last_claims(
        self, connection: Connection, rows: Sequence[Row], status: Status
    ) -> list[Row]:
        """Lock those of the messages that have this status; return their last claims."""
        if not rows:
            return []
        query = (
            select(messages.c.id, messages.c.claim_token)
            .where(
                self._database.one_of(messages.c.id, [row["id"] for row in rows]),
                has_status(status),
            )
            .order_by(messages.c.id)
            .with_for_update()
        )
        return [{"id": row.id, "token": row.claim_token} for row in connection.execute(query)]


def _seconds_until(instant: datetime | None, now: datetime) -> float | None:
    return (instant - now).total_seconds() if instant else None


def _key(claim: Claim) -> Row:
    return {"id": claim.message.id, "token": claim.token}


def _waits(wait: timedelta | None, enqueue_in: timedelta) -> Row:
    seconds = wait.total_seconds() if wait else 0.0
    return {"wait": seconds, "enqueue": max(0.0, seconds + enqueue_in.total_seconds())}
