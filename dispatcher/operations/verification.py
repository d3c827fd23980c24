"""Verifies that Redis has exactly the reservations of the messages in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from dispatcher.redis.keys import ShardKeys, scope_of
from dispatcher.reservation.contents import Contents, MemberState
from dispatcher.reservation.encoding import ID_BYTES, id_of, longest_ms, member_of
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.scope import Scope
from dispatcher.settings import Settings
from dispatcher.store.maintenance import ReservationRow, ReservationState, StoreMaintenance
from dispatcher.times.clock import MILLISECOND, Clock
from dispatcher.times.send_time import from_ms, to_ms

_BATCH = 2_000
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
        wrong = sum(count for fault, count in self.counts.items() if fault is not Fault.UNDER_WAY)
        return not wrong and not self.closed


class _Place(NamedTuple):
    """A member of a window."""

    window: bytes
    member: bytes

    @property
    def message_id(self) -> UUID:
        return id_of(self.member)


@dataclass(slots=True)
class _Tally:
    """The differences of the last look: the first 10,000 by their places, the others as counts."""

    foreign: set[bytes]
    named: dict[_Place, Difference] = field(default_factory=dict)
    more: Counter[tuple[ShardKeys | None, Fault]] = field(default_factory=Counter)
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
    rules: RuleBook

    def verify(self) -> Verified:
        """Compare everything. Raises ReservationsUnavailable and StoreUnavailable."""
        opened = self.contents.opened()
        tally = _Tally(set(filter(scope_of, self.contents.foreign())))
        for places in chain(self._missing(tally), self._unexpected(tally)):
            for place, difference in self._differing(places).items():
                if len(tally.named) < _MOST_NAMED or place in tally.named:
                    tally.named[place] = difference
                else:
                    keys = self.contents.fence.shard_of(place.window)
                    tally.more[keys, difference.fault] += 1
        for _ in range(_LOOKS):
            if all(entry.fault is Fault.UNDER_WAY for entry in tally.named.values()):
                break
            self.clock.sleep(_BETWEEN_LOOKS_SECONDS)
            tally.named = self._differing(tally.named)
        return self._verified(tally, opened)

    def _missing(self, tally: _Tally) -> Iterator[Collection[_Place]]:
        """Yield, in pages, where the store has messages that Redis seems to have otherwise."""
        memory = timedelta(milliseconds=self.rules.fresh().longest_ms)
        for page in self.store.reservations(memory=memory, batch=_BATCH):
            tally.messages += len(page)
            expected = {
                place: to_ms(row.send_at)
                for row in page
                for place in self._places_of(row)
                if place.window not in tally.foreign
            }
            states = self.contents.look([*expected])
            pairs = zip(expected, states, strict=True)
            yield [place for place, state in pairs if state.at_ms != expected[place]]

    def _unexpected(self, tally: _Tally) -> Iterator[Collection[_Place]]:
        """Yield, in pages, where Redis has reservations that the store seems to have otherwise."""
        for page in self.contents.everything():
            tally.foreign |= {held.window for held in page if len(held.member) < ID_BYTES}
            booked = {
                _Place(held.window, held.member): held.at_ms
                for held in page
                if len(held.member) >= ID_BYTES
            }
            tally.reservations += len(booked)
            states = self._states(booked)
            yield [
                place
                for place, at_ms in booked.items()
                if self._expected_ms(place, states.get(place.message_id)) != at_ms
            ]

    def _differing(self, places: Collection[_Place]) -> dict[_Place, Difference]:
        """Read both sides again; return the differences about which the store has not changed."""
        if not places:
            return {}
        before = self._states(places)
        members = self.contents.look([*places])
        now_ms = self.contents.now_ms()
        after = self._states(places)
        differing = {}
        for place, member in zip(places, members, strict=True):
            state = after.get(place.message_id)
            fault = self._fault(place, member, state, now_ms)
            if fault is not None and state == before.get(place.message_id):
                expected_ms = self._expected_ms(place, state)
                differing[place] = _difference(fault, place, expected_ms, member.at_ms)
        return differing

    def _fault(
        self, place: _Place, member: MemberState, state: ReservationState | None, now_ms: int
    ) -> Fault | None:
        expected_ms, booked_ms = self._expected_ms(place, state), member.at_ms
        latest_ms = max(expected_ms or 0, booked_ms or 0)
        reach_ms = longest_ms(self.rules.latest.quotas(*(scope_of(place.window) or ("", ""))))
        if expected_ms == booked_ms or (reach_ms and latest_ms <= now_ms - reach_ms):
            return None
        if booked_ms is None:
            return Fault.MISSING
        if expected_ms is not None:
            return Fault.MOVED
        grace_ms, since_ms = self.settings.reconcile_grace // MILLISECOND, member.pending_since_ms
        if since_ms is not None and now_ms - since_ms <= grace_ms:
            return Fault.UNDER_WAY
        if state is not None and state.frees:
            windows = {counted.window for counted in self._places_of(state.row)}
            return Fault.UNDER_WAY if place.window in windows else Fault.ORPHAN
        return Fault.ORPHAN

    def _expected_ms(self, place: _Place, state: ReservationState | None) -> int | None:
        """Return the time that a member must have by the store; None where it must not exist."""
        if state is None or not state.holds or place not in self._places_of(state.row):
            return None
        return to_ms(state.row.send_at)

    def _states(self, places: Collection[_Place]) -> dict[UUID, ReservationState]:
        ids = list({place.message_id for place in places})
        return self.store.reservation_states(ids, grace=self.settings.reconcile_grace)

    def _places_of(self, row: ReservationRow) -> set[_Place]:
        member = member_of(row.message_id, row.tail)
        windows = map(self.contents.fence.window_of, row.counted(self.settings.quotas_of))
        return {_Place(window, member) for _, window in windows}

    def _verified(self, tally: _Tally, opened: Mapping[ShardKeys, int]) -> Verified:
        fence, still = self.contents.fence, self.contents.opened()
        closed = {keys for keys in fence.keys if opened.get(keys) != still.get(keys, -1)}
        differences = [
            difference
            for place, difference in tally.named.items()
            if fence.shard_of(place.window) not in closed
        ]
        counts = Counter(difference.fault for difference in differences)
        for (keys, fault), count in tally.more.items():
            if keys not in closed:
                counts[fault] += count
        counts[Fault.FOREIGN] = len(tally.foreign)
        foreign = (_Place(window, b"") for window in sorted(tally.foreign)[:_MOST_NAMED])
        differences += (_difference(Fault.FOREIGN, place, None, None) for place in foreign)
        differences.sort(key=lambda difference: (difference.scope, str(difference.message_id)))
        return Verified(
            messages=tally.messages,
            reservations=tally.reservations,
            counts={fault: counts[fault] for fault in Fault},
            differences=tuple(differences),
            closed=tuple(sorted(keys.shard for keys in closed)),
        )


def _difference(
    fault: Fault, place: _Place, expected_ms: int | None, booked_ms: int | None
) -> Difference:
    kind, name = scope_of(place.window) or ("", "")
    return Difference(
        fault=fault,
        scope=str(Scope(kind, name, "")),
        message_id=place.message_id if place.member else None,
        send_at=None if expected_ms is None else from_ms(expected_ms),
        booked_at=None if booked_ms is None else from_ms(booked_ms),
    )
