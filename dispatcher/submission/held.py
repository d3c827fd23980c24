"""Decide what becomes of messages whose outcome nobody knows: release or drop."""

from __future__ import annotations

from uuid import UUID

from dispatcher.errors import TooLate
from dispatcher.message import Message, Status
from dispatcher.store import HeldMessages, Messages, Suppressions
from dispatcher.telemetry.journal import Journal, Transition

_RELEASED = (Status.SCHEDULED, Status.SENDING, Status.EXPIRED)


class Held:
    """The use cases of those who look after what is held. The row decides every race."""

    def __init__(
        self,
        *,
        messages: Messages,
        held: HeldMessages,
        suppressions: Suppressions,
        journal: Journal,
    ) -> None:
        self._messages = messages
        self._suppressions = suppressions
        self._held = held
        self._journal = journal

    def find(self, *, at_most: int) -> list[Message]:
        """Return the messages that are held, oldest first."""
        return self._held.find(at_most=at_most)

    def release(self, message_id: UUID) -> Message:
        """Let a held message be tried once more, or end as expired where its time is up.

        Raises MessageNotFound; TooLate where it is not held, or somebody else was quicker; and
        Suppressed where its recipient has opted out.
        """
        message = self._require_held(message_id)
        self._suppressions.check(message.recipient, message.channel)
        message = self._held.release(message_id)
        if message.status not in _RELEASED:
            raise TooLate(message_id, message.status)
        ended = message.status is Status.EXPIRED
        self._journal.tell(Transition.EXPIRED if ended else Transition.RELEASED, message)
        return message

    def drop(self, message_id: UUID) -> Message:
        """Give up a held message: it ends as failed, and keeps its reservation.

        Raises MessageNotFound and TooLate.
        """
        self._require_held(message_id)
        message = self._held.drop(message_id)
        if message.status is not Status.FAILED:
            raise TooLate(message_id, message.status)
        self._journal.tell(Transition.FAILED, message, attempt=message.attempt_count)
        return message

    def _require_held(self, message_id: UUID) -> Message:
        message = self._messages.get(message_id)
        if message.status is not Status.HELD:
            raise TooLate(message_id, message.status)
        return message
