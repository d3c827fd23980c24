"""Change what was accepted: reschedule, update, cancel. The row decides every race."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    InvalidSendTime,
    MessageChanged,
    MessageNotFound,
    QuotaExceeded,
    SlotRefused,
    StoreUnavailable,
    Suppressed,
    TooLate,
    Unavailable,
    UnknownChannel,
)
from dispatcher.faults import fault
from dispatcher.message import (
    Body,
    Draft,
    Message,
    OnConflict,
    Status,
    is_unchanged,
    make_texts_plain,
)
from dispatcher.reservation.booking import BookingRequest, Terms
from dispatcher.scope import NO_SCOPE, WITHOUT
from dispatcher.selection import check_priority
from dispatcher.settings import Settings
from dispatcher.store.lists import Suppressions
from dispatcher.store.messages import Messages, Tokens
from dispatcher.store.schema import Movable
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.moves import Move, Moves
from dispatcher.submission.reserver import Reserver
from dispatcher.submission.validation import DraftValidator, judge_times, scopes_of, validate_fields
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import after, check_zone, instant_of, local_wish, parse
from dispatcher.times.zones import known_zone

if TYPE_CHECKING:
    from dispatcher.body_types import AnyBody

_TRIES = 10
_BETWEEN_TRIES_SECONDS = 0.01
"""Times the number of the try: another move of the message may hold the wanted time for a while."""
_AT_ONCE = 500

ChangeResult = Message | DispatcherError


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTime:
    """Another time for messages. The fields are those of ``Dispatcher.reschedule``.

    One that is ``as_wished`` is the time that the wish of each message means now.
    """

    send_at: datetime | str | None = None
    send_in: timedelta | None = None
    zone: str | None = None
    set_zone: str | None = None
    later: timedelta | None = None
    fold: int | None = None
    on_conflict: OnConflict = "reject"
    latest: datetime | str | None = None
    expires_at: datetime | str | None = None
    expire_after: timedelta | None = None
    as_wished: bool = False

    def __post_init__(self) -> None:
        make_texts_plain(self)


@dataclass(kw_only=True)
class Changes:
    settings: Settings
    clock: Clock
    messages: Messages
    suppressions: Suppressions
    moves: Moves
    enqueuer: Enqueuer
    journal: Journal
    validator: DraftValidator

    def update(
        self,
        message_ids: Sequence[UUID],
        *,
        body: AnyBody | None,
        template: str | None,
        data: Mapping[str, Any] | None,
        priority: int | None,
        if_unchanged: Mapping[UUID, Message],
    ) -> list[ChangeResult]:
        """Change one message as :meth:`update_many`, by a body that its channel validates."""
        clean = None
        if priority is None or not (body is None and template is None and data is None):
            message = self.messages.get(*message_ids)
            if template is not None and message.channel not in self.settings.channels:
                raise UnknownChannel(message.channel, sorted(self.settings.channels))
            draft = Draft(
                channel=message.channel,
                recipient=message.recipient,
                body=body,
                template=template,
                data=data,
            )
            clean = self.validator.body(draft)
        return self.update_many(message_ids, priority, clean, if_unchanged=if_unchanged)

    def update_many(
        self,
        message_ids: Sequence[UUID],
        priority: int | None,
        body: Body | None = None,
        *,
        if_unchanged: Mapping[UUID, Message] = MappingProxyType({}),
    ) -> list[ChangeResult]:
        """Give messages a priority, a valid body, or both, in batches; return each or its refusal.

        They keep their reservations, also in places that quotas keep for larger priorities.
        ``if_unchanged``, if given, has every message as it was read.
        """
        if priority is not None or body is None:
            priority = check_priority(priority)
        change = partial(self._update, {"priority": priority, "body": body})
        return _in_batches(self.messages, change, message_ids, if_unchanged)

    def _update(
        self, wish: dict[str, Any], message_ids: Sequence[UUID], tokens: Tokens | None
    ) -> dict[UUID, ChangeResult]:
        rows, changed = self.messages.update(message_ids, tokens=tokens, **wish)
        if tokens is None:  # asked for again, also after its end
            wanted = {name: value for name, value in wish.items() if value is not None}.items()
            changed = {*changed} | {
                id_ for id_, row in rows.items()
                if all(getattr(row.message, name) == value for name, value in wanted)
            }  # fmt: skip
        late = {id_: row.message.status for id_, row in rows.items() if id_ not in changed}
        return {id_: rows[id_].message for id_ in changed} | {
            id_: MessageChanged(id_) if status is Status.SCHEDULED else TooLate(id_, status)
            for id_, status in late.items()
        }

    def reschedule_many(
        self,
        message_ids: Sequence[UUID],
        new_time: NewTime,
        *,
        if_unchanged: Mapping[UUID, Message] = MappingProxyType({}),
    ) -> list[ChangeResult]:
        """Move messages, each judged as if it had no reservation yet; return each or its refusal.

        ``if_unchanged`` has messages as they were read, by id. They are moved in batches. Where
        Redis or the database does not answer, the rest is not moved and gets the same error. After
        StoreUnavailable a message has the old time or the new one, after another error the old one.
        """
        answers: dict[UUID, ChangeResult] = {}
        left = list(dict.fromkeys(message_ids))
        while left:
            failed = self._move(left[:_AT_ONCE], new_time, if_unchanged, answers)
            left = left[_AT_ONCE:]
            if failed is not None:
                answers = dict.fromkeys(message_ids, failed) | answers
                break
        return [answers[message_id] for message_id in message_ids]

    def _move(
        self,
        message_ids: Sequence[UUID],
        new_time: NewTime,
        if_unchanged: Mapping[UUID, Message],
        answers: dict[UUID, ChangeResult],
    ) -> Unavailable | None:
        """Fill in the answers of a batch; return the error that stopped it, or None."""
        left, tokens = message_ids, dict[UUID, int]()
        for number in range(1, _TRIES + 1):
            try:
                moves = self._valid_moves(left, new_time, if_unchanged, tokens, answers)
                self.moves.move_many(moves)
                self._replace_suppressed(moves)
            except StoreUnavailable as error:
                return error
            moved = [move.result for move in moves if isinstance(move.result, Message)]
            for message in moved:
                self.journal.tell(Transition.RESCHEDULED, message, send_at=message.send_at)
            self.enqueuer.enqueue(*moved)
            left, failed = [], None
            for move in moves:
                message_id, result = move.before.message.id, move.result
                # Another move of the message may hold a time there.
                is_in_its_own_way = (
                    isinstance(result, QuotaExceeded) and message_id in result.conflicting
                )
                if result is None or (is_in_its_own_way and number < _TRIES):
                    left.append(message_id)
                else:
                    answers[message_id] = result
                if isinstance(result, Unavailable):
                    failed = failed or result
            if failed is not None or not left:
                return failed
            self.clock.sleep(number * _BETWEEN_TRIES_SECONDS)
        changed = StoreUnavailable("other calls kept changing the message", remedy="try again")
        answers |= dict.fromkeys(left, changed)
        return None

    def _valid_moves(
        self,
        message_ids: Sequence[UUID],
        new_time: NewTime,
        if_unchanged: Mapping[UUID, Message],
        tokens: dict[UUID, int],
        answers: dict[UUID, ChangeResult],
    ) -> list[Move]:
        """Fill in the answers of what is refused, and the tokens of what was read first."""
        rows = self.messages.movables(message_ids)
        moves = []
        for message_id in message_ids:
            row, before = rows.get(message_id), if_unchanged.get(message_id)
            try:
                if row is None:
                    raise MessageNotFound(message_id)
                if row.message.status is not Status.SCHEDULED:
                    raise TooLate(message_id, row.message.status)
                if before is not None and (
                    not is_unchanged(before, row.message)
                    or row.token != tokens.setdefault(message_id, row.token)
                ):
                    raise MessageChanged(message_id)
                moves.append(self.valid_move(row, new_time))
            except DispatcherError as refused:
                answers[message_id] = refused
        return moves

    def _replace_suppressed(self, moves: Sequence[Move]) -> None:
        refused = [
            (move, (move.before.message.recipient, move.before.message.channel))
            for move in moves
            if isinstance(move.result, SlotRefused)
        ]
        if refused:
            suppressed = self.suppressions.among([recipient for _, recipient in refused])
            for move, recipient in refused:
                if recipient in suppressed:
                    move.result = Suppressed(move.before.message.channel)

    def valid_move(self, row: Movable, new_time: NewTime) -> Move:
        message = row.message
        if message.scope == NO_SCOPE:
            raise InvalidDraft(
                "id", "is that of a status message, which keeps its time", "another message"
            )
        now = self.clock.now()
        draft = _draft(message, new_time)
        valid = validate_fields(draft, settings=self.settings, now=now)
        if draft.expire_after is None:  # the setting of its channel may have changed
            valid = valid._replace(expire_after=None)
        judge_times(valid, now=now)
        valid = valid._replace(wish=_wish(message, new_time, draft.zone, valid.send_at))
        if new_time.set_zone is None:  # also one that is known no more
            valid = valid._replace(zone=message.zone)
        return Move(row, valid)


def _draft(message: Message, new_time: NewTime) -> Draft:
    """Return the draft of the changed message; local times are read by the zone of the call."""
    if new_time.zone is not None:
        check_zone(new_time.zone)
    if new_time.set_zone is not None:
        check_zone(new_time.set_zone, field="set_zone")
    new_zone = known_zone(message.zone) if new_time.set_zone is None else new_time.set_zone
    zone = new_zone if new_time.zone is None else new_time.zone

    def read(field: str) -> datetime | None:
        value = getattr(new_time, field)
        return None if value is None else parse(value, zone=zone, fold=new_time.fold, field=field)

    send_at = _wished_at(message) if new_time.as_wished else read("send_at")
    if new_time.later is not None:
        if send_at is not None or new_time.send_in is not None:
            raise InvalidSendTime("later", "given together with another time", "one of them")
        send_at = after(new_time.later, now=message.send_at, field="later")
    expires_at, expire_after = read("expires_at"), new_time.expire_after
    if expires_at is None and expire_after is None:
        expire_after = message.expire_after
        expires_at = message.expires_at if expire_after is None else None
    return Draft(
        channel=message.channel,
        recipient=message.recipient,
        body=message.body,
        send_at=send_at,
        send_in=new_time.send_in,
        zone=new_zone,
        fold=new_time.fold,
        scope=message.scope,
        scopes={kind: name for kind, name in message.scopes.items() if kind != WITHOUT},
        quotas="none" if WITHOUT in message.scopes else None,
        expires_at=expires_at,
        expire_after=expire_after,
        on_conflict=new_time.on_conflict,
        latest=read("latest"),
        quiet_hours=message.quiet_hours,
        priority=message.priority,
    )


def _wished_at(message: Message) -> datetime:
    if message.wish is None or "T" not in message.wish:  # it was moved to an instant meanwhile
        raise MessageChanged(message.id)
    return instant_of(message.wish, message.zone or "UTC")


def _wish(message: Message, new_time: NewTime, zone: str | None, at: datetime) -> str | None:
    if new_time.as_wished:
        return message.wish
    if zone is None or new_time.send_at is None or new_time.zone not in (None, zone):
        return None
    return local_wish(new_time.send_at, at, zone)


def _in_batches(
    messages: Messages,
    change: Callable[[Sequence[UUID], Tokens | None], dict[UUID, ChangeResult]],
    message_ids: Sequence[UUID],
    if_unchanged: Mapping[UUID, Message],
) -> list[ChangeResult]:
    """Change messages, those of ``if_unchanged`` by their tokens; return each or an error."""
    results: list[ChangeResult] = []
    for start in range(0, len(message_ids), _AT_ONCE):
        batch = message_ids[start : start + _AT_ONCE]
        answers: dict[UUID, ChangeResult] = {}
        tokens: dict[UUID, int] | None = None
        if if_unchanged:
            tokens = {}
            for message_id, row in messages.movables(batch).items():
                if is_unchanged(if_unchanged[message_id], row.message):
                    tokens[message_id] = row.token
                else:
                    answers[message_id] = MessageChanged(message_id)
        answers |= change(batch if tokens is None else [*tokens], tokens)
        results += [answers.get(id_) or MessageNotFound(id_) for id_ in batch]
    return results


@dataclass(kw_only=True)
class Cancellation:
    """Cancels messages in batches; one message is a batch of one."""

    settings: Settings
    messages: Messages
    reserver: Reserver
    journal: Journal

    def cancel_many(
        self,
        message_ids: Sequence[UUID],
        *,
        if_unchanged: Mapping[UUID, Message] = MappingProxyType({}),
        because: str | None = None,
    ) -> list[ChangeResult]:
        """Cancel messages, again or not, and release their reservations; return each or an error.

        ``if_unchanged``, if given, has every message as it was read. ``because`` becomes the
        ``last_error`` of the messages. Raises StoreUnavailable: some may be cancelled; a repeated
        call returns which.
        """
        change = partial(self._cancel, because)
        return _in_batches(self.messages, change, message_ids, if_unchanged)

    def _cancel(
        self, because: str | None, message_ids: Sequence[UUID], tokens: Tokens | None
    ) -> dict[UUID, ChangeResult]:
        result = self.messages.cancel(message_ids, tokens=tokens, because=because)
        answers: dict[UUID, ChangeResult] = {}
        for message_id, (message, *_) in result.rows.items():
            if message.status is Status.SCHEDULED:
                answers[message_id] = MessageChanged(message_id)
                continue
            if message.status is not Status.CANCELLED:
                answers[message_id] = TooLate(message_id, message.status)
                continue
            answers[message_id] = message
            if message_id in result.newly_changed:
                self.journal.tell(Transition.CANCELLED, message)
        fault("cancel.after_rows")
        # Not only of new ones: a process that cancelled may have died before this.
        self.release(result.rows.values())
        return answers

    def release(self, rows: Iterable[Movable]) -> None:
        """Release the reservations of those of these messages that are cancelled."""
        requests = [
            BookingRequest(message.id, Terms(scopes), 0, 0, tail=tail)
            for message, _, tail, _ in rows
            if message.status is Status.CANCELLED
            and (scopes := scopes_of(message, self.settings))  # a status message has none
        ]
        if requests:
            self.reserver.withdraw(requests)
