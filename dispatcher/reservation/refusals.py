"""Refused submits: counted by rule and hour, and the last ones."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

import redis

from dispatcher.errors import InvalidValue, QuietHours, QuotaExceeded, SlotRefused, quoted
from dispatcher.quota import parse_quota
from dispatcher.redis.keys import LooseKeys
from dispatcher.redis.scripts import replies_to
from dispatcher.reservation.booking import BookingRequest
from dispatcher.times.clock import MILLISECOND, Clock
from dispatcher.times.send_time import from_ms, to_ms

log = logging.getLogger(__name__)

LONGEST = timedelta(days=7)
"""How far back refusals are counted."""
_LIFE_MS = (LONGEST + timedelta(days=1)) // MILLISECOND
_KEPT = 1_000
_KEPT_OF_A_BATCH = 100
_HOUR_MS = 3_600_000
_STEPS = 8
"""Waits are counted in steps of the eighth root of two: 9 % apart."""
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRefusals:
    """How many submits one rule has refused, and how far away their next slots were.

    ``kind`` is the kind of scope that has the quota, "" for a message's own scope. Without a
    ``quota`` the rule is quiet hours. Half of the next slots came within ``wait_p50`` of the time
    asked for, 95 % within ``wait_p95``; both are up to 9 % too long.
    """

    kind: str
    quota: str | None
    refused: int
    wait_p50: timedelta
    wait_p95: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRefusal:
    """One refused submit: when, by which rule, for which time, and its next slot.

    ``scope`` is a digest of the scope whose quota was full, the one that logs have; None without a
    ``log_key``, and for quiet hours. Where the refusals of named scopes are read, it is the name.
    ``quiet_hours`` are those that refused, with their zone: the message may have had its own.
    """

    at: datetime
    kind: str
    quota: str | None
    send_at: datetime
    next_slot: datetime
    scope: str | None
    quiet_hours: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The refused submits from ``since`` on: counts by rule, and the last ones.

    The hour in which ``since`` lies counts as a whole.
    """

    since: datetime
    rules: tuple[RuleRefusals, ...]
    last: tuple[LastRefusal, ...]


class _Record(NamedTuple):
    """A refusal that is kept. ``full`` is the index of the scope whose quota was full, or -1."""

    at: int
    asked_ms: int
    slot: int
    kind: str
    quota: str
    full: int
    scopes: list[str]
    """Their digests."""
    quiet_hours: str = ""

    @classmethod
    def read(cls, text: bytes) -> _Record:
        return cls(*json.loads(text)[: len(cls._fields)])  # a newer server may note more

    def text(self) -> str:
        return json.dumps(self, separators=(",", ":"))


