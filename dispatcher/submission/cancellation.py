"""Cancel many messages in a few round trips."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    MessageChanged,
    MessageNotFound,
    ReservationsUnavailable,
    TooLate,
)
from dispatcher.faults import fault
from dispatcher.message import Message, Status
from dispatcher.reservation import BookingRequest, Terms, Windows
from dispatcher.settings import Settings
from dispatcher.store import Messages, Movable
from dispatcher.submission.validation import scopes_of
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.send_time import to_ms

log = logging.getLogger(__name__)

_AT_ONCE = 500


class Cancellation:
    """Cancels many messages, in batches: what ``Changes.cancel`` does for one."""

    def __init__(
        self, *, settings: Settings, windows: Windows, messages: Messages, journal: Journal
    ) -> None:
        self._settings = settings
        self._windows = windows
        self._messages = messages
        self._journal = journal

    def cancel(
        self, message_ids: Sequence[UUID], *, because: str | None = None
    ) -> list[Message | DispatcherError]:
        """Cancel the messages that are still scheduled, and release their reservations.

        Return for each id the cancelled message, or the error that cancelling it alone would
        raise. ``because`` becomes the ``last_error`` of the cancelled messages. Raises
        StoreUnavailable: some may be cancelled; a repeated call returns which.
        """
        answers: list[Message | DispatcherError] = []
        for start in range(0, len(message_ids), _AT_ONCE):
            some = message_ids[start : start + _AT_ONCE]
            answers += self._told(some, self._messages.cancel_many(some, because=because))
        return answers

    def cancel_if_unchanged(self, found: Sequence[Movable]) -> list[Message | DispatcherError]:
        """Cancel messages as :meth:`cancel` does, each only while its move token is the same.

        The answer for any other one that is still scheduled is MessageChanged.
        """
        answers: list[Message | DispatcherError] = []
        for start in range(0, len(found), _AT_ONCE):
            some = found[start : start + _AT_ONCE]
            ids = [each.message.id for each in some]
            answers += self._told(ids, self._messages.cancel_many_if_unchanged(some))
        return answers

    def _told(
        self, message_ids: Sequence[UUID], found: Mapping[UUID, Message]
    ) -> list[Message | DispatcherError]:
        """Release the reservations of those that are cancelled; return the answers."""
        cancelled = [each for each in found.values() if each.status is Status.CANCELLED]
        for each in cancelled:
            self._journal.tell(Transition.CANCELLED, each)
        fault("cancel_many.after_rows")
        self._release(cancelled)
        return [_answer(each, found.get(each)) for each in message_ids]

    def _release(self, cancelled: Sequence[Message]) -> None:
        requests = []
        for each in cancelled:
            at_ms = to_ms(each.send_at)
            terms = Terms(scopes_of(each, self._settings))
            requests.append(BookingRequest(each.id, terms, at_ms, at_ms))
        try:
            self._windows.withdraw(requests)
        except ReservationsUnavailable as error:
            log.warning(
                "could not release the reservations of %d cancelled messages; reconcile will: %s",
                len(requests), error,
            )  # fmt: skip


def _answer(message_id: UUID, found: Message | None) -> Message | DispatcherError:
    if found is None:
        return MessageNotFound(message_id)
    if found.status is Status.SCHEDULED:
        return MessageChanged(message_id)
    if found.status is not Status.CANCELLED:
        return TooLate(message_id, found.status)
    return found
