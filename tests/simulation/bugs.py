"""Bugs to be found: each is a mistake that somebody could make, put in by patching one method.

Those of the doubles stand for the same mistake in a statement or a script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from dispatcher.delivery.group import Ended, Group
from dispatcher.delivery.reconciler import Reconciler
from dispatcher.delivery.recorder import Recorder, permit_of
from dispatcher.delivery.sender import Sender
from dispatcher.delivery.sender_pool import SenderPool
from dispatcher.delivery.sweep import Sweep
from dispatcher.errors import TooLate
from dispatcher.message import Message, Status
from dispatcher.reservation import Booking, Bulk, Request, Windows
from dispatcher.store import Claim, Movable
from dispatcher.submission import CatchUp, Changes, Moves, Reserver
from dispatcher.submission.moves import Order
from dispatcher.submission.schedule import ValidDraft
from tests.simulation.claims import MemoryClaims
from tests.simulation.store_upkeep import MemoryStoreUpkeep
from tests.simulation.tables import CatchingUp, Row, Tables

Bug = Callable[[], AbstractContextManager[object]]


def record_without_token_guard() -> AbstractContextManager[object]:
    def ours(self: Tables, claim: Claim, statuses: Sequence[Status]) -> Row | None:
        row = self.messages.get(claim.message.id)
        return row if row is not None and row.status in statuses else None

    return patch.object(Tables, "ours", ours)


def late_success_forgotten() -> AbstractContextManager[object]:
    def sent_by(self: Tables, claim: Claim) -> Row | None:
        return self.ours(claim, (Status.SENDING, Status.HELD, Status.SCHEDULED))

    return patch.object(Tables, "sent_by", sent_by)


def put_back_counts_an_attempt() -> AbstractContextManager[object]:
    real = MemoryClaims.put_back

    def put_back(self: MemoryClaims, snoozed: Any, *, enqueue_in: timedelta) -> None:
        given = list(snoozed)
        counts = {each.message.id: each.message.attempt_count for each, _ in given}
        real(self, given, enqueue_in=enqueue_in)
        for id_, count in counts.items():
            row = self._tables.messages.get(id_)
            if row is not None and row.status is Status.SCHEDULED:
                row.attempt_count = count

    return patch.object(MemoryClaims, "put_back", put_back)


def rescue_forgets_hold() -> AbstractContextManager[object]:
    real = MemoryStoreUpkeep._rescue

    def rescue(self: MemoryStoreUpkeep, row: Row, now: Any) -> None:
        word, row.on_unknown = row.on_unknown, "retry"
        real(self, row, now)
        row.on_unknown = word

    return patch.object(MemoryStoreUpkeep, "_rescue", rescue)


def settle_before_send() -> AbstractContextManager[object]:
    real = Sender._outcome

    def outcome(self: Sender, group: Group, claim: Claim) -> Any:
        self._parts.permits.settle([(permit_of(claim), timedelta(0))])
        return real(self, group, claim)

    def settle(self: Recorder, ended: Sequence[Ended]) -> None:
        del self, ended

    return _both(
        patch.object(Sender, "_outcome", outcome), patch.object(Recorder, "_settle", settle)
    )


def cancel_by_row_count() -> AbstractContextManager[object]:
    real = Changes.cancel

    def cancel(self: Changes, message_id: Any) -> Any:
        before = self._messages.get(message_id)
        if before.status is not Status.SCHEDULED:  # "no row was changed"
            raise TooLate(message_id, before.status)
        return real(self, message_id)

    return patch.object(Changes, "cancel", cancel)


def submit_keeps_its_place_on_error() -> AbstractContextManager[object]:
    return _keeping(lambda requests: len(requests) == 1)


def send_without_looking_at_the_claim() -> AbstractContextManager[object]:
    def blind(part: type[Any]) -> AbstractContextManager[object]:
        real = part.__init__

        def begin(self: Any, *given: Any, **named: Any) -> None:
            real(self, *given, **named)
            self._timeout = -1e9

        return patch.object(part, "__init__", begin)

    return _both(blind(Sender), blind(Recorder))


def send_without_waiting_for_the_instant() -> AbstractContextManager[object]:
    def take(_: SenderPool, group: Group) -> Claim | None:
        return group.left.popleft()[1] if group.left else None

    return patch.object(SenderPool, "_take", take)


def nobody_rescues() -> AbstractContextManager[object]:
    return patch.object(Sweep, "rescue", lambda _: 0)


def orphans_stay() -> AbstractContextManager[object]:
    return patch.object(Reconciler, "_settle_unconfirmed", lambda _: Counter())


def a_refused_batch_keeps_its_places() -> AbstractContextManager[object]:
    return _keeping(lambda requests: len(requests) > 1)


def only_the_first_shard_is_given_back() -> AbstractContextManager[object]:
    def withdraw(self: Windows, booking: Booking) -> bool:
        first, *_ = self.legs(booking.terms)
        return self.shards.release(first, booking.message_id, booking.submit)

    def withdraw_many(self: Bulk, requests: Sequence[Request]) -> None:
        self._shards.release_many(
            (self._windows.legs(each.terms)[0], each.message_id, each.submit) for each in requests
        )

    return _both(
        patch.object(Windows, "withdraw", withdraw), patch.object(Bulk, "withdraw", withdraw_many)
    )


def who_opted_out_is_claimed() -> AbstractContextManager[object]:
    real = MemoryClaims.claim

    def claim(self: MemoryClaims, message_ids: Any, **more: Any) -> Any:
        with patch.object(Tables, "is_suppressed", lambda *_: False):
            return real(self, message_ids, **more)

    return patch.object(MemoryClaims, "claim", claim)


def what_was_tried_is_overdue() -> AbstractContextManager[object]:
    def is_overdue(self: CatchingUp, row: Row, now: datetime, channels: Collection[str]) -> bool:
        is_late = row.next_attempt_at <= now - self.after
        return row.status is Status.SCHEDULED and is_late and row.channel in channels

    return patch.object(CatchingUp, "is_overdue", is_overdue)


def what_is_booked_again_keeps_its_place() -> AbstractContextManager[object]:
    def move(self: Moves, found: Movable, valid: ValidDraft, *, asked_at: datetime) -> Message:
        order = Order(found, valid, asked_at)
        return self._changed([order], {0: valid.send_at}, {}, [None])[0].message

    return patch.object(CatchUp, "_moved", _moved_by(move))


def _moved_by(move: Any) -> Any:
    real = CatchUp._moved

    def moved(self: CatchUp, movable: Movable, now: datetime) -> Message | None:
        with patch.object(Moves, "move", move):
            return real(self, movable, now)

    return moved


def _keeping(keeps: Callable[[Sequence[Request]], bool]) -> AbstractContextManager[object]:
    real = Reserver.withdraw

    def withdraw(self: Reserver, requests: Sequence[Request]) -> None:
        if not keeps(requests):
            real(self, requests)

    return patch.object(Reserver, "withdraw", withdraw)


def _both(first: Any, second: Any) -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.enter_context(first)
    stack.enter_context(second)
    return stack


BUGS: tuple[Bug, ...] = (
    record_without_token_guard,
    late_success_forgotten,
    put_back_counts_an_attempt,
    rescue_forgets_hold,
    settle_before_send,
    cancel_by_row_count,
    submit_keeps_its_place_on_error,
    send_without_looking_at_the_claim,
    send_without_waiting_for_the_instant,
    nobody_rescues,
    orphans_stay,
    a_refused_batch_keeps_its_places,
    only_the_first_shard_is_given_back,
    who_opted_out_is_claimed,
    what_was_tried_is_overdue,
    what_is_booked_again_keeps_its_place,
)
