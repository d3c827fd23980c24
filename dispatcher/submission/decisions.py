"""The decisions of operators: retry failed messages; release or drop held ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    InvalidValue,
    MessageChanged,
    MessageNotFound,
    Suppressed,
    TooLate,
    UnknownChannel,
)
from dispatcher.message import Message, Status, check_text, is_unchanged
from dispatcher.settings import Settings
from dispatcher.store.lists import Suppressions
from dispatcher.store.messages import Messages, StoppedMessage, StoppedMessages
from dispatcher.submission.changes import ChangeResult
from dispatcher.telemetry.journal import Journal, Transition

_AT_ONCE = 500
_RELEASED = (Status.SCHEDULED, Status.SENDING, Status.EXPIRED)


@dataclass(kw_only=True)
class Decisions:
    """Changes failed and held messages as operators decide. The row decides every race.

    A failed message keeps its reservation, so that no quota is judged again; its next attempts need
    permits like any other.
    """

    settings: Settings
    messages: Messages
    stopped_messages: StoppedMessages
    suppressions: Suppressions
    journal: Journal

    def retry_many(
        self,
        message_ids: Sequence[UUID],
        *,
        perhaps_sent: bool = False,
        if_unchanged: Mapping[UUID, Message] = MappingProxyType({}),
    ) -> list[ChangeResult]:
        """Give failed messages further attempts, at once; return for each it or the refusal.

        ``if_unchanged`` has messages as they were read, by id. Where the outcome of the last
        attempt is unknown and its ``on_unknown`` is ``hold``, only ``perhaps_sent`` allows a second
        send. Raises StoreUnavailable: some may be retried; a repeated call returns which.
        """
        answers: dict[UUID, ChangeResult] = {}
        left = list(dict.fromkeys(message_ids))
        while left:
            self._retry(left[:_AT_ONCE], perhaps_sent, if_unchanged, answers)
            left = left[_AT_ONCE:]
        return [answers[message_id] for message_id in message_ids]

    def release(self, message_id: UUID, *, if_unchanged: Message | None = None) -> Message:
        """Give a held message one more attempt, or end it as expired past its expiry."""
        held = self._require_held(message_id, if_unchanged)
        if self.suppressions.among([(held.recipient, held.channel)]):
            raise Suppressed(held.channel)
        message = self.stopped_messages.release(held)
        if message.status not in _RELEASED:
            raise TooLate(message_id, message.status, needs=Status.HELD)
        ended = message.status is Status.EXPIRED
        self.journal.tell(Transition.EXPIRED if ended else Transition.RELEASED, message)
        return message

    def drop(
        self,
        message_id: UUID,
        *,
        reason: str | None = None,
        if_unchanged: Message | None = None,
    ) -> Message:
        """End a held message as failed; it keeps its reservation."""
        if reason is not None:
            reason = check_text("reason", reason)
        message = self.stopped_messages.drop(
            self._require_held(message_id, if_unchanged), reason=reason
        )
        if message.status is not Status.FAILED:
            raise TooLate(message_id, message.status, needs=Status.HELD)
        self.journal.tell(Transition.FAILED, message, attempt=message.attempt_count)
        return message

    def _retry(
        self,
        message_ids: Sequence[UUID],
        perhaps_sent: bool,
        if_unchanged: Mapping[UUID, Message],
        answers: dict[UUID, ChangeResult],
    ) -> None:
        rows = self.stopped_messages.look(message_ids)
        recipients = {(row.message.recipient, row.message.channel) for row in rows.values()}
        suppressed = self.suppressions.among(recipients)
        retried: list[tuple[StoppedMessage, int]] = []
        for message_id in message_ids:
            if message_id not in rows:
                answers[message_id] = MessageNotFound(message_id)
                continue
            row = rows[message_id]
            message = row.message
            refusal = self._refusal(row, perhaps_sent, if_unchanged.get(message_id))
            if refusal is None and (message.recipient, message.channel) in suppressed:
                refusal = Suppressed(message.channel)
            if refusal is not None:
                answers[message_id] = refusal
            else:
                retried.append((row, self.settings.channels[message.channel].max_attempts))
        standing = self.stopped_messages.retry(retried) if retried else {}
        for before, _ in retried:
            message_id = before.message.id
            answers[message_id] = self._answer(before, standing.get(message_id))

    def _refusal(
        self, row: StoppedMessage, perhaps_sent: bool, before: Message | None
    ) -> DispatcherError | None:
        message = row.message
        if before is not None and not is_unchanged(before, message):
            return MessageChanged(message.id)
        if message.status is not Status.FAILED or row.is_superseded or not message.recipient:
            return _too_late(row)
        if row.is_unknown and message.on_unknown == "hold" and not perhaps_sent:
            return InvalidValue(
                "perhaps_sent",
                f"message {message.id} may have been sent, and must not go out twice",
                "true, to send it nevertheless",
            )
        if message.channel not in self.settings.channels:
            return UnknownChannel(message.channel, tuple(self.settings.channels))
        return None

    def _answer(self, before: StoppedMessage, now: StoppedMessage | None) -> ChangeResult:
        if now is None:
            return MessageNotFound(before.message.id)
        if now.is_superseded or not now.message.recipient:
            return _too_late(now)
        if now.message.status is Status.FAILED and now.token == before.token:
            return TooLate(before.message.id, "past its expiry")
        self.journal.tell(Transition.RETRIED, now.message, attempt=now.message.attempt_count)
        return now.message

    def _require_held(self, message_id: UUID, before: Message | None) -> Message:
        message = self.messages.get(message_id)
        if before is not None and not is_unchanged(before, message):
            raise MessageChanged(message_id)
        if message.status is not Status.HELD:
            raise TooLate(message_id, message.status, needs=Status.HELD)
        return message


def _too_late(row: StoppedMessage) -> TooLate:
    message = row.message
    if not message.recipient:
        return TooLate(message.id, "erased")
    if message.status is Status.FAILED:
        return TooLate(message.id, "superseded by a later message with its idempotency key")
    return TooLate(message.id, message.status, needs=Status.FAILED)
