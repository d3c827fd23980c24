"""What the scripts read and write: members, rules, and the words of a reservation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from dispatcher.errors import ReservationsUnavailable
from dispatcher.quota import AnyQuota, CalendarQuota, Quota
from dispatcher.redis.scripts import Call, packed
from dispatcher.scope import Scope
from dispatcher.times.quiet_hours import Hours, Interval
from dispatcher.times.zones import DAY_MS

if TYPE_CHECKING:
    from dispatcher.reservation.booking import BookingRequest, Leg, Terms

ENDLESS = "the search for a free slot was stopped at its bound"
ID_BYTES = 16
_kind = attrgetter("kind")
_NO_END = 99_999_999_999_999  # 14 digits: what the scripts count up to
_FIRST_PERIODS, _MOST_PERIODS = 4, 512
_FIRST_DAYS, _MOST_DAYS = 3, 64


def member_of(message_id: UUID, tail: str) -> bytes:
    """Return what stands in the windows for a message: its id, and the tail of its last move."""
    return message_id.bytes + tail.encode()


def new_tail() -> str:
    """Return a tail that no other move of a message has: 8 characters, none of them ``{``."""
    return token_hex(4)


def id_of(member: bytes) -> UUID:
    return UUID(bytes=member[:ID_BYTES])


class RuleSet(NamedTuple):
    """What one scope is judged by: N and W of each quota, N and bounds of each calendar quota.

    ``longest`` is the longest length in ms, ``least`` the least N.
    """

    longest: int
    least: int
    rolling: tuple[tuple[int, int], ...]
    calendars: tuple[tuple[int, tuple[int, ...]], ...]


class Blackouts(NamedTuple):
    """From when until when no time fits: ``edges`` in turn, in ms, sorted.

    ``covered`` is up to when they and the bounds of the rule sets are known.
    """

    covered: int
    edges: tuple[int, ...] = ()


_NO_BLACKOUTS = Blackouts(_NO_END)

Judged = tuple[tuple[RuleSet, ...], Blackouts]
"""The rule sets of some scopes, and the blackouts."""


class _ScriptTerms(NamedTuple):
    """Terms as ``reserve.lua`` reads them. ``extra``: the message has extra words."""

    extra: bool
    rules: tuple[RuleSet, ...]
    blackouts: Blackouts


class Rules:
    """The quotas of every kind of scope, as ``lua/rule.lua`` reads them."""

    def __init__(self, quotas: Mapping[str, Sequence[AnyQuota]]) -> None:
        self._quotas = {
            kind: sorted(of_kind, key=lambda quota: isinstance(quota, CalendarQuota))
            for kind, of_kind in quotas.items()
        }
        self._calendars = {
            kind: [quota for quota in of_kind if isinstance(quota, CalendarQuota)]
            for kind, of_kind in quotas.items()
        }
        self._fixed = {
            kind: self._rule_set(kind, ()) for kind in quotas if not self._calendars[kind]
        }
        self.unchanging = cache(self._unchanging)
        """What :meth:`table` returns for scopes of these kinds, unless that depends on the time."""

    def quota(self, scope: Scope, index: int) -> AnyQuota:
        return self._quotas[scope.kind][index - 1]

    def _unchanging(self, kinds: tuple[str, ...]) -> Judged | None:
        fixed = tuple(self._fixed[kind] for kind in kinds if kind in self._fixed)
        return (fixed, _NO_BLACKOUTS) if len(fixed) == len(kinds) else None

    def table(self, leg: Leg, at_ms: int, *, step: int = 0) -> Judged:
        """Return the rule sets of a leg, and the blackouts, for a search from ``at_ms`` on.

        What they cover grows with ``step``: how often the search has gone on. Raises
        ReservationsUnavailable beyond the year 9999.
        """
        try:
            return self._table(leg.terms, leg.scopes, at_ms, step)
        except OverflowError:
            raise ReservationsUnavailable(ENDLESS) from None

    def _table(self, terms: Terms, scopes: Sequence[Scope], at_ms: int, step: int) -> Judged:
        cover, first_ms, quiet = _NO_END, at_ms, list[Interval]()
        if terms.quiet is not None:
            days = min(_FIRST_DAYS << 2 * step, _MOST_DAYS)
            start, cover = at_ms - at_ms % DAY_MS, (at_ms // DAY_MS + days) * DAY_MS
            quiet = _spans(terms.quiet, terms.zone, start, cover)
            # No time in quiet hours is judged.
            first_ms = next((until for since, until in quiet if since <= at_ms < until), at_ms)
        periods = min(_FIRST_PERIODS << 2 * step, _MOST_PERIODS)
        sets = []
        for scope in scopes:
            rule_set = self._fixed.get(scope.kind)
            if rule_set is None:
                bounds = [
                    calendar.bounds(first_ms, periods, terms.zone)
                    for calendar in self._calendars[scope.kind]
                ]
                cover = min(cover, *(edges[-1] for edges in bounds))
                rule_set = self._rule_set(scope.kind, bounds)
            sets.append(rule_set)
        edges = tuple(edge for span in quiet if span[0] < cover for edge in span)
        return tuple(sets), Blackouts(cover, edges)

    def reserve_call(
        self,
        requests: Sequence[tuple[Leg, BookingRequest]],
        *,
        under_way_ms: int,
        pending_grace_ms: int = 0,
        step: int = 0,
        judged: bytes = b"",
    ) -> Call:
        """Encode ``reserve.lua`` for requests in one shard, after so many steps of their search.

        ``judged`` is a hold at the time asked for that needs no judging.
        """
        keys = requests[0][0].keys
        names: list[str] = [keys.pending, keys.epoch]
        messages: list[bytes | str] = []
        numbers: dict[tuple[bool, Judged], int] = {}
        encode: Callable[[tuple[_ScriptTerms, ...]], bytes] = _encoded_once
        for leg, booking in requests:
            message_id, of, asked_ms, latest_ms, submit, tail, left_tail = booking
            table = None
            if of.quiet is None:
                table = self.unchanging(tuple(map(_kind, leg.scopes)))
            has_extra = submit is not None or judged != b"" or left_tail is not None
            if table is None:
                table, encode = self.table(leg, asked_ms, step=step), packed
            number = numbers.setdefault((has_extra, table), len(numbers) + 1)
            at = b"%d" % asked_ms
            latest = at if latest_ms == asked_ms else b"%d" % latest_ms
            messages += (message_id.bytes + tail.encode(), at, latest, b"%d" % number)
            if submit is not None:
                names.append(keys.duplicates(submit.name))
                messages += (judged, b"", submit.fingerprint, submit.token)
            elif has_extra:
                messages += (judged, booking.left, b"", b"")
            names += [keys.window(scope.name, scope.kind) for scope in leg.scopes]
        words = [b"%d" % pending_grace_ms, b"%d" % (under_way_ms + pending_grace_ms)]
        terms = tuple(_ScriptTerms(has_extra, *table) for has_extra, table in numbers)
        return names, [*words, encode(terms), *messages]

    def _rule_set(self, kind: str, bounds: Sequence[tuple[int, ...]]) -> RuleSet:
        quotas, calendars = self._quotas[kind], self._calendars[kind]
        return RuleSet(
            longest_ms(quotas),
            min(quota.count for quota in quotas),
            tuple((quota.count, quota.length_ms) for quota in quotas if isinstance(quota, Quota)),
            tuple((quota.count, edges) for quota, edges in zip(calendars, bounds, strict=True)),
        )


def longest_ms(quotas: Iterable[AnyQuota]) -> int:
    """Return how far apart in ms two times can be and still be counted together."""
    return max(quota.longest_ms for quota in quotas)


@lru_cache(maxsize=1 << 12)
def _spans(quiet: Hours, zone: str, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    return quiet.inside(zone, start_ms, end_ms)


_encoded_once = lru_cache(maxsize=256)(packed)
"""Only for terms that do not depend on the time: the same terms come again."""
