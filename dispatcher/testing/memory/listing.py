"""Messages as operators select, release, drop and retry them, and their reports, in memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from math import inf
from typing import Any, cast
from uuid import UUID

from dispatcher.errors import MessageNotFound
from dispatcher.message import Message, Outcome, Status
from dispatcher.scope import NO_SCOPE, of_channel, of_scope_on
from dispatcher.selection import Page, Selection
from dispatcher.store.decisions import DROPPED, StoppedMessage
from dispatcher.store.listing import MessageDetails, StoredVersion
from dispatcher.store.notifications import body_of, id_of
from dispatcher.store.schema import MOST_ATTEMPTS, NOTIFIED_STATUSES, Addition
from dispatcher.testing.memory.messages import MemoryMessages
from dispatcher.testing.memory.tables import Row, Tables


class MemoryListing:
    """Stands in for ``dispatcher.store.Listing``."""

    def __init__(self, tables: Tables, *, late: timedelta, put_off: timedelta) -> None:
        self._tables = tables
        self._late = late
        self._put_off = put_off

    def pages(
        self,
        wanted: Selection,
        *,
        size: int,
        after: UUID | None = None,
        before: UUID | None = None,
        oldest_first: bool = False,
    ) -> Iterator[list[Message]]:
        found = [
            row
            for row in self._found(wanted)
            if (before is None or row.id < before)
            and (after is None or (row.id > after if oldest_first else row.id < after))
        ]
        found.sort(key=lambda row: row.id, reverse=not oldest_first)
        for start in range(0, len(found), size):
            yield [row.message() for row in found[start : start + size]]

    def page(
        self,
        wanted: Selection,
        *,
        after: UUID | None,
        limit: int,
        oldest_first: bool = False,
        patience: timedelta | None = None,
    ) -> Page:
        del patience  # nothing is slow here
        pages = self.pages(wanted, size=limit + 1, after=after, oldest_first=oldest_first)
        found = next(pages, [])
        is_more = len(found) > limit
        return Page(messages=tuple(found[:limit]), after=found[limit - 1].id if is_more else None)

    def longest_held(self, wanted: Selection, *, limit: int) -> list[UUID]:
        found = sorted(self._found(wanted), key=lambda row: (row.next_attempt_at, row.id))
        return [row.id for row in found[:limit]]

    def versions(
        self, wanted: Selection, *, after: UUID | None, limit: int, patience: timedelta
    ) -> tuple[list[StoredVersion], UUID | None]:
        page = self.page(wanted, after=after, limit=limit, oldest_first=True, patience=patience)
        tokens = {row.id: row.move_token for row in self._found(wanted)}
        found = [
            StoredVersion(
                each.id, tokens[each.id], each.attempt_count, each.max_attempts, each.status
            )
            for each in page.messages
        ]
        return found, page.after

    def count(self, wanted: Selection) -> int:
        return sum(1 for _ in self._found(wanted))

    def counts(self, wanted: Selection) -> dict[str, dict[Status, int]]:
        return self.counted(wanted)[0]

    def counted(
        self, wanted: Selection, *, patience: timedelta | None = None, most: float = inf
    ) -> tuple[dict[str, dict[Status, int]], bool]:
        del patience, most  # nothing is slow here
        found: dict[str, Counter[Status]] = defaultdict(Counter)
        for row in self._found(wanted):
            found[row.channel][row.status] += 1
        return {channel: dict(found[channel]) for channel in sorted(found)}, True

    def campaigns(self, *, after: str = "") -> Iterator[str]:
        found = {row.campaign for row in self._tables.messages.values() if row.campaign}
        return iter(sorted(each for each in found if each > after))

    def details(self, message_id: UUID) -> MessageDetails:
        row = self._tables.messages.get(message_id)
        if row is None:
            raise MessageNotFound(message_id)
        return MessageDetails(
            row.message(),
            row.enqueue_at,
            row.claim_expires_at,
            MemoryMessages(self._tables).attempts(message_id),
            row.status_url,
            row.notified_status,
        )

    def _found(self, wanted: Selection) -> Iterator[Row]:
        now = self._tables.now()
        status = Status.SCHEDULED if wanted.overdue else wanted.status
        named = {
            "recipient": wanted.recipient,
            "scope": wanted.scope,
            "status": status,
            "idempotency_key": wanted.idempotency_key,
            "campaign": wanted.campaign,
        }
        filters = {name: value for name, value in named.items() if value is not None}
        tests: list[Callable[[Row], bool]] = [
            lambda row: all(getattr(row, name) == value for name, value in filters.items()),
            lambda row: not wanted.channels or row.channel in wanted.channels,
            lambda row: all(_counts_against(row, *each) for each in wanted.scopes),
        ]
        from_at, until_at, prefix = wanted.from_at, wanted.until_at, wanted.key_prefix
        if prefix is not None:
            tests.append(lambda row: (row.idempotency_key or "").startswith(prefix))
        if from_at is not None:
            tests.append(lambda row: row.send_at >= from_at)
        if until_at is not None:
            tests.append(lambda row: row.send_at < until_at)
        if wanted.made_after is not None:
            made_after = wanted.made_after
            tests.append(lambda row: row.id > made_after)
        if wanted.overdue:
            tests.append(
                lambda row: (
                    row.next_attempt_at <= now - self._late
                    and row.enqueue_at <= now + self._put_off
                )
            )
        return (row for row in self._tables.messages.values() if all(each(row) for each in tests))


def _counts_against(row: Row, kind: str, name: str) -> bool:
    _, _, channel = kind.partition(".")
    if of_scope_on(channel) == kind:
        return (row.channel, row.scope) == (channel, name)
    if of_channel(channel) == kind:
        return row.channel == channel == name
    return bool((row.scopes or {}).get(kind) == name)


class MemoryHeld:
    """Stands in for ``dispatcher.store.HeldMessages``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def find(self, *, limit: int) -> list[Message]:
        held = [row for row in self._tables.messages.values() if row.status is Status.HELD]
        return [row.message() for row in sorted(held, key=lambda row: row.id)[:limit]]

    def release(self, found: Message) -> Message:
        row, now = self._row(found.id), self._tables.now()
        if _is_held_as(row, found):
            _tell_anew(row)
            row.next_attempt_at = now
            row.max_attempts = max(row.max_attempts, row.attempt_count + 1)
            if row.expires_at is not None and row.expires_at <= now:
                row.end(Status.EXPIRED, now)
            else:
                row.status = Status.SCHEDULED
            row.enqueue_at = now
        return row.message()

    def drop(self, found: Message, *, reason: str | None = None) -> Message:
        row = self._row(found.id)
        if _is_held_as(row, found):
            error = DROPPED if reason is None else f"{DROPPED}; {reason}"
            row.end(Status.FAILED, self._tables.now(), error)
        return row.message()

    def _row(self, message_id: UUID) -> Row:
        row = self._tables.messages.get(message_id)
        if row is None:
            raise MessageNotFound(message_id)
        return row


