"""Pauses, opt-outs and erasures: what waits, who gets nothing, and of whom nothing is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain

from dispatcher.errors import InvalidValue, MessageNotFound, TooLate, UnknownChannel, plain, quoted
from dispatcher.faults import fault
from dispatcher.limiters.permits import Permits
from dispatcher.message import (
    MAX_CAMPAIGN,
    MAX_EVENT,
    MAX_RECIPIENT,
    Message,
    Status,
    check_recipient,
    check_text,
    scope_name,
)
from dispatcher.reservation.upkeep import Upkeep
from dispatcher.scope import WITHOUT, Scope, of_scope_on, own_scope
from dispatcher.selection import Selection
from dispatcher.settings import Settings
from dispatcher.store.listing import Listing
from dispatcher.store.lists import (
    ERASED,
    REASON,
    Pause,
    Pauses,
    PersonalData,
    Suppression,
    Suppressions,
)
from dispatcher.store.schema import (
    EVERY_CHANNEL,
    PAUSED_CAMPAIGN,
    PAUSED_CHANNEL,
    PAUSED_EVENT,
    PAUSED_RECIPIENT,
)
from dispatcher.submission.changes import Cancellation
from dispatcher.submission.decisions import Decisions
from dispatcher.submission.series import SeriesList
from dispatcher.submission.validation import known_channel

log = logging.getLogger(__name__)

_AT_ONCE = 500


@dataclass(kw_only=True)
class PauseList:
    settings: Settings
    pauses: Pauses

    def pause(self, kind: str, name: str) -> None:
        """Begin a pause; that of a recipient is stored in each spelling of the channels, too."""
        kind, name = self._checked(kind, name)
        for spelling in sorted(self._names(kind, name)):
            self.pauses.add(kind, spelling)

    def resume(self, kind: str, name: str) -> None:
        """End a pause, if there is one, in every spelling."""
        kind, name = self._checked(kind, name)
        names = self._names(kind, name)
        paused = {pause.name for pause in self.pauses.in_force() if pause.kind == kind}
        like = {
            spelling for spelling in paused if not names.isdisjoint(self._names(kind, spelling))
        }
        for spelling in sorted(names | like):
            self.pauses.end(kind, spelling)

    def of(self, message: Message) -> tuple[Pause, ...]:
        names = {
            **message.scopes,
            PAUSED_CHANNEL: message.channel,
            PAUSED_RECIPIENT: message.scope,
            PAUSED_CAMPAIGN: message.campaign,
            PAUSED_EVENT: message.event,
        }
        in_force = self.pauses.in_force()
        return tuple(pause for pause in in_force if names.get(pause.kind) == pause.name)

    def _checked(self, kind: str, name: str) -> tuple[str, str]:
        usual = (PAUSED_CHANNEL, PAUSED_RECIPIENT, PAUSED_CAMPAIGN, PAUSED_EVENT)
        kinds = (*usual, *self.settings.scopes)
        kind = check_text("kind", kind)
        if kind not in kinds:
            raise InvalidValue("kind", f"there is no kind {quoted(kind)}", ", ".join(kinds))
        if kind == PAUSED_RECIPIENT:
            name = check_recipient(name, name="name")
        else:
            longest = {PAUSED_CAMPAIGN: MAX_CAMPAIGN, PAUSED_EVENT: MAX_EVENT}
            name = check_text("name", name, longest=longest.get(kind, MAX_RECIPIENT))
        if kind == PAUSED_CHANNEL and name not in self.settings.channels:
            raise UnknownChannel(name, sorted(self.settings.channels))
        return kind, name

    def _names(self, kind: str, name: str) -> set[str]:
        if kind != PAUSED_RECIPIENT:
            return {name}
        try:
            return {*map(scope_name, (name, *self.settings.spellings.all(name)))}
        except InvalidValue:  # no address but another scope; or its rule cannot be loaded here
            return {scope_name(name)}


@dataclass(kw_only=True)
class SuppressionList:
    """Adds recipients to the suppression list, removes them, and reads it.

    The row in the store decides: from its commit on no claim takes a message of that recipient.
    Scheduled messages are cancelled at once, to release their reservations. A message that a
    concurrent submit stores after that is cancelled when it is due.
    """

    settings: Settings
    suppressions: Suppressions
    listing: Listing
    cancellation: Cancellation

    def suppress(self, recipient: str, channel: str | None) -> int:
        """Opt a recipient out; return how many scheduled messages were cancelled."""
        recipient = check_text("recipient", recipient)
        if channel is not None:
            channel = known_channel(channel, self.settings)
        spellings = self.settings.spellings.all(recipient, channel)
        for spelling in spellings:
            self.suppressions.add(spelling, channel)
        fault("suppress.after_row")
        return sum(self.cancel(spelling, channel) for spelling in spellings)

    def cancel(self, recipient: str, channel: str | None, *, because: str = REASON) -> int:
        channels = () if channel is None else (channel,)
        chosen = Selection(status=Status.SCHEDULED, recipient=recipient, channels=channels)
        cancelled = 0
        for ids in self.listing.ids(chosen, size=_AT_ONCE):
            answers = self.cancellation.cancel_many(ids, because=because)
            cancelled += sum(isinstance(answer, Message) for answer in answers)
        return cancelled

    def unsuppress(self, recipient: str, channel: str | None) -> tuple[Suppression, ...]:
        """Revoke a :meth:`suppress`; return the suppressions that remain for the recipient."""
        recipient = check_text("recipient", recipient)
        if channel is not None:
            channel = check_text("channel", channel)  # also one that has left the settings
        for spelling in self.settings.spellings.all(recipient, channel):
            self.suppressions.remove(spelling, channel)
        return tuple(self.suppressed(recipient))

    def suppressed(self, recipient: str | None = None) -> Iterator[Suppression]:
        """Yield the suppressions in the order of recipients, read some hundreds at a time."""
        every = [None] if recipient is None else self.settings.spellings.all(plain(recipient))
        for spelling in every:
            yield from self.suppressions.stored(spelling, size=_AT_ONCE)

    def has(self, recipient: str, channel: str | None) -> bool:
        """Tell whether a recipient has opted out of a channel; of every one where it is None."""
        named = self.settings.spellings.one(recipient, channel), channel or EVERY_CHANNEL
        return bool(self.suppressions.among([named]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure did: messages it ``cancelled``, and those whose content it blanked.

    ``blanked`` has the cancelled ones, too. ``under_way`` are being sent, or were submitted
    meanwhile: until they have ended they keep what they say. Erase again then.
    """

    cancelled: int
    blanked: int
    under_way: int


