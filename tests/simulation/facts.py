"""What is known of a story beside what the servers hold in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from dispatcher.errors import StoreUnavailable
from dispatcher.limiters.permits import Permit, PermitAnswer, Permits
from dispatcher.message import Message, Status
from dispatcher.store.claims import Claim, Claims, Delays, Failure, Success
from dispatcher.store.database import Database
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.telemetry.journal import Event, Transition
from tests.simulation.servers import Row, Try
from tests.simulation.setting import RETENTION

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

KNOWN_WITHIN_US = 6_000_000
"""How long after a change a process may judge by what was before: the bound, and a slow read."""
Acquire = Callable[..., list[PermitAnswer]]
_OptOut = tuple[str, str | None]
"""Who gets nothing, and on which channel: None stands for all."""


@dataclass(slots=True)
class Asked:
    """One submit, and what its caller was told: nothing, as long as ``told`` is empty.

    ``ids`` are those under which it tried to book, those of a batch share them; ``leaks`` tells
    that giving one back failed. It ``began_us``, and ``at_us`` is when an ``answer`` came, both by
    the database's clock.
    """

    key: str | None
    tag: str
    ids: list[UUID] = field(default_factory=list)
    told: str = ""
    answer: UUID | None = None
    status: Status | None = None
    at_us: int = 0
    leaks: bool = False
    server: int = 0
    began_us: int = 0
    process: str = ""
    reminds: dict[str, Any] = field(default_factory=dict)
    """Of which event, as the line of the call has it."""


@dataclass(slots=True)
class OptOuts:
    """Who was said to get nothing, as far as those know who said so.

    ``perhaps`` has all that was ever asked for.
    """

    perhaps: set[_OptOut] = field(default_factory=set)
    certain: set[_OptOut] = field(default_factory=set)
    _removals: Counter[_OptOut] = field(default_factory=Counter)
    _under_way: Counter[_OptOut] = field(default_factory=Counter)

    def asked(self, who: _OptOut) -> int:
        """Begin to opt out; return what :meth:`confirmed` wants."""
        self.perhaps.add(who)
        return self._removals[who]

    def confirmed(self, who: _OptOut, removals: int) -> None:
        """It is done, and holds unless somebody takes it back meanwhile."""
        if self._removals[who] == removals and not self._under_way[who]:
            self.certain.add(who)

    @contextmanager
    def removing(self, who: _OptOut) -> Iterator[None]:
        """While somebody takes it back nobody knows whether it holds."""
        self._removals[who] += 1
        self._under_way[who] += 1
        self.certain.discard(who)
        try:
            yield
        finally:
            self._under_way[who] -= 1

    def has(self, row: Row | Message, among: Iterable[_OptOut]) -> bool:
        return not {(row.recipient, row.channel), (row.recipient, None)}.isdisjoint(among)


@dataclass(slots=True)
class Change:
    """A change of a tenant's ``quotas`` or ``limits``; None ends them.

    Unless it is sure, nobody knows whether it was made.
    """

    what: str
    tenant: str
    rules: Sequence[str] | None
    began_us: int
    ended_us: int = 2**63
    is_sure: bool = False


@dataclass(slots=True)
class OwnRules:
    """``unread``: which process could not read what has changed, and when."""

    changes: list[Change] = field(default_factory=list)
    unread: list[tuple[str, int]] = field(default_factory=list)

    @contextmanager
    def changing(
        self, what: str, tenant: str, rules: Sequence[str] | None, now_us: Callable[[], int]
    ) -> Iterator[Change]:
        change = Change(what, tenant, rules, now_us())
        self.changes.append(change)
        try:
            yield change
        finally:
            change.ended_us = now_us()

    def known(
        self, what: str, tenant: str, process: str, began_us: int, until_us: int
    ) -> Sequence[str] | str | None:
        """Return the rules by which alone a process judged a tenant meanwhile; "": nobody knows."""
        since_us = began_us - KNOWN_WITHIN_US
        begun = [
            change for change in self.changes
            if (change.what, change.tenant) == (what, tenant) and change.began_us <= until_us
        ]  # fmt: skip
        last = max(begun, key=lambda change: change.began_us, default=None)
        if last is None:
            return None
        overlaps = any(change is not last and change.ended_us >= last.began_us for change in begun)
        is_known = last.is_sure and last.ended_us < since_us and not overlaps
        unread = any(who == process and since_us <= at_us <= until_us for who, at_us in self.unread)
        return last.rules if is_known and not unread else ""


class Pruned(NamedTuple):
    row: Row
    tries: list[Try]
    at: datetime | None = None


@dataclass(slots=True)
class Facts:
    """What callers were told, and what the store held once."""

    asked: list[Asked] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The lines of calls about events and series."""
    cancelled: dict[UUID, int] = field(default_factory=dict)
    perhaps_cancelled: set[UUID] = field(default_factory=set)
    opt_outs: OptOuts = field(default_factory=OptOuts)
    own_rules: OwnRules = field(default_factory=OwnRules)
    committed_late: set[UUID] = field(default_factory=set)
    """Messages that keep their time although another may have booked it: of a transaction, of a
    batch of all or none, or with a key and without an answer of Redis."""
    perhaps_over_quota: set[UUID] = field(default_factory=set)
    """Messages that were perhaps stored late, and whose callers have no answer."""
    pruned: dict[UUID, Pruned] = field(default_factory=dict)
    refused: set[UUID] = field(default_factory=set)
    """Messages that were once without a permit."""
    delays: Counter[tuple[UUID, datetime]] = field(default_factory=Counter)
    """How often the delay of a message was told, by its promised time."""
    wrong: list[str] = field(default_factory=list)
    ended: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        if event.kind is Transition.DELAYED and event.message is not None:
            self.delays[event.message_id, event.message.send_at] += 1

    def watching(self, permits: Permits) -> Acquire:
        """Return how to ask for them so that what is refused is noted, and holds no permit."""
        acquire = permits.acquire

        def watched(asked: Sequence[Permit], **options: Any) -> list[PermitAnswer]:
            answers = acquire(asked, **options)
            pairs = zip(asked, answers, strict=True)
            refused = [permit for permit, answer in pairs if not answer.allowed]
            self.refused.update(permit.message_id for permit in refused)
            for permit in refused:
                for named in (permit.scopes or {}).items():
                    log = permits._keys_of(":".join(named)).further(*named)
                    at = permits._client.zscore(log, permit.member)
                    if at is not None and at % 1 == 0:  # else a rebuild put it there
                        self.wrong.append(f"{permit.message_id} was refused and has a permit")
            return answers

        return watched


