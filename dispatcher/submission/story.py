"""The story of a message: itself, its attempts, its reservations, its next step."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit
from uuid import UUID

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import Attempt, Message, Status
from dispatcher.reservation.contents import Contents
from dispatcher.reservation.encoding import member_of
from dispatcher.scope import NO_SCOPE
from dispatcher.settings import Settings
from dispatcher.store.listing import Listing
from dispatcher.store.lists import Pause
from dispatcher.store.messages import Messages
from dispatcher.submission.lists import PauseList
from dispatcher.submission.validation import scopes_of
from dispatcher.times.send_time import from_ms


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
    pauses: PauseList

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
            pauses=self.pauses.of(message) if is_scheduled else (),
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
