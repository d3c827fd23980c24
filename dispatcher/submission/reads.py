"""Reads for callers: the story of a message, and the timeline of a scope. They change nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit
from uuid import UUID

from dispatcher.errors import (
    InvalidDraft,
    InvalidSendTime,
    ReservationsUnavailable,
    kind_of,
    quoted,
)
from dispatcher.message import Attempt, Message, Status, check_recipient, check_text, scope_name
from dispatcher.reservation.booking import Terms
from dispatcher.reservation.contents import Contents
from dispatcher.reservation.encoding import member_of
from dispatcher.reservation.timeline import Timeline, Timelines
from dispatcher.scope import NO_SCOPE, of_channel
from dispatcher.settings import Settings
from dispatcher.store.listing import Listing
from dispatcher.store.lists import Pause
from dispatcher.store.messages import Messages
from dispatcher.submission.lists import PauseList
from dispatcher.submission.validation import checked_scopes, known_channel, scopes_of, terms_for
from dispatcher.times import send_time
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms

_LONGEST = timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A message's reservation in the window of one scope; ``at`` is None where it has none."""

    scope: str
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All about one message. Instants are aware UTC.

    ``reservations`` is None where Redis does not answer. ``is_enqueued``: it was enqueued for its
    next attempt; ``enqueue_at``: when maintenance enqueues it (again). ``claim_expires_at`` is the
    end of its claim, ``deleted_at`` the earliest time at which ``prune`` deletes it.
    ``status_host`` is the host of its status webhook, None without one, and ``notified_status`` the
    status last reported to it, None before the first report. ``pauses`` keep it from being sent.
    """

    message: Message
    attempts: tuple[Attempt, ...]
    reservations: tuple[Reservation, ...] | None
    is_enqueued: bool
    enqueue_at: datetime | None
    claim_expires_at: datetime | None
    deleted_at: datetime | None
    status_host: str | None = None
    notified_status: Status | None = None
    pauses: tuple[Pause, ...] = ()


def coming(story: Story) -> tuple[str, datetime | None]:
    """Return the next step of a message, and its time; None where that is unknown."""
    message = story.message
    match message.status:
        case Status.SCHEDULED:
            return _until_due(story)
        case Status.SENDING:
            then = "is held" if message.on_unknown == "hold" else "is tried again"
            return (
                f"a worker is sending it; without a recorded outcome it {then} at",
                story.claim_expires_at,
            )
        case Status.HELD:
            return "a person decides: dispatcher release or dispatcher drop", None
        case Status.FAILED:
            return "dispatcher retry gives it further attempts; else it is deleted after", (
                story.deleted_at
            )
        case _:
            return "it is deleted after", story.deleted_at


def _until_due(story: Story) -> tuple[str, datetime | None]:
    if story.pauses:
        ended_by = (
            f"dispatcher resume {pause.kind} {shlex.quote(pause.name)}" for pause in story.pauses
        )
        return f"it is paused: {', '.join(ended_by)}", None
    if story.message.delayed_by is not None:
        return f"delayed by {story.message.delayed_by}; it is due at", story.message.next_attempt_at
    if story.is_enqueued:
        return "it is enqueued; it is due at", story.message.next_attempt_at
    return "the sweep enqueues it at", story.enqueue_at


@dataclass(kw_only=True)
class StoryReader:
    """Reads the story of a message. Changes nothing."""

    settings: Settings
    messages: Messages
    listing: Listing
    contents: Contents
    pause_list: PauseList

    def read(self, message_id: UUID) -> Story:
        details = self.listing.details(message_id)
        message = details.message
        is_scheduled = message.status is Status.SCHEDULED
        ended = message.finished_at
        return Story(
            message=message,
            attempts=tuple(self.messages.attempts(message_id)),
            reservations=self._reservations(message, details.tail),
            is_enqueued=is_scheduled and details.enqueue_at > message.next_attempt_at,
            enqueue_at=details.enqueue_at if is_scheduled else None,
            claim_expires_at=details.claim_expires_at,
            deleted_at=ended + self.settings.retention if ended else None,
            # The rest of the URL may be a secret.
            status_host=None
            if details.status_url is None
            else urlsplit(details.status_url).hostname,
            notified_status=None
            if details.notified_status in {None, Status.SCHEDULED}
            else Status(details.notified_status),
            pauses=self.pause_list.of(message) if is_scheduled else (),
        )

    def _reservations(self, message: Message, tail: str) -> tuple[Reservation, ...] | None:
        if message.scope == NO_SCOPE:
            return ()
        scopes = scopes_of(message, self.settings)
        windows = [self.contents.fence.window_of(state) for state in scopes]
        try:
            if not self.contents.opened().keys() >= {keys for keys, _ in windows}:
                return None
            seen = self.contents.look([(name, member_of(message.id, tail)) for _, name in windows])
        except ReservationsUnavailable:
            return None
        return tuple(
            Reservation(
                scope=str(scope), at=None if state.at_ms is None else from_ms(int(state.at_ms))
            )
            for scope, state in zip(scopes, seen, strict=True)
        )


@dataclass(kw_only=True)
class TimelineReader:
    """Validates the parameters of a timeline and reads it. Changes nothing."""

    settings: Settings
    clock: Clock
    timelines: Timelines

    def read(
        self,
        scope: str | None,
        *,
        channel: str | None,
        scopes: Mapping[str, str] | None,
        zone: str | None,
        kind: str | None,
        start: datetime | str | None,
        length: timedelta,
        priority: int | None = None,
        spell: bool = True,
    ) -> Timeline:
        """Return the timeline of a scope, of ``length`` from ``start`` on.

        A scope in which something is booked is read as it is named, and so is each without
        ``spell``. Another one is spelt as a recipient of a submit, and refused where no channel
        accepts it as one.

        Raises InvalidDraft, UnknownChannel, InvalidSendTime and ReservationsUnavailable.
        """
        is_own = scope is not None and kind is None
        scope = scope_name(check_recipient(scope, name="scope")) if is_own else scope
        spelt, refused = scope, None
        if scope is not None and is_own and spell:
            try:
                spelt = self.settings.spellings.one(scope, channel)
            except InvalidDraft as error:
                if error.field != "recipient":
                    raise
                refused = error
        now = self.clock.now()
        if start is None:
            begins = send_time.after(timedelta(0), now=now)
        else:
            begins = send_time.parse(start, zone=zone, field="start")
            farthest = self.settings.max_horizon
            send_time.check_not_too_far(begins, now=now, farthest=farthest, field="start")
            if begins < send_time.from_ms(0):
                raise InvalidSendTime("start", f"{begins.isoformat()}", "a time from 1970 on")
        accepted = f"a length of more than 0 and at most {_LONGEST.days} days"
        if not isinstance(length, timedelta) or not timedelta(0) < length <= _LONGEST:
            raise InvalidSendTime("length", quoted(length), accepted)
        ends = send_time.after(length, now=begins, field="length")
        for name in dict.fromkeys((scope, spelt)):
            terms = self._terms(
                name, channel=channel, scopes=scopes, zone=zone, kind=kind, priority=priority
            )
            timeline = self.timelines.read(terms, begins, ends, now=now)
            own = {str(of_home) for of_home in terms.scopes if of_home.home == scope}
            if any(window.exists for window in timeline.windows if window.scope in own):
                break
            if refused is not None:
                raise refused
        return timeline

    def _terms(
        self,
        scope: str | None,
        *,
        channel: str | None,
        scopes: Mapping[str, str] | None,
        zone: str | None,
        kind: str | None,
        priority: int | None,
    ) -> Terms:
        """Return the terms of the timeline: all scopes of a message, or the named kinds alone."""
        if scope is not None:
            check_text("scope", scope)
        elif kind is not None or (channel is None) == (not scopes):
            raise InvalidDraft("scope", "not given", "a scope, a channel, or scopes by kind")
        if kind is not None and not isinstance(kind, str):
            raise InvalidDraft("kind", kind_of(kind), "a kind of the settings")
        if kind is not None and (channel is not None or scopes is not None):
            raise InvalidDraft("kind", "given together with channel or scopes", "one of them")
        if channel is not None:
            known_channel(channel, self.settings)
        named = scopes if kind is None else {kind: scope}
        scopes = checked_scopes(named, self.settings)
        terms = terms_for(
            self.settings,
            scope=scope or NO_SCOPE,
            channel=channel,
            scopes=scopes,
            zone=zone,
            priority=priority,
        )
        if kind is None and scope is not None:
            return terms
        kinds = [kind or of_channel(channel or ""), *scopes]
        scopes_alone = tuple(counted for counted in terms.scopes if counted.kind in kinds)
        if not scopes_alone:
            problem = f"{quoted(channel)} as a whole has no quotas (channels.{channel}.quotas)"
            accepted = "one that has, or a recipient too, to see what counts for them there"
            raise InvalidDraft("channel", problem, accepted)
        return terms._replace(scopes=scopes_alone)