class MemoryFailed:
    """Stands in for ``dispatcher.store.FailedMessages``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def look(self, message_ids: Sequence[UUID]) -> dict[UUID, StoppedMessage]:
        rows = filter(None, map(self._tables.messages.get, message_ids))
        has_key = self._tables.has_key
        return {
            row.id: StoppedMessage(
                row.message(), row.claim_token, self._is_unknown(row), not has_key(row)
            )
            for row in rows
        }

    def retry(self, wanted: Sequence[tuple[StoppedMessage, int]]) -> dict[UUID, StoppedMessage]:
        now = self._tables.now()
        for found, more in wanted:
            row = self._tables.messages.get(found.message.id)
            if row is None or row.status is not Status.FAILED or row.claim_token != found.token:
                continue
            if not self._tables.has_key(row):
                continue
            self._tables.check_free(row.id, row.idempotency_key)
            if row.expires_at is not None and row.expires_at <= now:
                continue
            _tell_anew(row)
            row.status, row.finished_at = Status.SCHEDULED, None
            row.next_attempt_at = row.enqueue_at = now
            row.max_attempts = min(found.message.attempt_count + more, MOST_ATTEMPTS)
        return self.look([found.message.id for found, _ in wanted])

    def _is_unknown(self, row: Row) -> bool:
        last = self._tables.attempts.get(row.id, {}).get(row.claim_token)
        return last is not None and last.outcome is Outcome.UNKNOWN


class MemoryNotifications:
    """Stands in for ``dispatcher.store.Notifications``."""

    def __init__(
        self, tables: Tables, *, channel: str, max_attempts: int, tells_errors: bool = False
    ) -> None:
        self._tables = tables
        self._channel = channel
        self._max_attempts = max_attempts
        self._tells_errors = tells_errors

    def tell(self, *, limit: int) -> list[UUID]:
        rows = [
            row
            for row in self._tables.messages.values()
            if row.notified_status not in (None, row.status) and row.status in NOTIFIED_STATUSES
        ]
        rows.sort(key=lambda row: (str(row.notified_status), row.status, row.id))
        made = [self._make(row) for row in rows[:limit]]
        return [each for each in made if each is not None]

    def _make(self, row: Row) -> UUID | None:
        tables, now = self._tables, self._tables.now()
        row.notified_status = row.status
        made = id_of(cast(Any, row))
        if made in tables.messages:
            return None
        last = [each for each in tables.outcomes(row.id) if each is not None][-1:]
        outcome = last[0].value if last else None
        body = body_of(cast(Any, _Shown(row, now)), outcome, tells_errors=self._tells_errors)
        report = Message(
            id=made, channel=self._channel, recipient=row.status_url or "", scope=NO_SCOPE,
            body=body,
            send_at=now, next_attempt_at=now, expires_at=None, status=Status.SCHEDULED,
            attempt_count=0, max_attempts=self._max_attempts, idempotency_key=None, created_at=now,
            finished_at=None, last_error=None, on_unknown="retry",
        )  # fmt: skip
        tables.insert(Addition(report, now, None, "{}"))
        tables.messages[made].reserved = False
        return made


class _Shown:
    """A row as ``tell`` selects it."""

    def __init__(self, row: Row, now: object) -> None:
        self._row = row
        self.now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)


def _is_held_as(row: Row, found: Message) -> bool:
    return row.status is Status.HELD and row.attempt_count == found.attempt_count


def _tell_anew(row: Row) -> None:
    if row.notified_status is not None:
        row.notified_status = Status.SCHEDULED
