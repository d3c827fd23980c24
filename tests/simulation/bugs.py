"""Bugs that the simulation must find: each replaces named attributes of use cases, or of doubles.

Those of the doubles stand for the same mistake in a statement or a script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from dispatcher.delivery.recorder import permit_of
from dispatcher.errors import OutcomeUnknown, StoreUnavailable, TooLate
from dispatcher.message import Status
from dispatcher.reservation import BookingRequest
from dispatcher.submission import Moves
from dispatcher.submission.batch import requests_of
from dispatcher.testing.memory.tables import Tables
from tests.simulation.runs import Found, search
from tests.support.planting import Seams, nothing, planted

ENOUGH = 50_000
"""Faults within which each bug is found."""
LATE = {
    "lost claims may record": 269,
    "late success forgotten": 79,
    "tried messages count as overdue": 37,
    "suppressed recipients are claimed": 20,
}
"""Stories that tell of a bug that few tell of. Where they do not any more, all are looked at."""


def hunt(name: str) -> Found:
    """Plant a bug, and play stories until one breaks a promise or enough has gone wrong."""
    with planted(BUGS[name]):
        found = search(faults=1, first=LATE.get(name, 0))
        return found if found.broken else search(faults=ENOUGH)


def _any_token(_: Any) -> Any:
    def ours(self: Any, claim: Any, statuses: Any) -> Any:
        row = self.messages.get(claim.message.id)
        return row if row is not None and row.status in statuses else None

    return ours


def _last_claim_only(_: Any) -> Any:
    return lambda self, claim: self.ours(claim, (Status.SENDING, Status.HELD, Status.SCHEDULED))


def _attempts_kept(real: Any) -> Any:
    def put_back(self: Any, snoozed: Any, **named: Any) -> None:
        given = list(snoozed)
        real(self, given, **named)
        for claim, _ in given:
            row = self._tables.messages.get(claim.message.id)
            if row is not None and row.status is Status.SCHEDULED:
                row.attempt_count = claim.message.attempt_count

    return put_back


def _always_retried(real: Any) -> Any:
    def rescue(self: Any, row: Any, now: Any) -> None:
        word, row.on_unknown = row.on_unknown, "retry"
        real(self, row, now)
        row.on_unknown = word

    return rescue


def _settled_first(real: Any) -> Any:
    def outcome(self: Any, group: Any, claim: Any) -> Any:
        self._shared.permits.settle([(permit_of(claim), timedelta(0))])
        return real(self, group, claim)

    return outcome


def _only_scheduled(real: Any) -> Any:
    def cancel(self: Any, message_id: Any, **named: Any) -> Any:
        before = self._messages.get(message_id)
        if before.status is not Status.SCHEDULED:  # "no row was changed"
            raise TooLate(message_id, before.status)
        return real(self, message_id, **named)

    return cancel


def _keeping(keeps: Callable[[Sequence[BookingRequest]], bool]) -> Callable[[Any], Any]:
    def wrong(real: Any) -> Any:
        return lambda self, requests: None if keeps(requests) else real(self, requests)

    return wrong


def _blind(real: Any) -> Any:
    def begin(self: Any, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        self._timeout = -1e9

    return begin


def _never_again(real: Any) -> Any:
    late = {"enqueue_grace": timedelta(days=100)}
    return lambda self, *, settings, **parts: real(
        self, settings=settings.model_copy(update=late), **parts
    )


def _only_marked(_: Any) -> Any:
    def release(self: Any, limit: int) -> int:
        rows = self._store.unreleased(limit=limit)
        self._store.mark_released([each.message_id for each in rows])
        return len(rows)

    return release


def _withdrawn(real: Any) -> Any:
    def stored(self: Any, entry: Any, *, perhaps_stored: bool) -> Any:
        try:
            return real(self, entry, perhaps_stored=perhaps_stored)
        except OutcomeUnknown as error:
            self.reservations.withdraw(requests_of([entry]))
            raise StoreUnavailable(error.reason) from error

    return stored


def _first_legs(_: Any) -> Any:
    def withdraw(self: Any, requests: Any) -> Any:
        return self.shards.release_many(
            (self.legs(each.terms)[0], each.message_id, each.submit) for each in requests
        )

    return withdraw


def _suppressed_too(real: Any) -> Any:
    def claim(self: Any, message_ids: Any, **more: Any) -> Any:
        with patch.object(Tables, "is_suppressed", lambda *_: False):
            return real(self, message_ids, **more)

    return claim


def _tried_too(_: Any) -> Any:
    def is_overdue(self: Any, row: Any, now: Any, channels: Any) -> bool:
        is_late = row.next_attempt_at <= now - self.after
        return row.status is Status.SCHEDULED and is_late and row.channel in channels

    return is_overdue


def _row_only(real: Any) -> Any:
    def move(self: Any, order: Any) -> Any:
        return self._changed([order], {0: order.send_at}, {}, [None])[0].message

    def moved(self: Any, movable: Any, now: Any) -> Any:
        with patch.object(Moves, "move", move):
            return real(self, movable, now)

    return moved


_CLAIMS = "testing.memory.claims.MemoryClaims"
_TABLES = "testing.memory.tables.Tables"
_WITHDRAW = "submission.Reserver.withdraw"

BUGS: Mapping[str, Seams] = {
    "lost claims may record": {f"{_TABLES}.ours": _any_token},
    "late success forgotten": {f"{_TABLES}.sent_by": _last_claim_only},
    "a snooze counts an attempt": {f"{_CLAIMS}.put_back": _attempts_kept},
    "rescue forgets hold": {
        "testing.memory.store_maintenance.MemoryStoreMaintenance._rescue": _always_retried
    },
    "permits settled before the send": {
        "delivery.sender.Sender._call_transport": _settled_first,
        "delivery.recorder.Recorder._settle_permits": nothing,
    },
    "cancel judged by the rows it changed": {"submission.Cancellation.cancel": _only_scheduled},
    "a failed submit keeps its reservation": {_WITHDRAW: _keeping(lambda some: len(some) == 1)},
    "a refused batch keeps its reservations": {_WITHDRAW: _keeping(lambda some: len(some) > 1)},
    "the rest of the claim not checked before the send": {
        "delivery.sender.Sender.__init__": _blind,
        "delivery.recorder.Recorder.__init__": _blind,
    },
    "sent without waiting for the instant": {
        "delivery.sender_pool.SenderPool.add": lambda real: (
            lambda self, group, claims: real(self, group, [(0.0, claim) for _, claim in claims])
        )
    },
    "no rescue": {"delivery.sweep.Sweep.rescue": lambda _: lambda _: 0},
    "nothing enqueued a second time": {"delivery.sweep.Sweep.__init__": _never_again},
    "reservations of cancelled and expired messages not released": {
        "delivery.reconciler.Reconciler._release_unneeded": _only_marked
    },
    "an insert without an answer counts as not done": {
        "submission.OwnTransaction._stored": _withdrawn
    },
    "unconfirmed reservations not settled": {
        "delivery.reconciler.Reconciler._settle_unconfirmed": lambda _: lambda _: Counter()
    },
    "only the first shard withdrawn": {"reservation.Windows.withdraw": _first_legs},
    "suppressed recipients are claimed": {f"{_CLAIMS}.claim": _suppressed_too},
    "tried messages count as overdue": {
        "testing.memory.tables.CatchUpRules.is_overdue": _tried_too
    },
    "a message booked again gets no reservation": {"submission.CatchUp._moved": _row_only},
}
