"""Tell the whole story of one message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit
from uuid import UUID

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import Attempt, Message, Status
from dispatcher.reservation import Contents
from dispatcher.scope import NOBODY, counted
from dispatcher.settings import Settings
from dispatcher.store import Listing
from dispatcher.times.send_time import from_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A message's place in the window of one scope, None where it has none there."""

    scope: str
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything that is known of one message. Instants are aware UTC.

    ``reservations`` are None where Redis does not tell. ``is_enqueued`` tells that Celery was given
    it for its next try, ``enqueue_at`` when the sweep hands it over (again); ``claim_expires_at``
    until when a worker has it. ``deleted_at`` is when ``prune`` may delete it, at the earliest.
    ``status_host`` is the host that is told what becomes of it, None where nobody asked, and
    ``told`` the status last told, None before the first.
    """

    message: Message
    attempts: tuple[Attempt, ...]
    reservations: tuple[Reservation, ...] | None
    is_enqueued: bool
    enqueue_at: datetime | None
    claim_expires_at: datetime | None
    deleted_at: datetime | None
    status_host: str | None = None
    told: Status | None = None


class Telling:
    """The use case of those who want to know what became of a message. Changes nothing."""

    def __init__(self, *, settings: Settings, listing: Listing, contents: Contents) -> None:
        self._settings = settings
        self._listing = listing
        self._contents = contents

    def story(self, message_id: UUID) -> Story:
        """Return what is known of a message. Raises MessageNotFound and StoreUnavailable."""
        found = self._listing.traced(message_id)
        message = found.message
        is_scheduled = message.status is Status.SCHEDULED
        ended = message.finished_at
        return Story(
            message=message,
            attempts=tuple(found.attempts),
            reservations=self._reservations(message),
            is_enqueued=is_scheduled and found.enqueue_at > message.next_attempt_at,
            enqueue_at=found.enqueue_at if is_scheduled else None,
            claim_expires_at=found.claim_expires_at,
            deleted_at=ended + self._settings.retention if ended else None,
            # The rest of the URL may be a secret.
            status_host=None if found.status_url is None else urlsplit(found.status_url).hostname,
            told=None if found.told is Status.SCHEDULED else found.told,
        )

    def _reservations(self, message: Message) -> tuple[Reservation, ...] | None:
        if message.scope == NOBODY:
            return ()
        scopes = counted(
            self._settings.quotas_of,
            scope=message.scope,
            channel=message.channel,
            scopes=message.scopes,
        )
        windows = [self._contents.window_of(each) for each in scopes]
        try:
            if not self._contents.opened().keys() >= {keys for keys, _ in windows}:
                return None
            seen = self._contents.look([(name, message.id.bytes) for _, name in windows])
        except ReservationsUnavailable:
            return None
        return tuple(
            Reservation(
                scope=str(scope), at=None if each.at_ms is None else from_ms(int(each.at_ms))
            )
            for scope, each in zip(scopes, seen, strict=True)
        )
