"""Give messages other times: hold the new time, change the row, take the held time.

One move is a batch of one. A caller asks for a ``NewTime``; checked, with the row it was read from,
it is a ``ValidMove``; held in Redis it is a ``Moving``; the values of the row are a ``NewSlot``.
Where a process dies in between, reconcile makes the windows agree with the rows
(docs/decisions/0031-moves.md).
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    MessageChanged,
    MessageNotFound,
    QuotaExceeded,
    ReservationsUnavailable,
    SlotRefused,
    StoreUnavailable,
    TooLate,
)
from dispatcher.faults import fault
from dispatcher.message import Message, is_unchanged
from dispatcher.reservation import Blocked, BookingRequest, Moving, Terms, Windows, longest_ms
from dispatcher.scope import Scope
from dispatcher.settings import Settings
from dispatcher.store import Messages, Movable, NewSlot
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.validation import scopes_of
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import to_ms
from dispatcher.times.zones import known_zone

log = logging.getLogger(__name__)

_TRIES = 10
_BETWEEN_TRIES_SECONDS = 0.5
_MOST_TURNS = 10
"""How often messages of a batch are judged that other messages of it were in the way of."""

MoveResult = Message | DispatcherError | None
"""A moved message, or why it was not moved; None where it was changed concurrently."""


class ValidMove(NamedTuple):
    """A message as it was read, and its wanted time: ``send_at``, or a slot up to ``latest``.

    ``expire_after`` counts from the booked time; with it there is no ``expires_at``. With
    ``if_unchanged`` another change that comes between refuses the move.
    """

    found: Movable
    terms: Terms
    send_at: datetime
    latest: datetime | None
    zone: str | None
    expires_at: datetime | None
    expire_after: timedelta | None
    if_unchanged: bool = False

    @property
    def keeps_its_time(self) -> bool:
        """Whether time and zone stay, so that only the expiry changes."""
        message = self.found.message
        return (self.send_at, self.zone) == (message.send_at, message.zone)

    @property
    def request(self) -> BookingRequest:
        asked_ms = to_ms(self.send_at)
        latest_ms = to_ms(self.latest) if self.latest else asked_ms
        return BookingRequest(self.found.message.id, self.terms, asked_ms, latest_ms)

    def expiry(self, send_at: datetime) -> datetime | None:
        return self.expires_at if self.expire_after is None else send_at + self.expire_after


class Moves:
    """Moves scheduled messages. The row decides every race.

    Releases the reservations of cancelled messages, too: a move may meet one halfway.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        windows: Windows,
        messages: Messages,
        enqueuer: Enqueuer,
    ) -> None:
        self._settings = settings
        # Reconcile confirms an old time after the whole grace, and sees late changes by then.
        self._within = settings.reconcile_grace / 2
        self._clock = clock
        self._windows = windows
        self._messages = messages
        self._enqueuer = enqueuer
        self._reach_ms = {
            kind: longest_ms(quotas) for kind, quotas in settings.quotas_of.items() if quotas
        }

    def move_many(self, valid_moves: Sequence[ValidMove]) -> list[MoveResult]:
        """Return the moved messages, or why they were not moved.

        After StoreUnavailable a message has the old time or the new one, after another error the
        old one.

        Each is judged after those before it have moved: one that was refused or shifted near a time
        that an earlier one leaves is judged again, in ten turns at most.
        """
        answers: list[MoveResult] = [None] * len(valid_moves)
        left: Collection[int] = range(len(valid_moves))
        for turn in range(1, _MOST_TURNS + 1):
            try:
                left = self._turn(valid_moves, left, answers, is_last=turn == _MOST_TURNS)
            except (ReservationsUnavailable, StoreUnavailable) as error:
                for index in left:
                    answers[index] = answers[index] or error
                break
            if not left:
                break
        return answers

    def release(self, cancelled: Sequence[Message]) -> None:
        requests = []
        for message in cancelled:
            at_ms, terms = to_ms(message.send_at), self._terms_of(message)
            if terms.scopes:  # a status message has none
                requests.append(BookingRequest(message.id, terms, at_ms, at_ms))
        try:
            self._windows.withdraw(requests)
        except ReservationsUnavailable as error:
            log.warning(
                "could not release the reservations of %d cancelled messages; reconcile will: %s",
                len(requests), error,
            )  # fmt: skip

    def _turn(
        self,
        valid_moves: Sequence[ValidMove],
        left: Collection[int],
        answers: list[MoveResult],
        *,
        is_last: bool,
    ) -> list[int]:
        """Move the messages that can move now; return the indexes of those to judge again."""
        moving = [index for index in left if not valid_moves[index].keeps_its_time]
        found = self._windows.move_many([valid_moves[index].request for index in moving])
        judged = dict(zip(moving, found, strict=True))
        again = [] if is_last else self._judged_too_early(valid_moves, judged)
        held: dict[int, Moving] = {}
        for index, each in judged.items():
            if index in again:
                continue
            if isinstance(each, Moving):
                held[index] = each
            else:
                answers[index] = each
        self._drop(*(each for index in again if isinstance(each := judged[index], Moving)))
        fault("reschedule.after_hold")
        times = {index: held[index].send_at if index in held else valid_moves[index].send_at
                 for index in left if index in held or index not in judged}  # fmt: skip
        rows = self._changed(valid_moves, times, held, answers)
        moved = {
            index: moving
            for index, moving in held.items()
            # Also where another change came after it.
            if index in rows and rows[index].message.send_at == moving.send_at
        }
        self._drop(*(each for index, each in held.items() if index not in moved))
        if moved:
            taken = {index: (each, rows[index].token) for index, each in moved.items()}
            self._take(valid_moves, taken, answers)
        for index, send_at in times.items():
            if answers[index] is None and index not in rows:
                answers[index] = MessageNotFound(valid_moves[index].found.message.id)
            elif answers[index] is None:
                now = rows[index].message
                is_wanted = _is_as_wanted(now, send_at, valid_moves[index])
                answers[index] = now if is_wanted else None
        return again

    def _judged_too_early(
        self, valid_moves: Sequence[ValidMove], judged: Mapping[int, Moving | SlotRefused]
    ) -> list[int]:
        """Return the moves that were refused or shifted near a time that an earlier one leaves.

        Also the later ones that share a scope with one of them.
        """
        left_at: defaultdict[Scope, list[int]] = defaultdict(list)
        waiting: set[Scope] = set()
        found = []
        for index, each in judged.items():
            request = valid_moves[index].request
            scopes = request.terms.scopes
            is_held = isinstance(each, Moving)
            until_ms = to_ms(each.send_at if isinstance(each, Moving) else each.next_slot)
            is_as_asked = is_held and until_ms == request.asked_ms
            reaches = [(left_at[scope], self._reach_ms[scope.kind]) for scope in scopes]
            if not waiting.isdisjoint(scopes) or (not is_as_asked and any(
                _has_between(times, request.asked_ms - reach_ms, until_ms + reach_ms)
                for times, reach_ms in reaches
            )):  # fmt: skip
                waiting.update(scopes)
                found.append(index)
            elif is_held:
                old_ms = to_ms(valid_moves[index].found.message.send_at)
                for scope in scopes:
                    insort(left_at[scope], old_ms)
        return found

    def _changed(
        self,
        valid_moves: Sequence[ValidMove],
        times: Mapping[int, datetime],
        held: Mapping[int, Moving],
        answers: list[MoveResult],
    ) -> dict[int, Movable]:
        """Change rows; return those that are stored, as they now are.

        Rows that the database refuses together are tried one by one.
        """
        if not times:
            return {}
        new = [self._new_slot(valid_moves[index], send_at) for index, send_at in times.items()]
        try:
            if any(valid_moves[index].if_unchanged for index in times):
                [move] = new  # it is asked of one message at a time
                rows = {
                    move.found.message.id: self._messages.move_if_unchanged(
                        move, within=self._within
                    )
                }
            else:
                rows = self._messages.move(new, within=self._within)
        except (MessageChanged, MessageNotFound) as refused:
            [index] = times
            answers[index] = refused
            return {}
        except StoreUnavailable as error:
            # Unless the database refused, rows may have changed: reconcile reads them.
            if not error.refused:
                raise
            if len(times) > 1:
                found: dict[int, Movable] = {}
                for index, send_at in times.items():
                    found |= self._changed(valid_moves, {index: send_at}, held, answers)
                return found
            [index] = times
            answers[index] = error
            return {}
        ids = {index: valid_moves[index].found.message.id for index in times}
        return {index: rows[each] for index, each in ids.items() if each in rows}

    def _new_slot(self, valid: ValidMove, send_at: datetime) -> NewSlot:
        return NewSlot(
            valid.found,
            send_at=send_at,
            next_attempt_at=send_at,
            enqueue_at=self._enqueuer.enqueue_at(send_at),
            zone=valid.zone,
            expires_at=valid.expiry(send_at),
            expire_after=valid.expire_after,
            asked_at=valid.send_at if valid.send_at != send_at else None,
        )

    def _take(
        self,
        valid_moves: Sequence[ValidMove],
        held: dict[int, tuple[Moving, int]],
        answers: list[MoveResult],
    ) -> None:
        """Take held times, or return to the old ones where other messages took them.

        Release the new times of messages that were cancelled while they moved.
        """
        fault("reschedule.after_row")
        for index, blocked in self._taken(dict(held)).items():
            moving, before = held[index][0], valid_moves[index].found.message
            if self._is_back(moving, before):
                request = valid_moves[index].request
                answers[index] = self._windows.refusal(
                    moving.terms,
                    request.asked_ms,
                    blocked,
                    before.id,
                    latest_ms=request.latest_ms,
                )
        fault("reschedule.after_take")
        left = {moving.message_id: index for index, (moving, _) in held.items()
                if answers[index] is None}  # fmt: skip
        cancelled = self._messages.cancelled(list(left))
        if cancelled:
            self.release(cancelled)
        for message in cancelled:
            answers[left[message.id]] = TooLate(message.id, message.status)

    def _taken(self, held: dict[int, tuple[Moving, int]]) -> dict[int, Blocked]:
        """Take held times, held anew where the windows have lost them; return the blocked ones.

        Times that are not settled here are settled by reconcile. Until then the old time stays
        reserved, and the new one where the windows still hold it.
        """
        blocked: dict[int, Blocked] = {}
        reason = "the windows kept losing the held time"
        for _ in range(_TRIES):
            try:
                taken = self._windows.take(list(held.values()))
                for index, is_taken in zip(list(held), taken, strict=True):
                    if is_taken:
                        del held[index]
                for index, (moving, _) in list(held.items()):
                    again = self._windows.hold_again(moving)
                    if isinstance(again, Blocked):
                        blocked[index] = again
                        del held[index]
                        continue
                    now = self._messages.movables([moving.message_id]).get(moving.message_id)
                    if now is None or now.message.send_at != moving.send_at:
                        self._drop(again)  # another move came after this one
                        del held[index]
                    else:
                        held[index] = (again, now.token)
            except ReservationsUnavailable as error:
                reason = str(error)
                self._clock.sleep(_BETWEEN_TRIES_SECONDS)
            if not held:
                return blocked
        for moving, _ in held.values():
            log.warning(
                "could not settle the reservations of moved message %s; reconcile will: %s",
                moving.message_id,
                reason,
            )
        return blocked

    def _is_back(self, moving: Moving, before: Message) -> bool:
        """Return a message to its old time where that is free; return whether it has that time."""
        reason = "its time was changed again and again"
        for _ in range(_TRIES):
            now = self._messages.movables([before.id]).get(before.id)
            if now is None or now.message.send_at != moving.send_at:
                self._drop(moving)
                return now is not None and now.message.send_at == before.send_at
            try:
                back = self._windows.move(
                    before.id,
                    terms=self._terms_of(before),
                    send_at=before.send_at,
                    beside=moving,
                )
            except (SlotRefused, ReservationsUnavailable) as error:
                reason = str(error)
                break
            old = NewSlot(
                now,
                send_at=before.send_at,
                next_attempt_at=before.next_attempt_at,
                enqueue_at=self._enqueuer.enqueue_at(before.next_attempt_at),
                zone=before.zone,
                expires_at=before.expires_at,
                expire_after=before.expire_after,
                asked_at=before.asked_at,
            )
            found = self._messages.move([old], within=self._within).get(before.id)
            if found is not None and found.message.send_at == before.send_at:
                self._taken({0: (back, found.token)})
                self._drop(moving)
                # Its task may have run before the row had this time again.
                self._enqueuer.enqueue(found.message)
                return True
            self._drop(back)
        log.warning(
            "reservation lost for moved message %s: quota may be exceeded; "
            "run `dispatcher windows verify`: %s",
            before.id, reason,
        )  # fmt: skip
        return False

    def _drop(self, *held: Moving) -> None:
        if not held:
            return
        try:
            self._windows.drop(*held)
        except ReservationsUnavailable as error:
            log.warning("could not release %d held times; reconcile will: %s", len(held), error)

    def _terms_of(self, message: Message) -> Terms:
        return Terms(
            scopes_of(message, self._settings), known_zone(message.zone) or self._settings.zone
        )


def unchanged(messages: Messages, message_id: UUID, before: Message) -> Movable:
    """Return a message with its token. Raises MessageChanged unless it is as it was before."""
    found = messages.movable(message_id)
    if not is_unchanged(before, found.message):
        raise MessageChanged(message_id)
    return found


def is_in_its_own_way(message_id: UUID, error: object) -> bool:
    """Whether a move is refused because another move of the message holds a time there."""
    return isinstance(error, QuotaExceeded) and message_id in error.conflicting


def _has_between(ordered: Sequence[int], start: int, end: int) -> bool:
    first = bisect_right(ordered, start)
    return first < len(ordered) and ordered[first] < end


def _is_as_wanted(message: Message, send_at: datetime, valid: ValidMove) -> bool:
    wanted = (send_at, valid.zone, valid.expiry(send_at), valid.expire_after)
    return wanted == (message.send_at, message.zone, message.expires_at, message.expire_after)
