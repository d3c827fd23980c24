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
from dispatcher.store.decisions import StoppedMessage, StoppedMessages
from dispatcher.store.lists import Suppressions
from dispatcher.store.messages import Messages
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

    def retry(
        self,
        message_id: UUID,
        *,
        perhaps_sent: bool = False,
        if_unchanged: Message | None = None,
    ) -> Message:
        """Give a failed message further attempts, as many as its channel allows, at once.

        Raises MessageNotFound; TooLate where it has not failed, is past its expiry, or a later
        message has its idempotency key;
        UnknownChannel; Suppressed where its recipient has opted out; and InvalidValue where the
        outcome of its last attempt is unknown, its ``on_unknown`` is ``hold``, and ``perhaps_sent``
        does not allow a second send. Raises MessageChanged unless it is as in ``if_unchanged``.
        """
        before = {} if if_unchanged is None else {message_id: if_unchanged}
        answer = self._retried([message_id], perhaps_sent, before)[message_id]
        if isinstance(answer, DispatcherError):
            raise answer
        return answer

    def retry_many(
        self,
        message_ids: Sequence[UUID],
        *,
        perhaps_sent: bool = False,
        if_unchanged: Mapping[UUID, Message] = MappingProxyType({}),
    ) -> list[Message | DispatcherError]:
        """Return for each id what :meth:`retry` would return or raise.

        ``if_unchanged`` has messages as they were read, by id.

        Raises StoreUnavailable: some may be retried; a repeated call returns which.
        """
        answers: dict[UUID, Message | DispatcherError] = {}
        every = list(dict.fromkeys(message_ids))
        for start in range(0, len(every), _AT_ONCE):
            some = every[start : start + _AT_ONCE]
            answers |= self._retried(some, perhaps_sent, if_unchanged)
        return [answers[each] for each in message_ids]

    def release(self, message_id: UUID, *, if_unchanged: Message | None = None) -> Message:
        """Give a held message one more attempt, or end it as expired past its expiry.

        Raises MessageNotFound; TooLate where it is not held, or another call was faster;
        Suppressed where its recipient has opted out; and MessageChanged unless it is as in
        ``if_unchanged``.
        """
        found = self._require_held(message_id, if_unchanged)
        if self.suppressions.among([(found.recipient, found.channel)]):
            raise Suppressed(found.channel)
        message = self.stopped_messages.release(found)
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
        """End a held message as failed; it keeps its reservation.

        Raises MessageNotFound, TooLate, MessageChanged, and InvalidDraft for a reason that is no
        line of text.
        """
        if reason is not None:
            reason = check_text("reason", reason)
        message = self.stopped_messages.drop(
            self._require_held(message_id, if_unchanged), reason=reason
        )
        if message.status is not Status.FAILED:
            raise TooLate(message_id, message.status, needs=Status.HELD)
        self.journal.tell(Transition.FAILED, message, attempt=message.attempt_count)
        return message

    def _retried(
        self,
        message_ids: Sequence[UUID],
        perhaps_sent: bool,
        if_unchanged: Mapping[UUID, Message],
    ) -> dict[UUID, Message | DispatcherError]:
        found = self.stopped_messages.look(message_ids)
        answers: dict[UUID, Message | DispatcherError] = {}
        for each in message_ids:
            refused = self._refusal(each, found.get(each), perhaps_sent, if_unchanged.get(each))
            if refused is not None:
                answers[each] = refused
        left = [found[each] for each in message_ids if each not in answers]
        recipients = {(each.message.recipient, each.message.channel) for each in left}
        unwanted = self.suppressions.among(recipients)
        wanted: list[tuple[StoppedMessage, int]] = []
        for before in left:
            message = before.message
            if (message.recipient, message.channel) in unwanted:
                answers[message.id] = Suppressed(message.channel)
            else:
                wanted.append((before, self.settings.channels[message.channel].max_attempts))
        standing = self.stopped_messages.retry(wanted) if wanted else {}
        for before, _ in wanted:
            now = standing.get(before.message.id)
            answers[before.message.id] = self._answer(before, now)
        return answers

    def _refusal(
        self,
        message_id: UUID,
        found: StoppedMessage | None,
        perhaps_sent: bool,
        if_unchanged: Message | None,
    ) -> DispatcherError | None:
        if found is None:
            return MessageNotFound(message_id)
        message = found.message
        if if_unchanged is not None and not is_unchanged(if_unchanged, message):
            return MessageChanged(message_id)
        if message.status is not Status.FAILED or found.is_superseded or not message.recipient:
            return _too_late(found)
        if found.is_unknown and message.on_unknown == "hold" and not perhaps_sent:
            return InvalidValue(
                "perhaps_sent",
                f"message {message_id} may have been sent, and must not go out twice",
                "true, to send it nevertheless",
            )
        if message.channel not in self.settings.channels:
            return UnknownChannel(message.channel, tuple(self.settings.channels))
        return None

    def _answer(
        self, before: StoppedMessage, now: StoppedMessage | None
    ) -> Message | DispatcherError:
        if now is None:
            return MessageNotFound(before.message.id)
        if now.is_superseded or not now.message.recipient:
            return _too_late(now)
        if now.message.status is Status.FAILED and now.token == before.token:
            return TooLate(before.message.id, "past its expiry")
        self.journal.tell(Transition.RETRIED, now.message, attempt=now.message.attempt_count)
        return now.message

    def _require_held(self, message_id: UUID, if_unchanged: Message | None) -> Message:
        message = self.messages.get(message_id)
        if if_unchanged is not None and not is_unchanged(if_unchanged, message):
            raise MessageChanged(message_id)
        if message.status is not Status.HELD:
            raise TooLate(message_id, message.status, needs=Status.HELD)
        return message


def _too_late(found: StoppedMessage) -> TooLate:
    message = found.message
    if not message.recipient:
        return TooLate(message.id, "erased")
    if message.status is Status.FAILED:
        return TooLate(message.id, "superseded by a later message with its idempotency key")
    return TooLate(message.id, message.status, needs=Status.FAILED)
