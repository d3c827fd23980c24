"""What ``store/messages.py`` does, in memory: the same answers and the same rows.

Each call is one transaction. ``test_store_double.py`` compares all of the store with SQLite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import timedelta
from uuid import UUID

from dispatcher.errors import (
    MessageChanged,
    MessageNotFound,
    StoreUnavailable,
    Suppressed,
    TooLate,
)
from dispatcher.message import Attempt, Body, Message, Status
from dispatcher.store import (
    Addition,
    CancelResult,
    GivenUp,
    Movable,
    NewReply,
    NewSlot,
    Pause,
    Suppression,
)
from dispatcher.store.schema import EVERY_CHANNEL, TAKEN_BACK
from dispatcher.testing.memory.tables import PauseRow, Tables, cut


class MemoryMessages:
    """Stands in for ``dispatcher.store.Messages``."""

    def lacks(self, text: str) -> bool:
        del text
        return False

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, addition: Addition, *, perhaps_stored: bool = False) -> Message:
        del perhaps_stored  # and there are no replies without the HTTP API
        message, tables = addition.message, self._tables
        key = message.idempotency_key
        if message.id in tables.void:
            raise GivenUp
        known = message.id
        if known not in tables.messages and key is not None:
            known = tables.keys.get(key, known)
        if known in tables.messages and (known == message.id or not tables.is_unsent(known)):
            if key is not None and tables.messages[known].idempotency_key is None:
                raise GivenUp
            return tables.messages[known].message()
        if tables.is_suppressed(message.recipient, message.channel):
            raise Suppressed(message.channel)
        tables.check_free(message.id, key)
        tables.insert(addition)
        return message

    def add_together(
        self,
        additions: Iterable[Addition],
        *,
        perhaps_stored: bool = False,  # noqa: ARG002 - here no partition hides a stored message
    ) -> bool | None:
        every, tables = list(additions), self._tables
        ids = {each.message.id for each in every}
        given = [each.message.idempotency_key for each in every]
        keys = [key for key in given if key is not None]
        are_new = not (ids & (tables.messages.keys() | tables.void.keys()))
        taken = {key for key in keys if key in tables.keys}
        freed = {
            each.message.idempotency_key
            for each in every
            if each.supersedes is not None and tables.is_unsent(each.supersedes)
        }
        if not are_new or taken - freed or len(set(keys)) < len(keys):
            return False
        try:
            for each in every:
                tables.check_free(each.message.id, each.message.idempotency_key)
        except StoreUnavailable:
            return False
        for each in every:
            tables.insert(each)
        return True

    def has(self, message_ids: Sequence[UUID]) -> bool:
        rows = [self._tables.messages.get(each) for each in message_ids]
        return all(row is not None and row.last_error != TAKEN_BACK for row in rows)

    def with_keys(self, keys: Sequence[str]) -> dict[str, tuple[Message, str]]:
        found = {key: self._tables.keys[key] for key in keys if key in self._tables.keys}
        rows = {key: self._tables.messages[id_] for key, id_ in found.items()}
        return {key: (row.message(), row.fingerprint or "") for key, row in rows.items()}

    def unsent(self, messages: Sequence[Message]) -> set[UUID]:
        return {each.id for each in messages if self._tables.is_unsent(each.id)}

    def find_many(self, message_ids: Sequence[UUID]) -> list[Message]:
        rows = map(self._tables.messages.get, message_ids)
        return [row.message() for row in rows if row is not None]

    def cancel(
        self,
        message_ids: Sequence[UUID],
        *,
        move_token: int | None = None,
        because: str | None = None,
    ) -> CancelResult:
        newly_cancelled = set()
        for row in filter(None, map(self._tables.scheduled, message_ids)):
            if move_token in (None, row.move_token):
                row.end(Status.CANCELLED, self._tables.now(), because)
                newly_cancelled.add(row.id)
        found = {each.id: each for each in self.find_many(message_ids)}
        return CancelResult(found, newly_cancelled)

    def get(self, message_id: UUID) -> Message:
        row = self._tables.messages.get(message_id)
        if row is None:
            raise MessageNotFound(message_id)
        return row.message()

    def with_key(self, idempotency_key: str) -> tuple[Message, str | None] | None:
        known = self._tables.keys.get(idempotency_key)
        if known is None:
            return None
        row = self._tables.messages[known]
        return row.message(), row.fingerprint

    def attempts(self, message_id: UUID) -> list[Attempt]:
        tries = self._tables.attempts.get(message_id, {})
        rows = [tries[token] for token in sorted(tries)]
        return [
            Attempt(**{each.name: getattr(row, each.name) for each in fields(row)}) for row in rows
        ]

    def movable(self, message_id: UUID) -> Movable:
        message = self.get(message_id)
        return Movable(message, self._tables.messages[message_id].move_token, self._tables.now())

    def cancelled(self, message_ids: Sequence[UUID]) -> list[Message]:
        found = self.movables(message_ids).values()
        return [each.message for each in found if each.message.status is Status.CANCELLED]

    def movables(self, message_ids: Sequence[UUID]) -> dict[UUID, Movable]:
        found = [each for each in message_ids if self._tables.messages.get(each) is not None]
        return {each: self.movable(each) for each in found}

    def move(self, moves: Sequence[NewSlot], *, within: timedelta) -> dict[UUID, Movable]:
        for new in moves:
            row = self._tables.scheduled(new.found.message.id)
            in_time = self._tables.now() <= new.found.read_at + within
            if row is not None and row.move_token == new.found.token and in_time:
                row.move_token += 1
                row.send_at, row.next_attempt_at = cut(new.send_at), cut(new.next_attempt_at)
                row.zone, row.expire_after = new.zone, new.expire_after
                row.asked_at = None if new.asked_at is None else cut(new.asked_at)
                row.expires_at = None if new.expires_at is None else cut(new.expires_at)
                row.enqueue_at = cut(new.enqueue_at)
                if row.enqueue_at > row.next_attempt_at:
                    row.enqueued_at = self._tables.now()
        return self.movables([new.found.message.id for new in moves])

    def move_if_unchanged(self, move: NewSlot, *, within: timedelta) -> Movable:
        now = self.move([move], within=within).get(move.found.message.id)
        if now is None:
            raise MessageNotFound(move.found.message.id)
        if now.token not in (move.found.token, move.found.token + 1):
            raise MessageChanged(now.message.id)
        return now

    def update_if_unchanged(self, found: Movable, *, body: Body) -> Message:
        now = self.movable(found.message.id)
        if now.token != found.token:
            raise MessageChanged(now.message.id)
        if now.message.status is not Status.SCHEDULED:
            raise TooLate(now.message.id, now.message.status)
        return self.update(found.message.id, body=body)

    def update(self, message_id: UUID, *, body: Body) -> Message:
        row = self._tables.scheduled(message_id)
        if row is not None:
            row.body = body
            row.move_token += 1
        return self.get(message_id)

    def take_back(self, message: Message, *, reply: NewReply | None = None) -> bool:
        del reply
        row, key = self._tables.scheduled(message.id), message.idempotency_key
        if row is not None and key is None:
            self._tables.take_back(row)
        elif row is not None and key is not None:
            row.end(Status.CANCELLED, self._tables.now(), TAKEN_BACK)
            del self._tables.keys[key]
            row.idempotency_key = row.fingerprint = row.notified_status = row.status_url = None
        row = self._tables.messages.get(message.id)
        return row is None or row.status is Status.CANCELLED

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        for row in filter(None, map(self._tables.scheduled, message_ids)):
            row.enqueue_at, row.enqueued_at = self._tables.now(), None


class MemorySuppressions:
    """Stands in for ``dispatcher.store.Suppressions``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, recipient: str, channel: str | None) -> None:
        place = recipient, channel or EVERY_CHANNEL
        self._tables.suppressed.setdefault(place, self._tables.now())

    def remove(self, recipient: str, channel: str | None) -> None:
        self._tables.suppressed.pop((recipient, channel or EVERY_CHANNEL), None)

    def check(self, recipient: str, channel: str) -> None:
        if self._tables.is_suppressed(recipient, channel):
            raise Suppressed(channel)

    def among(self, recipients: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        return {each for each in recipients if self._tables.is_suppressed(*each)}

    def scheduled(
        self, recipient: str, channel: str | None, *, after: UUID | None, limit: int
    ) -> list[UUID]:
        return sorted(
            row.id
            for row in self._tables.messages.values()
            if row.recipient == recipient
            and row.status is Status.SCHEDULED
            and channel in (None, row.channel)
            and (after is None or row.id > after)
        )[:limit]

    def page(
        self, recipient: str | None, *, after: tuple[str, str] | None, limit: int
    ) -> list[Suppression]:
        return [
            Suppression(name, channel or None, at)
            for (name, channel), at in sorted(self._tables.suppressed.items())
            if recipient in (None, name) and (after is None or (name, channel) > after)
        ][:limit]


class MemoryPauses:
    """Stands in for ``dispatcher.store.Pauses``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, kind: str, name: str) -> None:
        known = self._tables.pauses.get((kind, name))
        if known is None or known.resumed_at is not None:
            self._tables.pauses[kind, name] = PauseRow(self._tables.now())

    def end(self, kind: str, name: str) -> None:
        self._tables.resume(kind, name)

    def in_force(self) -> list[Pause]:
        found = sorted(self._tables.pauses.items(), key=lambda each: each[0])
        return [Pause(*place, row.paused_at) for place, row in found if row.resumed_at is None]