class RefusalLog:
    """Notes refusals in Redis, and reads them.

    Names of scopes are noted as digests. Counts end after a week, and 1,000 refusals are kept.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        namespace: str,
        clock: Clock,
        digest: Callable[[str], str] | None,
    ) -> None:
        self._client = client
        self._keys = LooseKeys(namespace)
        self._clock = clock
        self._tell: Callable[[str], str | None] = str if digest else lambda _: None
        self._digest = digest or _plain_digest

    def note(self, refused: Sequence[tuple[BookingRequest, SlotRefused]]) -> None:
        """Note refused submits. What cannot be noted is left out, and only that."""
        try:
            self._write(refused)
        except Exception as error:  # noqa: BLE001 - no note may fail a submit
            log.debug("%d refusals are not counted: %s", len(refused), error)

    def read(self, *, since: timedelta, quota: str | None, last: int) -> Refusals:
        """Return the refusals within ``since``, all or those by one quota.

        Raises InvalidValue and ReservationsUnavailable.
        """
        if not isinstance(since, timedelta) or not timedelta(0) < since <= LONGEST:
            accepted = f"a length of more than 0 and at most {LONGEST.days} days"
            raise InvalidValue("since", quoted(since), accepted)
        if not isinstance(last, int) or not 0 <= last <= _KEPT:
            raise InvalidValue("last", quoted(last), f"0 to {_KEPT}")
        named = None if quota is None else str(parse_quota(quota))
        now = self._clock.now()
        first = now - since
        names = map(
            self._keys.refusals, range(to_ms(first) // _HOUR_MS, to_ms(now) // _HOUR_MS + 1)
        )
        *hours, kept = replies_to(
            self._client,
            [*(("HGETALL", name) for name in names), ("LRANGE", self._keys.last_refusals, 0, -1)],
        )
        records = (
            record
            for record in map(_Record.read, kept)
            if record.at >= to_ms(first) and named in (None, record.quota)
        )
        return Refusals(
            since=first,
            rules=_by_rule(hours, named),
            last=tuple(_shown(record, self._tell) for record in islice(records, last)),
        )

    def of(self, scopes: Sequence[str], *, last: int) -> tuple[LastRefusal, ...]:
        """Return the last kept refusals of messages that count against all of these scopes.

        The newest is the first. ``scope`` is the full one where it is one of ``scopes``, else None.
        Raises ReservationsUnavailable.
        """
        names = {self._digest(name): name for name in scopes}
        [kept] = replies_to(self._client, [("LRANGE", self._keys.last_refusals, 0, -1)])
        records = (record for record in map(_Record.read, kept) if names.keys() <= {*record.scopes})
        return tuple(_shown(record, names.get) for record in islice(records, last))

    def _write(self, refused: Sequence[tuple[BookingRequest, SlotRefused]]) -> None:
        now_ms = to_ms(self._clock.now())
        records = [self._record(request, error, now_ms) for request, error in refused]
        counts = Counter[str]()
        for record in records:
            seconds = max(1, record.slot - record.asked_ms) / 1_000
            step = max(0, math.ceil(_STEPS * math.log2(seconds)))
            counts[f"{step} {record.kind} {record.quota}"] += 1
        kept = [record.text() for record in records[:_KEPT_OF_A_BATCH]]
        hour, last = self._keys.refusals(now_ms // _HOUR_MS), self._keys.last_refusals
        replies_to(
            self._client,
            [
                *(("HINCRBY", hour, field, count) for field, count in counts.items()),
                ("PEXPIRE", hour, _LIFE_MS),
                ("LPUSH", last, *kept),
                ("LTRIM", last, 0, _KEPT - 1),
                ("PEXPIRE", last, _LIFE_MS),
            ],
        )

    def _record(self, request: BookingRequest, error: SlotRefused, now_ms: int) -> _Record:
        names = [str(scope) for scope in request.terms.scopes]
        kind, quota, full, quiet_hours = "", "", -1, ""
        if isinstance(error, QuotaExceeded):
            quota, full = error.quota, names.index(error.scope)
            kind = request.terms.scopes[full].kind
        elif isinstance(error, QuietHours):
            quiet_hours = f"{error.quiet_hours} of {error.zone}"
        return _Record(
            at=now_ms,
            asked_ms=request.asked_ms,
            slot=to_ms(error.next_slot),
            kind=kind,
            quota=quota,
            full=full,
            scopes=[*map(self._digest, names)],
            quiet_hours=quiet_hours,
        )


def _shown(record: _Record, tell: Callable[[str], str | None]) -> LastRefusal:
    """Return a record for callers; ``tell`` says what they see of the digest of its scope."""
    return LastRefusal(
        at=from_ms(record.at),
        kind=record.kind,
        quota=record.quota or None,
        send_at=from_ms(record.asked_ms),
        next_slot=from_ms(record.slot),
        scope=tell(record.scopes[record.full]) if record.full >= 0 else None,
        quiet_hours=record.quiet_hours or None,
    )


def _by_rule(hours: Iterable[Mapping[bytes, bytes]], named: str | None) -> tuple[RuleRefusals, ...]:
    waits: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for counts in hours:
        for field, count in counts.items():
            step, kind, quota = field.decode().split(" ", 2)
            if named in (None, quota):
                waits[kind, quota][int(step)] += int(count)
    rules = [
        RuleRefusals(
            kind=kind,
            quota=quota or None,
            refused=steps.total(),
            wait_p50=_percentile(steps, 0.5),
            wait_p95=_percentile(steps, 0.95),
        )
        for (kind, quota), steps in waits.items()
    ]
    return tuple(sorted(rules, key=lambda rule: (-rule.refused, rule.kind, rule.quota or "")))


def _percentile(steps: Counter[int], part: float) -> timedelta:
    left = math.ceil(part * steps.total())
    for step in sorted(steps):
        left -= steps[step]
        if left <= 0:
            break
    return _SECOND * round(2 ** (step / _STEPS), 3)


def _plain_digest(name: str) -> str:
    """Return a digest that tells scopes apart. It can be guessed, so it is never shown."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