class WatchedClaims(Claims):
    """Claims, of which none is ended by one that is not the last: but by a success."""

    def __init__(self, database: Database, world: World, **options: Any) -> None:
        super().__init__(database, **options)
        self._world = world

    def claim(self, message_ids: Sequence[UUID], **options: Any) -> list[Claim]:
        claims = super().claim(message_ids, **options)
        facts, opt_outs = self._world.facts, self._world.facts.opt_outs
        for claim in claims:
            if opt_outs.has(claim.message, opt_outs.certain):
                facts.wrong.append(f"{claim.message.id} was claimed for one who opted out")
        return claims

    def record(
        self, successes: Sequence[Success], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        others = self._of_others(failure.claim for failure in failures)
        expired = super().record(successes, failures, enqueue_in=enqueue_in)
        self._look_again(others)
        return expired

    def put_back(self, snoozed: Iterable[tuple[Claim, timedelta]], **options: Any) -> Delays:
        pairs = list(snoozed)
        others = self._of_others(claim for claim, _ in pairs)
        delays = super().put_back(pairs, **options)
        self._look_again(others)
        return delays

    def _of_others(self, claims: Iterable[Claim]) -> list[UUID]:
        rows = ((self._world.store.row(claim.message.id), claim.token) for claim in claims)
        return [
            row.id for row, token in rows
            if row and row.status is Status.SENDING and row.claim_token != token
        ]  # fmt: skip

    def _look_again(self, message_ids: Iterable[UUID]) -> None:
        for id_ in message_ids:
            row = self._world.store.row(id_)
            if row is None or row.status is not Status.SENDING:
                self._world.facts.wrong.append(f"the claim of {id_} was ended by an older one")


class WatchedSettings:
    """Settings of scopes as one process reaches them; when they cannot be read is noted."""

    def __init__(self, reached: Any, process: Process, world: World) -> None:
        self._process, self._world = process, world
        self.put = reached.put
        self._changed = reached.changed

    def changed(self, *within: timedelta | None) -> Any:
        try:
            return self._changed(*within)
        except StoreUnavailable:
            noted = self._process.name, self._world.db_us()
            self._world.facts.own_rules.unread.append(noted)
            raise


class WatchedMaintenance(StoreMaintenance):
    """The store of the sweep. What it deletes is kept for the judge."""

    def __init__(self, database: Database, world: World, **options: Any) -> None:
        super().__init__(database, **options)
        self._world = world

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        store, facts = self._world.store, self._world.facts
        before = [(Row.of(values), store.tries(UUID(values[0]))) for values in store.values()]
        count = super().prune(older_than=older_than, limit=limit)
        now, left = store.now(), store.ids()
        for row, tries in before:
            if row.id in left:
                continue
            facts.pruned[row.id] = Pruned(row, tries, now)
            if row.finished_at is None or row.finished_at > now - RETENTION:
                facts.wrong.append(f"{row.id} was deleted while it was {row.status}")
        return count
