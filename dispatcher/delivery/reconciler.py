"""Make Redis agree with SQL: rebuild lost data, settle and release reservations."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from dispatcher.delivery.sweep import BATCH, in_batches
from dispatcher.errors import InvalidValue, LimitersUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.limiters.permits import Permit, Permits
from dispatcher.redis.keys import PermitKeys, ShardKeys
from dispatcher.reservation.upkeep import Rebuild, Reserved, Unconfirmed, Upkeep
from dispatcher.settings import Settings
from dispatcher.store.maintenance import ReservationRow, StoreMaintenance
from dispatcher.store.void_ids import ReservedTime, Settled, VoidIds
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

MARKER_SPARE = timedelta(seconds=10)
"""How long a rebuild may pause between two pages, or die, before another one takes over."""
_TIDY_KEYS = 500
_ROOMS_AT_ONCE = 100
"""For how many limits one run brings snoozed messages forward."""
_ROWS_AT_ONCE = 5_000
"""How many reservations, or permits, a rebuild reads from the store and restores at once."""
_EVER = 10**15
"""A time in ms after all others: what is given up is released, also when booked since."""
_SHARDS_AT_ONCE = 4
"""How many shards are closed together to be rebuilt; the rows are read once for all of them."""
_FEW_ROWS = 10_000
"""Up to so many rows all shards are rebuilt together."""

OnRows = Callable[[int, int], object]
"""Called with the number of rows that a rebuild has read, and of those to read."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """``rebuilt`` parts of Redis, and ``restored`` reservations: missing, or at another time.

    ``confirmed`` ones that the store knows, ``released`` ones that it does not or no longer needs.
    """

    rebuilt: int = 0
    restored: int = 0
    confirmed: int = 0
    released: int = 0


@dataclass(kw_only=True)
class Reconciler:
    """Any number may run side by side."""

    settings: Settings
    clock: Clock
    store: StoreMaintenance
    void_ids: VoidIds
    upkeep: Upkeep
    permits: Permits

    def reconcile(self, *, settle: timedelta | None = None) -> ReconcileResult:
        """Make Redis agree with the store.

        Where a master of a cluster cannot be reached or takes no writes, what it lost stays closed,
        and what the others lost is rebuilt. All else waits until every master answers.

        ``settle`` is how long to let submits that are under way finish before a rebuild reads the
        store (default: the setting). Raises ReservationsUnavailable and StoreUnavailable.
        """
        rebuild = self.upkeep.begin()
        rebuilt = 0
        if rebuild is not None:
            rebuilt = self._rebuild(rebuild, self.settings.settle if settle is None else settle)
        restored = self._restore_missing()
        unconfirmed = self._settle_unconfirmed()
        released = in_batches(self._release_unneeded)
        self._bring_forward()
        self.upkeep.tidy(keys_at_once=_TIDY_KEYS)
        if rebuild is not None and rebuild.failure is not None:
            raise rebuild.failure
        return ReconcileResult(
            rebuilt,
            restored + unconfirmed["corrected"],
            unconfirmed["confirmed"],
            released + unconfirmed["released"],
        )

    def rebuild(
        self, shards: Collection[int] | None = None, *, progress: OnRows | None = None
    ) -> tuple[int, ...]:
        """Close shards of the windows (default: all) and fill them again from the store.

        A few at a time, while the others serve; together where there is little to read. Return the
        shards that were rebuilt; those missing are being rebuilt by another process. One that dies
        here leaves its shards closed, until reconcile takes them over. Raises InvalidValue,
        ReservationsUnavailable, StoreUnavailable.
        """
        known = range(self.settings.shards)
        chosen = list(known) if shards is None else sorted(set(shards))
        for shard in chosen:
            if shard not in known:
                raise InvalidValue("shards", f"there is no shard {shard}", f"0 to {known[-1]}")
        rows = self.store.count_reservations(memory=self.upkeep.memory)
        # Each group waits for the settle time, which is longer than few rows take.
        at_once = len(chosen) if rows <= _FEW_ROWS else _SHARDS_AT_ONCE
        starts = range(0, len(chosen), max(1, at_once))
        read = 0
        rebuilt: list[int] = []

        def tell(rows_read: int) -> None:
            nonlocal read
            read += rows_read
            if progress is not None:
                progress(read, max(read, rows * len(starts)))

        tell(0)
        for start in starts:
            rebuild = self.upkeep.close(chosen[start : start + at_once])
            if rebuild is None:
                continue
            opened = self._rebuild(rebuild, self.settings.settle, tell)
            if opened == len(rebuild.shards):
                rebuilt += [keys.shard for keys in rebuild.shards]
        return tuple(rebuilt)

    def _rebuild(
        self, rebuild: Rebuild, settle: timedelta, tell: Callable[[int], None] | None = None
    ) -> int:
        windows, permits = rebuild.of(ShardKeys), rebuild.of(PermitKeys)
        if windows.parts:
            # A submit that reserved before the loss and commits after the store is read would be
            # missed. It either commits within the settle time, or looks at its reservation again.
            # Permits need no wait: a claim is committed before it asks for its permit.
            self.clock.sleep(settle.total_seconds())
        self.upkeep.wipe(rebuild)
        fault("rebuild.after_wipe")
        if windows.parts:
            for page in self.store.reservations(memory=self.upkeep.memory, batch=_ROWS_AT_ONCE):
                self.upkeep.restore(rebuild, self._reserved(page))
                if tell is not None:
                    tell(len(page))
        fault("rebuild.after_restore")
        opened = self.upkeep.open(windows)
        fault("rebuild.after_windows")
        if permits.parts:
            life = self.settings.settle + MARKER_SPARE
            under_way: list[Permit] = []
            for rows in self.store.permits(memory=self.permits.memory, batch=_ROWS_AT_ONCE):
                known = [(Permit(*row[:4], scopes=row.scopes), row.age) for row in rows]
                self.permits.restore(known, permits.permit_markers, marker_life=life)
                under_way += [
                    permit for (permit, _), row in zip(known, rows, strict=True) if row.is_under_way
                ]
            self._correct(under_way, permits)
        opened_logs = self.upkeep.open(permits)
        opened += opened_logs
        log.warning("rebuilt %d of %d parts of Redis from SQL", opened, len(rebuild.parts))
        if opened_logs:  # all snoozed messages are due: their turns came from logs that are gone
            pages = self.store.snoozed(batch=BATCH)
            count = sum(len(self.store.bring_forward(page)) for page in pages)
            if count:
                log.info("%d snoozed messages are due now: the permit logs were rebuilt", count)
        return opened

    def _correct(self, under_way: Sequence[Permit], permits: Rebuild) -> None:
        """Look again at claims whose permits were restored, before the logs open.

        A claim that was put back or recorded after it was read found a log without its permit. One
        that is put back or recorded after this look finds the permit there.
        """
        for start in range(0, len(under_way), BATCH):
            batch = under_way[start : start + BATCH]
            ages = self.store.ages([(permit.message_id, permit.token) for permit in batch])
            gone, ended = [], []
            for permit in batch:
                attempt = permit.message_id, permit.token
                if attempt not in ages:
                    gone.append(permit)
                elif (age := ages[attempt]) is not None:
                    ended.append((permit, age))
            if gone:
                self.permits.give_back(gone)
            if ended:
                self.permits.settle(ended)
            self.upkeep.restore(permits, ())  # keeps the marker alive

    def _restore_missing(self) -> int:
        """Look, once after each rebuild, for messages stored while it read the store."""
        grace = self.settings.reconcile_grace
        unchecked = self.upkeep.unchecked(older_than=grace)
        if not unchecked:
            return 0
        longest = max(grace, self.settings.transaction_grace)
        created = (min(unchecked.values()) - longest, max(unchecked.values()) + grace)
        pages = self.store.reservations(memory=self.upkeep.memory, batch=BATCH, created=created)
        restored = sum(self.upkeep.restore_missing(self._reserved(page)) for page in pages)
        self.upkeep.mark_checked(unchecked)
        return restored

    def _settle_unconfirmed(self) -> Counter[str]:
        did: Counter[str] = Counter(confirmed=0, released=0, corrected=0)
        left: set[UUID] = set()
        entries_left: Counter[ShardKeys] = Counter()

        def settle(limit: int) -> int:
            entries = self.upkeep.unconfirmed(
                older_than=self.settings.reconcile_grace, limit=limit, skip=entries_left
            )
            if not entries:
                return 0
            holding = self.store.reserved_times([entry.message_id for entry in entries])
            being_moved = self._bar_moves(entries, holding)
            fault("reconcile.after_look_up")
            settled = Settled({}, set(), set())
            if missing := {entry.message_id for entry in entries} - holding.keys():
                # The store has no message for them: from now on it never will.
                settled = self.void_ids.give_up(list(missing))
                fault("reconcile.after_giving_up")
            holding |= settled.holding
            left.update(settled.under_way, being_moved)
            entries_left.update(entry.keys for entry in entries if entry.message_id in left)
            decided = [
                entry._replace(before_ms=_EVER) if entry.message_id in settled.void else entry
                for entry in entries
                if entry.message_id not in left
            ]
            did["corrected"] += self.upkeep.confirm(decided, holding)
            confirmed = sum(entry.message_id in holding for entry in decided)
            did["confirmed"] += confirmed
            did["released"] += len(decided) - confirmed
            return len(entries)

        in_batches(settle)
        return did

    def _bar_moves(
        self, entries: Sequence[Unconfirmed], holding: dict[UUID, ReservedTime]
    ) -> set[UUID]:
        """Let no move take effect whose reservation is old; return those that still may.

        Such a reservation has a tail that the row does not have: the process that moves the
        message stood still or died. Both reservations of a message that still may move are left.
        Notes in ``holding`` what the others have then.
        """
        moving = {
            entry.message_id
            for entry in entries
            if entry.tail and entry.message_id in holding
            and entry.tail != holding[entry.message_id].tail
        }  # fmt: skip
        if not moving:
            return moving
        try:
            barred = self.store.bar_moves(sorted(moving))
        except StoreUnavailable as error:
            log.warning(
                "could not end the unfinished moves of %d messages; the next reconcile tries "
                "again: %s", len(moving), error,
            )  # fmt: skip
            return moving
        fault("reconcile.after_barring")
        times = self.store.reserved_times(sorted(barred))
        for message_id in barred:
            del holding[message_id]
        holding |= times
        return moving - barred

    def _reserved(self, rows: Iterable[ReservationRow]) -> list[Reserved]:
        kinds = self.settings.quotas_of
        return [Reserved(row.message_id, row.counted(kinds), row.send_at, row.tail) for row in rows]

    def _bring_forward(self) -> None:
        """Let as many messages that wait for a limit be due now as permits were given back."""
        come = 0
        try:
            for log_name, ids in self.permits.waiting(logs=_ROOMS_AT_ONCE, messages=BATCH).items():
                called = self.store.bring_forward(ids) if ids else set[UUID]()
                self.permits.give_turns(log_name, ids, called)
                come += len(called)
        except LimitersUnavailable as error:
            log.warning(
                "could not bring snoozed messages forward; they stay due when they were: %s", error
            )
        if come:
            log.info("%d snoozed messages are due now: permits were given back", come)

    def _release_unneeded(self, limit: int) -> int:
        rows = self.store.unreleased(limit=limit)
        if rows:
            fault("reconcile.before_release")
            self.upkeep.release(self._reserved(rows))
            fault("reconcile.after_release")
            self.store.mark_released([row.message_id for row in rows])
        return len(rows)
