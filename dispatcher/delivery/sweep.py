"""The sweep: duties that make the rest of the house forgiving.

One more, which books places, is ``submission/catch_up.py``.

Any number of sweeps may run side by side; each duty works in bounded batches and answers how much
it did.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

from dispatcher.broker.queue import Queue, Ticket
from dispatcher.delivery.send_log import LeftLog, SendLogs
from dispatcher.errors import (
    InvalidValue,
    LimitersUnavailable,
    QueueUnavailable,
    ReservationsUnavailable,
    StoreUnavailable,
)
from dispatcher.faults import fault
from dispatcher.limiters import Permit, Permits
from dispatcher.message import Status
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation import Rebuild, Reserved, Stored, Unconfirmed, Upkeep
from dispatcher.settings import Settings
from dispatcher.store import Due, Kept, Messages, Place, Settled, StoreUpkeep
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

MARKER_SPARE = timedelta(seconds=10)
"""How long a rebuild may pause between two pages, or die, before another one takes over."""
_BATCH = 1_000
_MOST_BATCHES = 20
_TIDY_KEYS = 500
_ROOMS_AT_ONCE = 100
"""For how many limits one turn brings snoozed messages forward."""
_LOGS_AT_ONCE = 200
"""How many send logs one turn of rescue reads."""
_ROWS_AT_ONCE = 5_000
"""How many reservations, or permits, a rebuild reads from the store and restores at once."""
_APART = timedelta(milliseconds=20)
_SPREAD = timedelta(seconds=1)
"""How far apart the messages of unknown outcome come, and how long that may take them all."""
_EVER = 10**15
"""A time in ms after all others: what is given up goes, also where somebody asked for it since."""
_ENDS = {
    Status.HELD: Transition.HELD,
    Status.FAILED: Transition.FAILED,
    Status.EXPIRED: Transition.EXPIRED,
}
"""What becomes of a rescued message that is not tried again."""
_SHARDS_AT_ONCE = 4
"""How many shards are closed together to be rebuilt; the rows are read once for all of them."""
_FEW_ROWS = 10_000
"""Up to so many rows all shards are rebuilt together."""

OnRows = Callable[[int, int], object]
"""Told how many rows a rebuild has read, and how many there are to read."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one ``reconcile`` did.

    ``rebuilt`` parts of Redis, ``restored`` reservations that were missing or at another time than
    in the store, ``confirmed`` ones that the store knows, ``released`` ones that it does not or no
    longer needs.
    """

    rebuilt: int = 0
    restored: int = 0
    confirmed: int = 0
    released: int = 0


class Sweep:
    """The use cases of the beat job."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        store: StoreUpkeep,
        messages: Messages,
        windows: Upkeep,
        permits: Permits,
        queue: Queue,
        journal: Journal,
        send_logs: SendLogs,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._messages = messages
        self._windows = windows
        self._permits = permits
        self._queue = queue
        self._journal = journal
        self._send_logs = send_logs

    def enqueue_due(self) -> int:
        """Hand to Celery what comes near, and again what is due but was not claimed.

        Return how many messages. Where the broker takes nothing they stay for the next turn.
        """
        total = 0
        for _ in range(_MOST_BATCHES):
            due = self._store.take_due(at_most=_BATCH, grace=self._settings.enqueue_grace)
            if not due:
                break
            fault("enqueue_due.after_take")
            try:
                self._queue.enqueue(self._tickets(due))
            except QueueUnavailable as error:
                log.warning("%d messages stay for the next sweep: %s", len(due), error)
                self._messages.enqueue_again([each.message_id for each in due])
                break
            total += len(due)
            if len(due) < _BATCH:
                break
        return total

    def hand_over_again(self, message_ids: Sequence[UUID]) -> None:
        """Let the next ``enqueue_due`` hand these over, whose tasks are lost.

        Without the store they are handed over after their grace, as what is lost unseen.
        """
        try:
            for start in range(0, len(message_ids), _BATCH):
                self._messages.enqueue_again(message_ids[start : start + _BATCH])
        except StoreUnavailable as error:
            log.warning("%d messages wait for their grace: %s", len(message_ids), error)

    def _tickets(self, due: Sequence[Due]) -> list[Ticket]:
        """Return the tickets of what is due.

        A message may be the death of every worker that hands it over, and all that the worker had
        claimed with it was rescued too. So those of unknown outcome go each in a task of its own,
        in an order nobody can foresee and a little apart: what comes before is done by then, what
        comes after is not claimed yet.
        """
        suspects = [each for each in due if each.is_suspect]
        random.shuffle(suspects)
        apart = min(_APART, _SPREAD / max(1, len(suspects)))
        now = self._clock.now()
        return [
            *(
                Ticket(*each[:3], is_first=each.is_first) for each in due if not each.is_suspect
            ),
            *(
                Ticket(each.message_id, each.channel, max(now, each.next_attempt_at) + n * apart,
                       alone=True, is_first=False)
                for n, each in enumerate(suspects)
            ),
        ]  # fmt: skip

    def rescue(self) -> int:
        """Free the messages whose worker died or froze; return how many.

        First what workers of this machine had surely not begun to send, by their send logs. While
        more of these are left than it reads in a turn, it ends no claim.
        """
        put_back = 0

        def put_back_unbegun(left: LeftLog) -> None:
            nonlocal put_back
            put_back += self._put_back(left)

        are_all_read = self._send_logs.settle(put_back_unbegun, at_most=_LOGS_AT_ONCE)
        if put_back:
            log.warning(
                "%d messages put back that their worker had not begun to send: it died, or could "
                "not put them back itself",
                put_back,
            )
        if not are_all_read:
            return put_back
        rescued = _in_batches(self._rescue)
        if rescued:
            log.warning("%d messages rescued: their outcome is unknown", rescued)
        return put_back + rescued

    def _put_back(self, left: LeftLog) -> int:
        """Put back what a worker had claimed and not begun to send, with its permits."""
        found = self._store.unbegun(left.unbegun, mark=left.mark)
        if not found:
            return 0
        try:  # first: asked again, the store does not tell them any more
            self._permits.give_back([Permit(*each[:4]) for each in found])
        except LimitersUnavailable as error:
            log.warning("%d unused permits are given back later: %s", len(found), error)
        fault("rescue.before_put_back")
        self._store.put_back(found, wait=self._settings.claim_ttl)
        for each in found:
            tell = partial(self._journal.tell_of, message_id=each[0], channel=each.channel)
            tell(Transition.RESCUED, attempt=each.attempt)
            if each.status in _ENDS:
                tell(_ENDS[each.status], attempt=each.attempt, outcome="temporary")
        return len(found)

    def _rescue(self) -> int:
        rescued = self._store.rescue(at_most=_BATCH)
        for message_id, channel, attempt, status in rescued:
            tell = partial(self._journal.tell_of, message_id=message_id, channel=channel)
            tell(Transition.RESCUED, attempt=attempt)
            if status in _ENDS:
                tell(_ENDS[status], attempt=attempt, outcome="unknown")
        return len(rescued)

    def prune(self) -> int:
        """Delete messages that ended longer ago than the retention; return how many."""
        keep = self._settings.retention
        return _in_batches(lambda: self._store.prune(older_than=keep, at_most=_BATCH))

    def reconcile(self, *, settle: timedelta | None = None) -> Reconciled:
        """Make Redis agree with the store.

        Rebuild what Redis lost; look up reservations that were not confirmed within the grace;
        free the places of cancelled and expired messages; forget what no quota counts any more;
        set aside what stands under the names of windows and is none, and rebuild its shards;
        bring forward snoozed messages for which permits that were given back made room, and all of
        them where the permit logs were rebuilt.
        ``settle`` is how long to let submits that are under way finish before a rebuild reads the
        store (default: the setting). Raises ReservationsUnavailable and StoreUnavailable.
        """
        try:
            return self._reconcile(self._settings.settle if settle is None else settle)
        except ReservationsUnavailable:
            # One key that is not ours fails every turn.
            self._windows.set_aside()
            raise

    def _reconcile(self, settle: timedelta) -> Reconciled:
        rebuild = self._windows.begin()
        rebuilt = 0
        if rebuild is not None:
            rebuilt = self._rebuild(rebuild, settle)
        restored = self._restore_stragglers()
        confirmed, orphans, corrected = self._settle_unconfirmed()
        released = _in_batches(self._release_unneeded)
        self._windows.tidy(keys_at_once=_TIDY_KEYS)
        self._bring_forward()
        return Reconciled(rebuilt, restored + corrected, confirmed, released + orphans)

    def rebuild(
        self, shards: Collection[int] | None = None, *, progress: OnRows | None = None
    ) -> tuple[int, ...]:
        """Close shards of the windows (default: all) and fill them again from the store.

        A few at a time, while the others serve; together where there is little to read. Return the
        shards that were rebuilt; those missing are being rebuilt by another process. One that dies
        here leaves its shards closed, until reconcile takes them over. Raises InvalidValue,
        ReservationsUnavailable, StoreUnavailable.
        """
        chosen = self._chosen(shards)
        rows = self._store.count_places(memory=self._windows.memory)
        # Each group waits for the settle time, which is longer than few rows take.
        at_once = len(chosen) if rows <= _FEW_ROWS else _SHARDS_AT_ONCE
        groups = [
            chosen[start : start + at_once] for start in range(0, len(chosen), max(1, at_once))
        ]
        total = rows * len(groups)
        read = 0
        rebuilt: list[int] = []

        def tell(rows: int) -> None:
            nonlocal read
            read += rows
            if progress is not None:
                progress(read, max(read, total))

        tell(0)
        for group in groups:
            rebuild = self._windows.close(group)
            if rebuild is None:
                continue
            opened = self._rebuild(rebuild, self._settings.settle, tell)
            if opened == len(rebuild.shards):
                rebuilt += [keys.shard for keys in rebuild.shards]
        return tuple(rebuilt)

    def _chosen(self, shards: Collection[int] | None) -> list[int]:
        known = range(self._settings.shards)
        if shards is None:
            return list(known)
        for shard in shards:
            if not isinstance(shard, int) or shard not in known:
                raise InvalidValue("shards", f"there is no shard {shard}", f"0 to {known[-1]}")
        return sorted(set(shards))

    def _rebuild(
        self, rebuild: Rebuild, settle: timedelta, tell: Callable[[int], None] | None = None
    ) -> int:
        # A submit that reserved before the loss and commits after the store is read would be
        # missed. It either commits within the settle time, or looks at its reservation again.
        self._clock.sleep(settle.total_seconds())
        self._windows.wipe(rebuild)
        fault("rebuild.after_wipe")
        windows, permits = rebuild.of_windows, rebuild.of_permits
        if windows.parts:
            for page in self._store.places(memory=self._windows.memory, batch=_ROWS_AT_ONCE):
                self._windows.restore(rebuild, self._reserved(page))
                if tell is not None:
                    tell(len(page))
        fault("rebuild.after_restore")
        opened = self._windows.open(windows)
        fault("rebuild.after_windows")
        if permits.parts:
            life = self._settings.settle + MARKER_SPARE
            under_way: list[Permit] = []
            for taken in self._store.permits(memory=self._permits.memory, batch=_ROWS_AT_ONCE):
                known = [(Permit(*each[:4]), each.age) for each in taken]
                self._permits.restore(known, marker=rebuild.marker, marker_life=life)
                under_way += [
                    permit
                    for (permit, _), each in zip(known, taken, strict=True)
                    if each.is_under_way
                ]
            self._correct(under_way, permits)
        opened_logs = self._windows.open(permits)
        opened += opened_logs
        log.warning("%d of %d parts of Redis rebuilt", opened, len(rebuild.parts))
        if opened_logs:
            self._bring_all_forward()
        return opened

    def _correct(self, under_way: Sequence[Permit], permits: Rebuild) -> None:
        """Look again at claims whose permits were restored, before the logs open.

        What was put back or recorded after it was read told a log that had no permit of it. What is
        so after this look finds the permit there.
        """
        for start in range(0, len(under_way), _BATCH):
            some = under_way[start : start + _BATCH]
            ages = self._store.ages([(each.message_id, each.token) for each in some])
            gone = [each for each in some if (each.message_id, each.token) not in ages]
            ended = [
                (each, age)
                for each in some
                if (age := ages.get((each.message_id, each.token))) is not None
            ]
            if gone:
                self._permits.give_back(gone)
            if ended:
                self._permits.settle(ended)
            self._windows.hold(permits)

    def _bring_all_forward(self) -> None:
        """Let all snoozed messages be due: the new logs judge them once more.

        Their turns were told by logs and lines that are gone, and the new logs may have room.
        """
        count = 0
        for snoozed in self._store.snoozed(batch=_BATCH):
            count += len(self._store.bring_forward(snoozed))
        if count:
            log.info("%d snoozed messages are due now: the permit logs were rebuilt", count)

    def _restore_stragglers(self) -> int:
        """Look, once after each rebuild, for messages stored while it read the store."""
        grace = self._settings.reconcile_grace
        unchecked = self._windows.unchecked(older_than=grace)
        if not unchecked:
            return 0
        longest = max(grace, self._settings.transaction_grace)
        created = (min(unchecked.values()) - longest, max(unchecked.values()) + grace)
        restored = 0
        for page in self._store.places(memory=self._windows.memory, batch=_BATCH, created=created):
            restored += self._windows.put_back(self._reserved(page))
        self._windows.mark_checked(unchecked)
        return restored

    def _settle_unconfirmed(self) -> tuple[int, int, int]:
        known, unknown, corrected = 0, 0, 0
        waiting: Counter[ShardKeys] = Counter()
        for _ in range(_MOST_BATCHES):
            found = self._windows.unconfirmed(
                older_than=self._settings.reconcile_grace, at_most=_BATCH, skip=waiting
            )
            if not found:
                break
            being_moved = self._bar_moves(found)
            holding = self._store.holding([each.message_id for each in found])
            fault("reconcile.after_look_up")
            settled = self._give_up(found, holding)
            holding |= settled.holding
            left = settled.under_way | (being_moved & holding.keys())
            stored = {message_id: Stored(*kept) for message_id, kept in holding.items()}
            some = [each for each in found if each.message_id not in left]
            # Asked for while all have the ages they were found with: if this process dies now, what
            # it puts down stays, and is to be found by the next sweep.
            beside = self._beside_holds(some, stored)
            some = [
                each._replace(before_ms=_EVER) if each.message_id in settled.void else each
                for each in some
            ]
            corrected += self._windows.confirm([*some, *beside], stored)
            confirmed = sum(each.message_id in holding for each in some)
            known, unknown = known + confirmed, unknown + len(some) - confirmed
            if len(found) < _BATCH:
                break
            waiting.update(each.keys for each in found if each.message_id in left)
        return known, unknown, corrected

    def _bar_moves(self, found: Sequence[Unconfirmed]) -> set[UUID]:
        """Let no move take effect whose hold is old, and return those that may do so yet.

        Whoever is moving the message stood still, or has died: the hold may go then.
        """
        held = {each.message_id for each in found if each.is_hold}
        if not held:
            return held
        try:
            barred = self._store.bar_moves(sorted(held))
        except StoreUnavailable as error:
            log.warning("%d holds stay for the next sweep: %s", len(held), error)
            return held
        fault("reconcile.after_barring")
        return held - barred

    def _beside_holds(
        self, found: Sequence[Unconfirmed], stored: Collection[UUID]
    ) -> list[Unconfirmed]:
        """Return the places of the messages whose holds are settled, also where none is left."""
        held = {each.message_id for each in found if each.is_hold} & set(stored)
        if not held:
            return []
        return self._windows.places(found, self._reserved(self._store.places_of(sorted(held))))

    def _give_up(self, found: Sequence[Unconfirmed], holding: Mapping[UUID, Kept]) -> Settled:
        """Make sure that what the store does not know to need its place is never stored."""
        missing = {each.message_id for each in found} - holding.keys()
        if not missing:
            return Settled({}, set(), set())
        settled = self._store.give_up(list(missing))
        fault("reconcile.after_giving_up")
        return settled

    def _reserved(self, places: Iterable[Place]) -> list[Reserved]:
        kinds = self._settings.quotas_of
        return [Reserved(each.message_id, each.counted(kinds), each.send_at) for each in places]

    def _bring_forward(self) -> None:
        """Let messages that wait for a limit be due now where room was made for them.

        As many as permits were given back, so that a herd stays where it is.
        """
        try:
            waiting = self._permits.waiting(logs=_ROOMS_AT_ONCE, each=_BATCH)
            if not waiting:
                return
            ids = [id_ for some in waiting.values() for id_ in some][:_BATCH]
            chosen = set(ids)
            come = self._store.bring_forward(ids) if ids else set[UUID]()
            self._permits.called(
                {
                    log: [each for each in some if each in chosen]
                    for log, some in waiting.items()
                    if not some or chosen & {*some}
                },
                come,
            )
        except LimitersUnavailable as error:
            log.warning("snoozed messages wait for their turns: %s", error)
            return
        if come:
            log.info("%d snoozed messages are due now: permits were given back", len(come))

    def _release_unneeded(self) -> int:
        places = self._store.unreleased(at_most=_BATCH)
        if places:
            fault("reconcile.before_release")
            self._windows.release(self._reserved(places))
            fault("reconcile.after_release")
            self._store.mark_released([place.message_id for place in places])
        return len(places)


def _in_batches(work: Callable[[], int]) -> int:
    total = 0
    for _ in range(_MOST_BATCHES):
        done = work()
        total += done
        if done < _BATCH:
            break
    return total
