"""Verifies that Redis has exactly the reservations of the messages in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, TypeVar
from uuid import UUID

from dispatcher.redis.keys import ShardKeys, scope_kind_of, scope_of
from dispatcher.reservation.contents import Contents, MemberState
from dispatcher.reservation.encoding import ID_BYTES, id_of, member_of
from dispatcher.scope import Scope
from dispatcher.settings import Settings
from dispatcher.store.maintenance import ReservationRow, ReservationState, StoreMaintenance
from dispatcher.times.clock import MILLISECOND, Clock
from dispatcher.times.send_time import from_ms, to_ms

T = TypeVar("T")

_BATCH = 5_000
_LOOKS = 3
_BETWEEN_LOOKS_SECONDS = 0.3
_MOST_NAMED = 10_000


class Fault(StrEnum):
    """How a window differs from the store about one message."""

    MISSING = "missing"
    """The store has a message without a reservation in the window."""
    MOVED = "at another time"
    """The window has the message at another time than the store."""
    ORPHAN = "orphan"
    """The window has a reservation without a message in the store that counts there."""
    UNDER_WAY = "under way"
    """An orphan that a submit or a move may still need, or that the sweep will release."""
    FOREIGN = "foreign"
    """The key is no window, or a member of it no id: another program wrote it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a window and the store; instants are aware UTC.

    ``send_at`` is the time in the store and ``booked_at`` that in the window, None where one of
    them has no such message. ``message_id`` is None for a foreign key or member.
    """

    fault: Fault
    scope: str
    message_id: UUID | None
    send_at: datetime | None
    booked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification: every difference that a second look confirmed.

    ``messages`` of the store and ``reservations`` in Redis were read. ``counts`` has the number of
    each fault, ``differences`` has the first 10,000 of them. ``closed`` are the shards that were
    incomplete, or rebuilt meanwhile; they are not verified.
    """

    messages: int
    reservations: int
    counts: Mapping[Fault, int]
    differences: tuple[Difference, ...]
    closed: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether every shard was verified, without a difference except those under way."""
        wrong = sum(many for fault, many in self.counts.items() if fault is not Fault.UNDER_WAY)
        return not wrong and not self.closed


class _At(NamedTuple):
    """A member of a window that may differ from the store."""

    window: bytes
    member: bytes

    @property
    def message_id(self) -> UUID:
        return id_of(self.member)


@dataclass(slots=True)
class _Found:
    """The differences of the last look: the first 10,000 by name, the others as counts."""

    named: dict[_At, Difference] = field(default_factory=dict)
    more: Counter[tuple[ShardKeys | None, Fault]] = field(default_factory=Counter)
    foreign: dict[bytes, Difference] = field(default_factory=dict)
    messages: int = 0
    reservations: int = 0


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Compares the windows with the store, both read in pages, while submits go on.

    It looks at each difference again: store, Redis, store. A difference counts only if both reads
    of the store agree; and it is checked again after a while, because a submit, a move or a cancel
    writes to the two one after the other. Times that no quota counts any more are left out: windows
    forget them sooner than the store.
    """

    settings: Settings
    clock: Clock
    store: StoreMaintenance
    contents: Contents

    def verify(self) -> Verified:
        """Compare everything. Raises ReservationsUnavailable and StoreUnavailable."""
        opened = self.contents.opened()
        found = _Found()
        for window in filter(scope_of, self.contents.foreign()):
            self._note_foreign(found, window)
        self._look_for_missing(opened, found)
        self._look_for_more(opened, found)
        for _ in range(_LOOKS):
            if all(each.fault is Fault.UNDER_WAY for each in found.named.values()):
                break
            self.clock.sleep(_BETWEEN_LOOKS_SECONDS)
            found.named = self._differing(list(found.named))
        return self._verified(found, opened)

    def _look_for_missing(self, opened: Collection[ShardKeys], found: _Found) -> None:
        memory = timedelta(milliseconds=max(self.contents.fence.reaches_ms.values()))
        for page in self.store.reservations(memory=memory, batch=_BATCH):
            found.messages += len(page)
            expected = {
                at: to_ms(row.send_at)
                for row in page
                for at, keys in self._entries_of(row)
                if keys in opened and at.window not in found.foreign
            }
            for entries in _batches(expected):
                states = zip(entries, self.contents.look(entries), strict=True)
                self._keep(found, [at for at, state in states if state.at_ms != expected[at]])

    def _look_for_more(self, opened: Collection[ShardKeys], found: _Found) -> None:
        for page in self.contents.everything():
            booked: dict[_At, int] = {}
            for held in page:
                if len(held.member) < ID_BYTES:
                    self._note_foreign(found, held.window)
                    continue
                found.reservations += 1
                keys = self.contents.fence.shard_of(held.window)
                if keys is None or keys in opened:
                    booked[_At(held.window, held.member)] = held.at_ms
            for entries in _batches(booked):
                standing = self._standing(entries)
                self._keep(
                    found,
                    [at for at in entries if self._expected_ms(at, standing) != booked[at]],
                )

    @staticmethod
    def _note_foreign(found: _Found, window: bytes) -> None:
        if len(found.foreign) < _MOST_NAMED:
            found.foreign[window] = _difference(Fault.FOREIGN, window, None, None, None)

    def _keep(self, found: _Found, suspects: Sequence[_At]) -> None:
        for at, difference in self._differing(suspects).items():
            if len(found.named) < _MOST_NAMED or at in found.named:
                found.named[at] = difference
            else:
                found.more[self.contents.fence.shard_of(at.window), difference.fault] += 1

    def _differing(self, suspects: Sequence[_At]) -> dict[_At, Difference]:
        """Read both sides again; return the differences about which the store has not changed."""
        differing = {}
        for entries in _batches(suspects):
            before = self._standing(entries)
            states = self.contents.look(entries)
            now_ms = self.contents.now_ms()
            after = self._standing(entries)
            for at, state in zip(entries, states, strict=True):
                standing = after.get(at.message_id)
                if standing != before.get(at.message_id):
                    continue
                expected_ms = self._expected_ms(at, after)
                fault = self._fault(at, expected_ms, state, standing, now_ms)
                if fault is not None:
                    differing[at] = _difference(
                        fault, at.window, at.message_id, expected_ms, state.at_ms
                    )
        return differing

    def _fault(
        self,
        at: _At,
        expected_ms: int | None,
        seen: MemberState,
        standing: ReservationState | None,
        now_ms: int,
    ) -> Fault | None:
        latest_ms = max(ms for ms in (expected_ms, seen.at_ms, 0) if ms is not None)
        reach_ms = self.contents.fence.reaches_ms.get(scope_kind_of(at.window))
        if expected_ms == seen.at_ms or (reach_ms and latest_ms <= now_ms - reach_ms):
            return None
        if seen.at_ms is None:
            return Fault.MISSING
        if expected_ms is not None:
            return Fault.MOVED
        grace_ms = self.settings.reconcile_grace // MILLISECOND
        since_ms = seen.pending_since_ms
        if since_ms is not None and now_ms - since_ms <= grace_ms:
            return Fault.UNDER_WAY
        if standing is not None and standing.frees:
            windows = {entry.window for entry, _ in self._entries_of(standing.row)}
            return Fault.UNDER_WAY if at.window in windows else Fault.ORPHAN
        return Fault.ORPHAN

    def _expected_ms(self, at: _At, standing: Mapping[UUID, ReservationState]) -> int | None:
        """Return the time that a member must have by the store; None where it must not exist."""
        known = standing.get(at.message_id)
        if known is None or not known.holds or at not in dict(self._entries_of(known.row)):
            return None
        return to_ms(known.row.send_at)

    def _standing(self, entries: Iterable[_At]) -> dict[UUID, ReservationState]:
        return self.store.reservation_states(
            list({at.message_id for at in entries}), grace=self.settings.reconcile_grace
        )

    def _entries_of(self, row: ReservationRow) -> Iterator[tuple[_At, ShardKeys]]:
        for scope in row.counted(self.settings.quotas_of):
            keys, window = self.contents.fence.window_of(scope)
            yield _At(window, member_of(row.message_id, row.tail)), keys

    def _verified(self, found: _Found, opened: Mapping[ShardKeys, int]) -> Verified:
        still = self.contents.opened()
        closed = {
            keys for keys in self.contents.fence.keys if opened.get(keys) != still.get(keys, -1)
        }
        named = {
            at: each
            for at, each in found.named.items()
            if self.contents.fence.shard_of(at.window) not in closed
        }
        counts = Counter(each.fault for each in named.values())
        for (keys, fault), many in found.more.items():
            if keys not in closed:
                counts[fault] += many
        counts[Fault.FOREIGN] = len(found.foreign)
        ordered = sorted(
            (*named.values(), *found.foreign.values()),
            key=lambda each: (each.scope, str(each.message_id)),
        )
        return Verified(
            messages=found.messages,
            reservations=found.reservations,
            counts={fault: counts[fault] for fault in Fault},
            differences=tuple(ordered),
            closed=tuple(sorted(keys.shard for keys in closed)),
        )


def _difference(
    fault: Fault,
    window: bytes,
    message_id: UUID | None,
    expected_ms: int | None,
    booked_ms: int | None,
) -> Difference:
    kind, name = scope_of(window) or ("", "")
    return Difference(
        fault=fault,
        scope=str(Scope(kind, name, "")),
        message_id=message_id,
        send_at=None if expected_ms is None else from_ms(expected_ms),
        booked_at=None if booked_ms is None else from_ms(booked_ms),
    )


def _batches(values: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(values)
    while batch := list(islice(iterator, _BATCH)):
        yield batch
