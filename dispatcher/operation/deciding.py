"""What operators decide about messages that were accepted, and about the windows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

from dispatcher.delivery.sweep import OnRows
from dispatcher.errors import DispatcherError
from dispatcher.message import Message
from dispatcher.operation.base import Base
from dispatcher.operations.verification import Verified
from dispatcher.selection import id_of
from dispatcher.store import Suppression


class Deciding(Base):
    """Changes what was accepted. The row decides every race."""

    def cancel_many(self, message_ids: Sequence[UUID | str]) -> list[Message | DispatcherError]:
        """Cancel what of these is still scheduled; all of their quotas are free again at once.

        Return for each the cancelled message, or the error that :meth:`cancel` would raise. Raises
        InvalidDraft for what is no id; StoreUnavailable: some are cancelled then, and cancelling
        again is fine.
        """
        return self._parts.cancelling.cancel([id_of(each) for each in message_ids])

    def retry(self, message_id: UUID | str, *, perhaps_sent: bool = False) -> Message:
        """Give a failed message another round of tries, as many as its channel says. Return it.

        It is due at once; it has kept its place, and the limits guard it as ever. Where nobody
        knows what came of its last try and its ``on_unknown`` is ``hold``, ``perhaps_sent`` must
        say that it may go out twice. Raises MessageNotFound, InvalidValue, UnknownChannel,
        Suppressed, and TooLate where it has not failed, or is past its expiry.
        """
        return self._parts.failed.retry(id_of(message_id), perhaps_sent=perhaps_sent)

    def retry_many(
        self, message_ids: Sequence[UUID | str], *, perhaps_sent: bool = False
    ) -> list[Message | DispatcherError]:
        """Give what of these has failed another round of tries, in batches.

        Return for each the message, or the error that :meth:`retry` would raise. Raises
        InvalidDraft for what is no id; StoreUnavailable: some are tried again then, and doing it
        again is fine.
        """
        ids = [id_of(each) for each in message_ids]
        return self._parts.failed.retry_many(ids, perhaps_sent=perhaps_sent)

    def release(self, message_id: UUID | str) -> Message:
        """Let a held message be sent, perhaps once more. Return it, due at once.

        One more try is allowed where its tries were used up. Past its expiry it ends as expired.
        Raises MessageNotFound, Suppressed, and TooLate where it is not held.
        """
        return self._parts.held.release(id_of(message_id))

    def drop(self, message_id: UUID | str) -> Message:
        """Give a held message up. Return it: it ends as failed.

        It keeps its place in the windows, because it may have been sent. Raises MessageNotFound,
        and TooLate where it is not held.
        """
        return self._parts.held.drop(id_of(message_id))

    def suppress(self, recipient: str, *, channel: str | None = None) -> int:
        """Send a recipient nothing any more, on one channel or on all; return how many it spares.

        From now on a submit to it raises Suppressed, and what is scheduled is cancelled, its quota
        free again at once. A submit that looked a moment ago may still store its message: it is
        cancelled when it is due, and so is what comes back from a retry. Only what is being sent
        right now may still go out, and what is held stays held; releasing it raises Suppressed.
        Every spelling that channels have for the recipient opts out. Doing it again is fine.

        Raises InvalidDraft, UnknownChannel, and StoreUnavailable: do it again then.
        """
        return self._parts.suppressing.suppress(recipient, channel)

    def unsuppress(self, recipient: str, *, channel: str | None = None) -> tuple[Suppression, ...]:
        """Take back what :meth:`suppress` said with the same parameters. What it cancelled stays.

        Return what still holds for the recipient: who opted out of everything and of one channel
        must be taken back from both. Raises InvalidDraft and StoreUnavailable.
        """
        return self._parts.suppressing.unsuppress(recipient, channel)

    def suppressed(self, recipient: str | None = None) -> Iterator[Suppression]:
        """Yield who gets nothing, or what holds for one recipient, in the order of recipients.

        They are read while the answer is, some hundreds at a time. Raises StoreUnavailable.
        """
        return self._parts.suppressing.suppressed(recipient)

    def verify_windows(self) -> Verified:
        """Compare the windows in Redis with the store; return every difference.

        Submits may go on meanwhile. Raises ReservationsUnavailable and StoreUnavailable.
        """
        return self._parts.verification.verify()

    def rebuild_windows(
        self, shards: Collection[int] | None = None, *, progress: OnRows | None = None
    ) -> tuple[int, ...]:
        """Close shards of the windows (default: all) and fill them again from the store.

        A few at a time; while one is closed, submits to it raise ReservationsUnavailable with
        ``retry_after``. ``progress`` is called with how many rows have been read and how many
        there are to read. Return the shards that were rebuilt; those missing are being rebuilt by
        another process. Raises InvalidValue, ReservationsUnavailable and StoreUnavailable; then
        the sweep rebuilds what is still closed.
        """
        return self._parts.sweep.rebuild(shards, progress=progress)
