"""Catch up after an outage: expire overdue messages, or book them again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher.errors import (
    InvalidValue,
    MessageNotFound,
    ReservationsUnavailable,
    SlotRefused,
    StoreUnavailable,
    TooLate,
)
from dispatcher.message import Message
from dispatcher.reservation import Terms
from dispatcher.settings import Settings
from dispatcher.store import Movable, Overdue
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.moves import Moves, ValidMove, is_in_its_own_way
from dispatcher.submission.validation import read_hours, scopes_of
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.send_time import after
from dispatcher.times.zones import known_zone

log = logging.getLogger(__name__)

_EXPIRED_AT_ONCE = 1_000
_MOVED_AT_ONCE = 100
_MOST_BATCHES = 20
_NO_WAIT = timedelta(0)


@dataclass(frozen=True, slots=True)
class CatchUpResult:
    """The counts of one run: messages that expired, and messages that were booked again."""

    expired: int = 0
    moved: int = 0


class CatchUp:
    """Expires overdue messages or books them again, as the settings of their channels say.

    Claims and ``enqueue_due`` skip such messages. The row decides every race: a message that is
    claimed, moved or cancelled concurrently is not changed.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: Overdue,
        moves: Moves,
        enqueuer: Enqueuer,
        journal: Journal,
    ) -> None:
        self._settings = settings
        self._store = store
        self._moves = moves
        self._enqueuer = enqueuer
        self._journal = journal
        self._reslots = bool(settings.caught_up_by("reslot"))
        self._is_needed = self._reslots or bool(settings.caught_up_by("expire"))

    def run(self) -> CatchUpResult:
        """Expire and book again, in bounded batches. Raises StoreUnavailable."""
        if not self._is_needed:
            return CatchUpResult()
        expired = moved = 0
        for _ in range(_MOST_BATCHES):
            ended = self._store.expire(limit=_EXPIRED_AT_ONCE)
            for message_id, channel in ended.items():
                self._journal.tell_of(Transition.EXPIRED, message_id, channel)
            expired += len(ended)
            if len(ended) < _EXPIRED_AT_ONCE:
                break
        for _ in range(_MOST_BATCHES if self._reslots else 0):
            taken = self._store.take(limit=_MOVED_AT_ONCE, ttl=self._settings.claim_ttl)
            if taken is None:
                break
            done, given_up, left = self._reslot(taken.found, taken.now)
            moved, expired = moved + done, expired + given_up
            if left:
                self._store.put_back(left)
                break
        if expired or moved:
            log.warning("%d overdue messages expired, %d booked again", expired, moved)
        return CatchUpResult(expired, moved)

    def _reslot(self, taken: list[Movable], now: datetime) -> tuple[int, int, list[Message]]:
        """Book messages again; return how many were, how many expired, and the others."""
        moved: list[Message] = []
        left: list[Message] = []
        given_up = 0
        try:
            for index, movable in enumerate(taken):
                message = movable.message
                try:
                    found = self._moved(movable, now)
                except ReservationsUnavailable as error:
                    log.warning(
                        "could not book overdue messages again; the next sweep will: %s", error
                    )
                    left += [each.message for each in taken[index:]]
                    break
                except (TooLate, MessageNotFound):
                    continue
                except (SlotRefused, InvalidValue) as error:
                    latest = self._latest(message, now)
                    if _is_for_good(error, latest) and not is_in_its_own_way(message.id, error):
                        given_up += self._is_given_up(message)
                    else:
                        left.append(message)
                except StoreUnavailable as error:
                    if not error.refused:
                        raise
                    log.warning(
                        "could not book overdue message %s again; the next sweep will: %s",
                        message.id, error,
                    )  # fmt: skip
                    left.append(message)
                else:
                    if found is None:  # changed concurrently, or this took too long
                        left.append(message)
                    else:
                        self._journal.tell(Transition.RESLOTTED, found, send_at=found.send_at)
                        moved.append(found)
        finally:
            self._enqueuer.enqueue(*moved)
        return len(moved), given_up, left

    def _is_given_up(self, message: Message) -> bool:
        log.warning("message %s is overdue and no slot is left: it expires", message.id)
        is_expired = self._store.give_up(message)
        if is_expired:
            self._journal.tell(Transition.EXPIRED, message)
        return is_expired

    def _moved(self, movable: Movable, now: datetime) -> Message | None:
        """Return a message at its new time; None where it was changed concurrently.

        Its content is not validated again, and its expiry does not change.
        """
        message = movable.message
        quiet = self._settings.channels[message.channel].quiet
        if message.quiet_hours is not None:
            quiet = read_hours(message.quiet_hours)
        zone = known_zone(message.zone) or self._settings.zone
        move = ValidMove(
            movable,
            Terms(scopes_of(message, self._settings), zone, quiet),
            send_at=after(_NO_WAIT, now=now),
            latest=self._latest(message, now),
            zone=message.zone,
            expires_at=message.expires_at,
            expire_after=message.expire_after,
            asked_at=message.asked_at or message.send_at,
        )
        return self._moves.move(move)

    def _latest(self, message: Message, now: datetime) -> datetime:
        latest = now + self._settings.max_horizon
        return min(latest, message.expires_at - MILLISECOND) if message.expires_at else latest


def _is_for_good(error: SlotRefused | InvalidValue, latest: datetime) -> bool:
    """Whether there is no slot up to ``latest``, and not only a lost race for one."""
    return not isinstance(error, SlotRefused) or error.next_slot > latest
