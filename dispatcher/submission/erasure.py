"""Erase a recipient: end what is scheduled, blank what has ended, forget its name in Redis."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from dispatcher.errors import MessageNotFound, TooLate
from dispatcher.limiters.permits import Permits
from dispatcher.message import Status, check_recipient, scope_name
from dispatcher.reservation.upkeep import Upkeep
from dispatcher.scope import WITHOUT, Scope, of_scope_on, own_scope
from dispatcher.selection import Selection
from dispatcher.settings import Settings
from dispatcher.store.listing import Listing
from dispatcher.store.lists import ERASED, PersonalData
from dispatcher.submission.decisions import Decisions
from dispatcher.submission.lists import SuppressionList

log = logging.getLogger(__name__)

_AT_ONCE = 500


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
        for page in self.listing.pages(held, size=_AT_ONCE, oldest_first=True):
            for message in page:
                try:
                    self.decisions.drop(message.id, reason=ERASED)
                except (TooLate, MessageNotFound):
                    continue  # someone else has decided

    def _forget_in_redis(self, name: str) -> None:
        scopes = [own_scope(name), Scope(WITHOUT, name, name)]
        scopes += [Scope(of_scope_on(channel), name, name) for channel in self.settings.channels]
        scopes += [Scope(kind, name, f"@{kind}:{name}") for kind in self.settings.scopes]
        counting = partial(self.personal_data.counting, name)
        for scope in scopes:
            self.upkeep.forget(scope, counting)
        self.permits.forget(name, counting)