@dataclass(kw_only=True)
class Erasure:
    """Erases recipients. What one call leaves where a process dies, the next one finds.

    First the rows, then Redis by the names of its keys: so nothing puts a name back that no row
    has any more, but a sweep that had read the row just before, until the next ``tidy``.
    """

    settings: Settings
    personal_data: PersonalData
    listing: Listing
    suppression_list: SuppressionList
    decisions: Decisions
    series_list: SeriesList
    upkeep: Upkeep
    permits: Permits

    def erase(self, recipient: str, *, keep_opt_out: bool) -> Erased:
        """Erase every spelling of a recipient.

        Raises InvalidDraft, StoreUnavailable, ReservationsUnavailable, LimitersUnavailable: a
        repeated call does what is left.
        """
        recipient = check_recipient(recipient)
        cancelled = blanked = under_way = 0
        # Also as it is given: a message may be older than the rule of its channel.
        for name in dict.fromkeys([*self.settings.spellings.all(recipient), recipient]):
            cancelled += self.series_list.forget(name)  # first: they would book more
            cancelled += self.suppression_list.cancel(name, None, because=ERASED)
            self._drop_held(name)
            while batch := self.personal_data.blank(name, limit=_AT_ONCE):
                blanked += batch
            self.personal_data.forget(name, keep_opt_out=keep_opt_out)
            self._forget_in_redis(scope_name(name))
            under_way += self.personal_data.under_way(name)
        log.info(
            "recipient erased: %d messages cancelled, %d blanked, %d under way",
            cancelled, blanked, under_way,
        )  # fmt: skip
        return Erased(cancelled=cancelled, blanked=blanked, under_way=under_way)

    def _drop_held(self, name: str) -> None:
        held = Selection(status=Status.HELD, recipient=name)
        for message_id in chain.from_iterable(self.listing.ids(held, size=_AT_ONCE)):
            with suppress(TooLate, MessageNotFound):  # someone else has decided
                self.decisions.drop(message_id, reason=ERASED)

    def _forget_in_redis(self, name: str) -> None:
        scopes = [own_scope(name), Scope(WITHOUT, name, name)]
        scopes += [Scope(of_scope_on(channel), name, name) for channel in self.settings.channels]
        scopes += [Scope(kind, name, f"@{kind}:{name}") for kind in self.settings.scopes]
        counting = partial(self.personal_data.counting, name)
        for scope in scopes:
            self.upkeep.forget(scope, counting)
        self.permits.forget(name, counting, self.settings.scopes)
