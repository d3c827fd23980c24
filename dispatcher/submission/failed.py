"""Give a failed message another round of tries."""

from __future__ import annotations

from uuid import UUID

from dispatcher.errors import InvalidValue, TooLate, UnknownChannel
from dispatcher.journal import Journal, Transition
from dispatcher.message import Message, Status
from dispatcher.settings import Settings
from dispatcher.store import FailedMessages, Suppressions


class Failed:
    """The use case of those who mended what made messages fail. The row decides every race.

    A failed message has kept its place in the windows, so that no quota is judged again; its
    hand-overs are guarded by the limits like any other.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        failed: FailedMessages,
        suppressions: Suppressions,
        journal: Journal,
    ) -> None:
        self._settings = settings
        self._failed = failed
        self._journal = journal
        self._suppressions = suppressions

    def retry(self, message_id: UUID, *, perhaps_sent: bool = False) -> Message:
        """Let a failed message be tried again, as often as its channel says, at once.

        Raises MessageNotFound; TooLate where it has not failed, or is past its expiry;
        UnknownChannel; Suppressed where its recipient has opted out; and InvalidValue where nobody
        knows what came of its last try, its ``on_unknown`` is ``hold``, and ``perhaps_sent`` does
        not say that it may go out twice.
        """
        found = self._failed.look(message_id)
        message = found.message
        if message.status is not Status.FAILED:
            raise TooLate(message_id, message.status)
        if found.is_unknown and message.on_unknown == "hold" and not perhaps_sent:
            raise InvalidValue(
                "perhaps_sent",
                f"message {message_id} may have been sent, and must not go out twice",
                "True, to send it nevertheless",
            )
        channel = self._settings.channels.get(message.channel)
        if channel is None:
            raise UnknownChannel(message.channel, tuple(self._settings.channels))
        self._suppressions.check(message.recipient, message.channel)
        now = self._failed.retry(found, tries=channel.max_attempts)
        if now.message.status is Status.FAILED and now.token == found.token:
            raise TooLate(message_id, "past its expiry")
        self._journal.tell(Transition.RETRIED, now.message, attempt=now.message.attempt_count)
        return now.message
