"""What those who deliver need: claim, record, put back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from sqlalchemy import Connection, insert, literal, or_, select, update

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.changes import (
    AGAIN,
    EXPIRED,
    FAILED,
    OUTCOME,
    SENT,
    SNOOZED,
    UNDONE_ATTEMPT,
    Row,
)
from dispatcher.store.chosen import chosen
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now, later
from dispatcher.store.messages import MESSAGE_COLUMNS, to_message
from dispatcher.store.schema import attempts, messages


@dataclass(frozen=True, slots=True)
class Claim:
    """A message that is ours to deliver until the claim ends. The token fences our record.

    ``expires_in`` is the time in seconds the message had left when it was claimed, None for ever.
    """

    message: Message
    token: int
    expires_in: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A hand-over that the transport accepted."""

    claim: Claim
    receipt: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A hand-over that failed. ``wait`` until the next try; None when there will be none."""

    claim: Claim
    outcome: Outcome
    error: str
    wait: timedelta | None


class Claims:
    """Takes messages to deliver them and writes down what came of it.

    The database's clock alone decides what is due. Every call may be run again.
    """

    def __init__(self, database: Database, *, ttl: timedelta) -> None:
        self._database = database
        self._ttl = ttl

    def claim(self, message_ids: Sequence[UUID]) -> list[Claim]:
        """Take those messages that are scheduled and due; end those that are past their expiry.

        The attempt is written with the claim, so that one which kills its process counts.
        """
        mine = uuid4()
        now = database_now()
        wanted = (
            select(messages.c.id)
            .where(
                messages.c.id.in_(message_ids),
                messages.c.status == Status.SCHEDULED.value,
                messages.c.next_attempt_at <= now,
            )
            .order_by(messages.c.id)
            .with_for_update(skip_locked=True)
        )
        alive = or_(messages.c.expires_at.is_(None), messages.c.expires_at > now)
        scheduled = messages.c.status == Status.SCHEDULED.value
        take = (
            update(messages)
            .where(scheduled, alive)
            .values(
                status=Status.SENDING.value,
                claim_token=messages.c.claim_token + 1,
                attempt_count=messages.c.attempt_count + 1,
                claimed_by=mine,
                claim_expires_at=later(now, self._ttl.total_seconds()),
            )
        )
        expire = (
            update(messages)
            .where(scheduled, ~alive)
            .values(status=Status.EXPIRED.value, finished_at=now)
        )
        taken = (messages.c.claimed_by == mine, messages.c.id.in_(message_ids))
        begin = insert(attempts).from_select(
            ["message_id", "token", "started_at"],
            select(messages.c.id, messages.c.claim_token, now).where(
                *taken,
                ~select(literal(1))
                .where(
                    attempts.c.message_id == messages.c.id,
                    attempts.c.token == messages.c.claim_token,
                )
                .exists(),
            ),
        )
        read = (
            select(*MESSAGE_COLUMNS, messages.c.claim_token, now.label("now"))
            .where(*taken)
            .order_by(messages.c.next_attempt_at, messages.c.id)
        )

        def work(connection: Connection) -> list[Claim]:
            these = messages.c.id.in_(chosen(connection, wanted))
            connection.execute(take.where(these))
            connection.execute(expire.where(these))
            connection.execute(begin)
            rows = connection.execute(read).all()
            return [
                Claim(to_message(row), row.claim_token, _seconds_left(row.expires_at, row.now))
                for row in rows
            ]

        return self._database.transact(work)

    def early(self, message_ids: Sequence[UUID]) -> dict[UUID, timedelta]:
        """Return how long each message that is scheduled but not due still has to wait."""
        now = database_now()
        query = select(messages.c.id, messages.c.next_attempt_at, now.label("now")).where(
            messages.c.id.in_(message_ids),
            messages.c.status == Status.SCHEDULED.value,
            messages.c.next_attempt_at > now,
        )
        rows = self._database.run(lambda connection: connection.execute(query).all())
        return {row.id: row.next_attempt_at - row.now for row in rows}

    def enqueue_when_due(self, message_ids: Sequence[UUID]) -> None:
        """Let the sweep hand these over when they are due: their task came far too early."""
        statement = (
            update(messages)
            .where(messages.c.id.in_(message_ids), messages.c.status == Status.SCHEDULED.value)
            .values(enqueue_at=messages.c.next_attempt_at)
        )
        self._database.run(lambda connection: connection.execute(statement))

    def record(
        self, results: Sequence[Result], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> None:
        """Write down what came of claims, in one transaction.

        A record is refused silently where another claim has been made since: the token fences.
        A success is taken also when the claim ran out but nobody has claimed the message again,
        since it stops a second sending. Messages to be tried again are due ``wait`` from now and
        handed over by the sweep ``enqueue_in`` after that.
        """
        again = [each for each in failures if each.wait is not None]
        ended = [each for each in failures if each.wait is None]

        def work(connection: Connection) -> None:
            SENT.run(connection, [_key(each.claim) for each in results])
            FAILED.run(connection, [_key(each.claim) | {"error": each.error} for each in ended])
            rows = [
                _key(each.claim) | _waits(each.wait, enqueue_in) | {"error": each.error}
                for each in again
            ]
            AGAIN.run(connection, rows)
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

        self._database.transact(work)

    def put_back(
        self, snoozed: Iterable[tuple[Claim, timedelta]], *, enqueue_in: timedelta
    ) -> None:
        """Return claims that were not handed over: due again after the wait, no attempt counted.

        The sweep hands them over ``enqueue_in`` after that, unless the caller publishes them.
        """
        given = list(snoozed)
        rows = [_key(claim) | _waits(wait, enqueue_in) for claim, wait in given]
        if not rows:
            return

        def work(connection: Connection) -> None:
            SNOOZED.run(connection, rows)
            UNDONE_ATTEMPT.run(connection, [_key(claim) for claim, _ in given])

        self._database.transact(work)


def _seconds_left(expires_at: datetime | None, now: datetime) -> float | None:
    return (expires_at - now).total_seconds() if expires_at else None


def _key(claim: Claim) -> Row:
    return {"id": claim.message.id, "token": claim.token}


def _waits(wait: timedelta | None, enqueue_in: timedelta) -> Row:
    seconds = wait.total_seconds() if wait else 0.0
    return {"wait": seconds, "enqueue": max(0.0, seconds + enqueue_in.total_seconds())}
