"""Suppression: recipients who have opted out get no messages."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.errors import plain
from dispatcher.faults import fault
from dispatcher.message import Message, check_text
from dispatcher.settings import Settings
from dispatcher.store import EVERY_CHANNEL, REASON, Suppression, Suppressions
from dispatcher.submission.cancellation import Cancellation
from dispatcher.submission.validation import known_channel

_AT_ONCE = 500


class SuppressionList:
    """Adds recipients to the suppression list, removes them, and reads it.

    The row in the store decides: from its commit on no claim takes a message of that recipient.
    Scheduled messages are cancelled at once, to release their reservations. A message that a
    concurrent submit stores after that is cancelled when it is due.
    """

    def __init__(
        self, *, settings: Settings, suppressions: Suppressions, cancellation: Cancellation
    ) -> None:
        self._settings = settings
        self._suppressions = suppressions
        self._cancellation = cancellation

    def suppress(self, recipient: str, channel: str | None) -> int:
        """Opt a recipient out; return how many scheduled messages were cancelled.

        Raises InvalidDraft, UnknownChannel, and StoreUnavailable: some may be cancelled, and a
        repeated call cancels the others.
        """
        recipient = check_text("recipient", recipient)
        if channel is not None:
            channel = known_channel(channel, self._settings)
        spellings = self._settings.spellings.all(recipient, channel)
        for each in spellings:
            self._suppressions.add(each, channel)
        fault("suppress.after_row")
        return sum(self.cancel(each, channel) for each in spellings)

    def cancel(self, recipient: str, channel: str | None, *, because: str = REASON) -> int:
        """Cancel the scheduled messages of this spelling of a recipient; return how many."""
        cancelled, last = 0, None
        while some := self._suppressions.scheduled(recipient, channel, after=last, limit=_AT_ONCE):
            answers = self._cancellation.cancel_many(some, because=because)
            cancelled += sum(isinstance(each, Message) for each in answers)
            last = some[-1]
        return cancelled

    def unsuppress(self, recipient: str, channel: str | None) -> tuple[Suppression, ...]:
        """Revoke a :meth:`suppress`; return the suppressions that remain for the recipient.

        Raises InvalidDraft and StoreUnavailable.
        """
        recipient = check_text("recipient", recipient)
        if channel is not None:
            channel = check_text("channel", channel)  # also one that has left the settings
        for each in self._settings.spellings.all(recipient, channel):
            self._suppressions.remove(each, channel)
        return tuple(self.suppressed(recipient))

    def suppressed(self, recipient: str | None = None) -> Iterator[Suppression]:
        """Yield the suppressions in the order of recipients, read some hundreds at a time."""
        if recipient is None:
            yield from self._pages(None)
            return
        for each in self._settings.spellings.all(plain(recipient)):
            yield from self._pages(each)

    def has(self, recipient: str, channel: str | None) -> bool:
        """Tell whether a recipient has opted out of a channel; of every one where it is None.

        Raises StoreUnavailable.
        """
        named = self._settings.spellings.one(recipient, channel), channel or EVERY_CHANNEL
        return bool(self._suppressions.among([named]))

    def _pages(self, recipient: str | None) -> Iterator[Suppression]:
        after = None
        while True:
            page = self._suppressions.page(recipient, after=after, limit=_AT_ONCE)
            yield from page
            if len(page) < _AT_ONCE:
                return
            after = page[-1].recipient, page[-1].channel or ""
