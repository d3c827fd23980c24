"""What a time is judged by, in the form in which the scripts read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple, Self

from dispatcher.quota import CalendarQuota, Quota
from dispatcher.scope import Scope, own_scope
from dispatcher.times.quiet_hours import Hours, Interval
from dispatcher.times.zones import DAY_MS

AnyQuota = Quota | CalendarQuota

_NO_END = 99_999_999_999_999  # 14 digits: what the scripts count up to
_FIRST_PERIODS, _MOST_PERIODS = 4, 512
_FIRST_DAYS, _MOST_DAYS = 3, 64


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


class Terms(NamedTuple):
    """What a message's time must meet: room in every scope, outside its recipient's quiet hours.

    Each of ``scopes``, at least one, is of a kind that has quotas; ``zone`` is the recipient's.
    """

    scopes: tuple[Scope, ...]
    zone: str = "UTC"
    quiet: Hours | None = None

    @classmethod
    def own(cls, scope: str) -> Self:
        return cls((own_scope(scope),))


class Rules:
    """The quotas of every kind of scope, as ``lua/rule.lua`` reads them."""

    def __init__(self, quotas: Mapping[str, Sequence[AnyQuota]]) -> None:
        self._rolling: dict[str, tuple[Quota, ...]] = {}
        self._calendars: dict[str, tuple[CalendarQuota, ...]] = {}
        self._fixed: dict[str, RuleSet] = {}
        for kind, of_kind in quotas.items():
            self._rolling[kind] = tuple(quota for quota in of_kind if isinstance(quota, Quota))
            self._calendars[kind] = tuple(
                quota for quota in of_kind if isinstance(quota, CalendarQuota)
            )
            if not self._calendars[kind]:
                self._fixed[kind] = self._rule_set(kind, ())
        self.unchanging = cache(self._unchanging)
        """What :meth:`table` returns for scopes of these kinds, unless that depends on the time."""

    def quota(self, scope: Scope, index: int) -> AnyQuota:
        ordered: tuple[AnyQuota, ...] = self._rolling[scope.kind]
        ordered += self._calendars[scope.kind]
        return ordered[index - 1]

    def _unchanging(self, kinds: tuple[str, ...]) -> Judged | None:
        fixed = tuple(self._fixed[kind] for kind in kinds if kind in self._fixed)
        return (fixed, _NO_BLACKOUTS) if len(fixed) == len(kinds) else None

    def table(self, terms: Terms, scopes: Sequence[Scope], at_ms: int, *, step: int = 0) -> Judged:
        """Return the rule sets of ``scopes``, and the blackouts, for a search from ``at_ms`` on.

        What they cover grows with ``step``: how often the search has gone on. Raises OverflowError
        beyond the year 9999.
        """
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

    def _rule_set(self, kind: str, bounds: Sequence[tuple[int, ...]]) -> RuleSet:
        rolling, calendars = self._rolling[kind], self._calendars[kind]
        quotas: tuple[AnyQuota, ...] = (*rolling, *calendars)
        return RuleSet(
            longest_ms(quotas),
            min(quota.count for quota in quotas),
            tuple((quota.count, quota.length_ms) for quota in rolling),
            tuple((quota.count, edges) for quota, edges in zip(calendars, bounds, strict=True)),
        )


def longest_ms(quotas: Iterable[AnyQuota]) -> int:
    """Return how far apart in ms two times can be and still be counted together."""
    return max(
        quota.length_ms if isinstance(quota, Quota) else quota.longest_ms for quota in quotas
    )


@lru_cache(maxsize=1 << 12)
def _spans(quiet: Hours, zone: str, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    return quiet.inside(zone, start_ms, end_ms)
