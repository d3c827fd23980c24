"""Cancel many messages in a few round trips."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    MessageNotFound,
    ReservationsUnavailable,
    TooLate,
)
from dispatcher.faults import fault
from dispatcher.message import Message, Status
from dispatcher.reservation import Bulk, Request, Terms
from dispatcher.settings import Settings
from dispatcher.store import BulkMessages
from dispatcher.submission.schedule import scopes_of
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.send_time import to_ms

log = logging.getLogger(__name__)

_AT_ONCE = 500


class Cancellation:
    """Cancels many messages, in batches: what ``Changes.cancel`` does for one."""

    def __init__(
        self, *, settings: Settings, bulk: Bulk, store: BulkMessages, journal: Journal
    ) -> None:
        self._settings = settings
        self._bulk = bulk
        self._store = store
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
            found = self._store.cancel(some, because=because)
            cancelled = [each for each in found.values() if each.status is Status.CANCELLED]
            for each in cancelled:
                self._journal.tell(Transition.CANCELLED, each)
            fault("cancel_many.after_rows")
            self._release(cancelled)
            answers += [_answer(one, found.get(one)) for one in some]
        return answers

    def _release(self, cancelled: Sequence[Message]) -> None:
        requests = []
        for each in cancelled:
            at_ms = to_ms(each.send_at)
            terms = Terms(scopes_of(each, self._settings))
            requests.append(Request(each.id, terms, at_ms, at_ms))
        try:
            self._bulk.withdraw(requests)
        except ReservationsUnavailable as error:
            log.warning(
                "could not release the reservations of %d cancelled messages; reconcile will: %s",
                len(requests), error,
            )  # fmt: skip


def _answer(message_id: UUID, found: Message | None) -> Message | DispatcherError:
    if found is None:
        return MessageNotFound(message_id)
    if found.status is not Status.CANCELLED:
        return TooLate(message_id, found.status)
    return found
