"""What can be looked at: messages, what they count against, and the house as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Unpack
from uuid import UUID

from dispatcher.errors import InvalidDraft
from dispatcher.message import Attempt, Message, Status, check_text, new_id
from dispatcher.operation.base import Base, check_at_most
from dispatcher.operations.overview import By, Overview, Tops
from dispatcher.reservation import Timeline
from dispatcher.scope import of_channel, of_scope_on
from dispatcher.selection import Page, Selection, Wanted, id_of
from dispatcher.store import Of
from dispatcher.submission import Story, terms_for
from dispatcher.times import send_time

SendTime = datetime | str

_PAGE = 500


class Looking(Base):
    """Tells. Nothing here books, stores or sends."""

    def get(self, message_id: UUID | str) -> Message:
        """Return a message. Raises MessageNotFound."""
        return self._parts.messages.get(id_of(message_id))

    def attempts(self, message_id: UUID | str) -> list[Attempt]:
        """Return the tries of a message, first one first; none for an unknown id."""
        return self._parts.messages.attempts(id_of(message_id))

    def story(self, message_id: UUID | str) -> Story:
        """Return everything that is known of a message: its tries, its places, what comes next.

        Raises MessageNotFound and StoreUnavailable.
        """
        return self._parts.telling.story(id_of(message_id))

    def find(
        self,
        *,
        status: Status | str | None = None,
        recipient: str | None = None,
        channel: str | None = None,
        at_most: int = 100,
    ) -> list[Message]:
        """Return the messages that match every filter given, newest first.

        :meth:`list` knows more filters, and reads on.
        """
        check_at_most(at_most)
        wanted = Wanted(status=status, recipient=recipient, channel=channel)
        page = self._parts.listing.page(self._chosen(wanted), after=None, at_most=at_most)
        return [*page.messages]

    def held(self, *, at_most: int = 100) -> list[Message]:
        """Return the messages that are held, oldest first: nobody knows whether they were sent.

        ``next_attempt_at`` tells since when they are held.
        """
        check_at_most(at_most)
        return self._parts.held.find(at_most=at_most)

    def next_slot(
        self,
        *,
        recipient: str | None = None,
        scope: str | None = None,
        channel: str | None = None,
        scopes: Mapping[str, str] | None = None,
        quiet_hours: str | None = None,
        send_window: str | None = None,
        after: SendTime | None = None,
        zone: str | None = None,
        fold: int | None = None,
    ) -> datetime:
        """Return the first time at or after ``after`` (default: now) that fits every quota.

        Books nothing. Give a recipient or a scope, and what else of :meth:`submit` counts: without
        a channel, its quotas and quiet hours do not. Raises InvalidDraft and
        ReservationsUnavailable.
        """
        if scope is not None:
            name = check_text("scope", scope)
        elif recipient is not None:
            recipient = check_text("recipient", recipient)
            name = self.settings.spellings.one(recipient, channel)
        else:
            raise InvalidDraft("recipient", "neither recipient nor scope given", "one of them")
        terms = terms_for(
            self.settings,
            scope=name,
            channel=channel,
            scopes=scopes,
            zone=zone,
            quiet_hours=quiet_hours,
            send_window=send_window,
        )
        now = self._parts.clock.now()
        if after is None:
            start = send_time.after(timedelta(0), now=now)
        else:
            start = send_time.parse(after, zone=zone, fold=fold, field="after")
            farthest = self.settings.max_horizon
            send_time.check_range(start, now=now, farthest=farthest, field="after")
        return self._parts.windows.next_slot(terms, start)

    def timeline(
        self,
        scope: str | None = None,
        *,
        channel: str | None = None,
        scopes: Mapping[str, str] | None = None,
        zone: str | None = None,
        kind: str | None = None,
        start: SendTime | None = None,
        length: timedelta = timedelta(days=2),
    ) -> Timeline:
        """Return what decides about the times of a scope, from ``start`` (default: now) on.

        Booked times, how full each quota is and where it refuses, quiet hours, the next slots.
        ``channel``, ``scopes`` and ``zone`` count as for :meth:`submit`; with ``kind`` the scope is
        one of that kind, such as a tenant, looked at alone. Without a scope, the ``channel`` as a
        whole is looked at, or the ``scopes``. ``length`` is at most 366 days.
        Raises InvalidDraft and ReservationsUnavailable.
        """
        return self._parts.outlook.timeline(
            scope,
            channel=channel,
            scopes=scopes,
            zone=zone,
            kind=kind,
            start=start,
            length=length,
        )

    def status(self, *, since: timedelta = timedelta(days=1)) -> Overview:
        """Return how things stand: counts, what is overdue, the next hour, limits, who is at work.

        What has ended counts if it did so within ``since``. Where Redis does not answer, what only
        Redis knows is None. Raises InvalidValue and StoreUnavailable.
        """
        return self._parts.overviews.read(since=since)

    def top(
        self,
        of: Of = "scope",
        *,
        by: By = "messages",
        within: timedelta = timedelta(days=1),
        at_most: int = 10,
    ) -> Tops:
        """Return the busiest scopes, recipients or channels, by what is due ``within`` that time.

        Each with the quota that is nearest to full; ``by="fill"`` sorts by that, among the 50 with
        most messages. Raises InvalidValue and StoreUnavailable.
        """
        return self._parts.overviews.tops(of, within=within, at_most=at_most, by=by)

    def count(self, **wanted: Unpack[Wanted]) -> int:
        """Return how many messages match all that is said (:class:`~dispatcher.Wanted`).

        What changes meanwhile may be missed. Raises InvalidDraft and StoreUnavailable, and
        TypeError for a filter that does not exist, as :meth:`select` and :meth:`list` do.
        """
        return self._parts.listing.count(self._chosen(wanted))

    def select(self, *, oldest_first: bool = False, **wanted: Unpack[Wanted]) -> Iterator[Message]:
        """Yield the messages that match all that is said (:class:`~dispatcher.Wanted`).

        Newest first, or oldest first; without those made after the call. They are read while the
        answer is, some hundreds at a time, so any number may be yielded. Raises InvalidDraft, and
        StoreUnavailable on the way.
        """
        selection = self._chosen(wanted)
        pages = self._parts.listing.pages(
            selection, size=_PAGE, before=new_id(), oldest_first=oldest_first
        )
        return (message for page in pages for message in page)

    def list(
        self, *, limit: int = 50, after: UUID | str | None = None, **wanted: Unpack[Wanted]
    ) -> Page:
        """Return a page of the messages that match all that is said, newest first.

        See :class:`~dispatcher.Wanted` for what can be said. ``limit`` is at most 10,000. The
        page's ``after`` reads on behind it. Raises InvalidDraft and StoreUnavailable.
        """
        check_at_most(limit, "limit")
        place = None if after is None else id_of(after, "after")
        return self._parts.listing.page(self._chosen(wanted), after=place, at_most=limit)

    def _chosen(self, wanted: Wanted) -> Selection:
        """Judge what is said of messages, and spell the recipient as it is stored.

        A kind of scope that nothing counts against is refused.
        """
        selection = Selection.of(wanted)
        near = (word(each) for each in self.settings.channels for word in (of_scope_on, of_channel))
        kinds = [*self.settings.scopes, *near]
        for kind, _ in selection.scopes:
            if kind not in kinds:
                accepted = f"names by kind; the kinds are {', '.join(kinds)}"
                raise InvalidDraft("scopes", f"there is no kind {kind[:80]!r}", accepted)
        if selection.recipient is None:
            return selection
        spelt = self.settings.spellings.one(selection.recipient, selection.channel)
        return replace(selection, recipient=spelt)
