"""What the scripts read and write: members, rules, and the words of a reservation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from dispatcher.errors import ReservationsUnavailable
from dispatcher.quota import AnyQuota, CalendarQuota, Quota, SendLimit, places, send_limits
from dispatcher.redis.scripts import Call, packed
from dispatcher.scope import OWN_SCOPE, Scope
from dispatcher.times.quiet_hours import Hours, Interval
from dispatcher.times.zones import DAY_MS

if TYPE_CHECKING:
    from dispatcher.reservation.booking import BookingRequest, Leg

ENDLESS = "the search for a free slot was stopped at its bound"
ID_BYTES = 16
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

    ``longest`` is the longest length in ms, ``least`` the least N. A calendar quota that grows has
    an N for each period.
    """

    longest: int
    least: int
    rolling: tuple[tuple[int, int], ...]
    calendars: tuple[tuple[int | tuple[int, ...], tuple[int, ...]], ...]


class Blackouts(NamedTuple):
    """From when until when no time fits: ``edges`` in turn, in ms, sorted.

    ``covered`` is up to when they and the bounds of the rule sets are known.
    """

    covered: int
    edges: tuple[int, ...] = ()


Judged = tuple[tuple[RuleSet, ...], Blackouts]
"""The rule sets of some scopes, and the blackouts."""


class _ScriptTerms(NamedTuple):
    """Terms as ``reserve.lua`` reads them. ``extra``: the message has extra words."""

    extra: bool
    rules: tuple[RuleSet, ...]
    blackouts: Blackouts


class QuotaSet:
    """The quotas of one scope, or of all scopes of a kind, as ``lua/rule.lua`` reads them.

    ``quotas`` are in the order in which the scripts number them, calendar quotas last.
    """

    def __init__(self, quotas: Sequence[AnyQuota]) -> None:
        self.quotas = sorted(quotas, key=lambda quota: isinstance(quota, CalendarQuota))
        self.calendars = [quota for quota in self.quotas if isinstance(quota, CalendarQuota)]
        self.rule_set = lru_cache(maxsize=256)(self._rule_set)
        """The rule set for a priority and a zone, with these bounds of each calendar quota."""

    def _rule_set(self, priority: int, zone: str, bounds: tuple[tuple[int, ...], ...]) -> RuleSet:
        ns = [
            tuple(places(q, priority, begins_ms, zone) for begins_ms in edges[:-1])
            if q.ramp
            else places(q, priority)
            for q, edges in zip(self.calendars, bounds, strict=True)
        ]
        return RuleSet(
            longest_ms(self.quotas),
            min(places(q, priority) for q in self.quotas),
            tuple((places(q, priority), q.length_ms) for q in self.quotas if isinstance(q, Quota)),
            tuple(zip(ns, bounds, strict=True)),
        )


Named = tuple[str, str]
"""Kind and name of a scope."""


class Rules:
    """The quotas and limits in force at one moment: of each kind of scope, and of single scopes.

    Nothing changes them. So a booking that is judged by one of these objects is judged by one set
    of quotas for each scope, never by a mixture of old and new ones.
    """

    def __init__(
        self,
        quotas: Mapping[str, Sequence[AnyQuota]],
        own: Mapping[Named, QuotaSet] = MappingProxyType({}),
        limits: Mapping[Named, Sequence[SendLimit]] = MappingProxyType({}),
    ) -> None:
        self.own, self.limits = own, limits
        self._of_kinds = {kind: QuotaSet(of_kind) for kind, of_kind in quotas.items()}

    def quotas(self, kind: str, name: str) -> Sequence[AnyQuota]:
        """Return the quotas of a scope, of its own or of its kind, calendar quotas last."""
        quota_set = self.own.get((kind, name)) or self._of_kinds.get(kind)
        return quota_set.quotas if quota_set else ()

    @cached_property
    def own_limits(self) -> Mapping[Named, Sequence[SendLimit]]:
        """For sends: those of single scopes, and what quotas of a message's own scope mean."""
        own = [named for named in self.own if named[0] == OWN_SCOPE]
        return {**self.limits, **{named: send_limits(self.own[named].quotas) for named in own}}

    @property
    def longest_ms(self) -> int:
        sets = chain(self._of_kinds.values(), self.own.values())
        return max(longest_ms(quota_set.quotas) for quota_set in sets)

    def quota(self, scope: Scope, number: int) -> AnyQuota:
        """Return a quota of a scope by its number in the scripts, from 1 on."""
        return self.quotas(scope.kind, scope.name)[number - 1]

    def table(self, leg: Leg, at_ms: int, *, step: int = 0) -> Judged:
        """Return the rule sets of a leg, and the blackouts, for a search from ``at_ms`` on.

        What they cover grows with ``step``: how often the search has gone on. Raises
        ReservationsUnavailable beyond the year 9999.
        """
        terms = leg.terms
        cover, first_ms = _NO_END, at_ms
        quiet: list[Interval] = []
        periods = min(_FIRST_PERIODS << 2 * step, _MOST_PERIODS)
        sets: list[RuleSet] = []
        try:
            if terms.quiet is not None:
                days = min(_FIRST_DAYS << 2 * step, _MOST_DAYS)
                start, cover = at_ms - at_ms % DAY_MS, (at_ms // DAY_MS + days) * DAY_MS
                quiet = _quiet_spans(terms.quiet, terms.zone, start, cover)
                # No time in quiet hours is judged.
                first_ms = next((until for since, until in quiet if since <= at_ms < until), at_ms)
            for scope in leg.scopes:
                own = self.own.get((scope.kind, scope.name))
                quota_set = own or self._of_kinds[scope.kind]
                if not (calendars := quota_set.calendars):
                    sets.append(quota_set.rule_set(terms.priority, "", ()))
                    continue
                bounds = tuple(quota.bounds(first_ms, periods, terms.zone) for quota in calendars)
                cover = min(cover, *(edges[-1] for edges in bounds))
                sets.append(quota_set.rule_set(terms.priority, terms.zone, bounds))
        except OverflowError:
            raise ReservationsUnavailable(ENDLESS) from None
        return tuple(sets), Blackouts(cover, tuple(chain.from_iterable(quiet)))

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
        numbers: dict[_ScriptTerms, int] = {}
        for leg, booking in requests:
            submit, asked_ms, leaving = booking.submit, booking.asked_ms, booking.leaving
            has_extra = submit is not None or judged != b"" or booking.left_tail is not None
            terms = _ScriptTerms(has_extra, *self.table(leg, asked_ms, step=step))
            number = numbers.setdefault(terms, len(numbers) + 1)
            times = b"%d" % asked_ms, b"%d" % booking.latest_ms
            messages += (booking.member, *times, b"%d" % number)
            if submit is not None:
                names.append(keys.duplicates(submit.name))
                messages += (judged, b"", submit.fingerprint, submit.token)
            elif has_extra:
                messages += (judged, booking.left, b"", packed(leaving) if leaving else b"")
            names += [keys.window(scope.name, scope.kind) for scope in leg.scopes]
        graces = [b"%d" % pending_grace_ms, b"%d" % (under_way_ms + pending_grace_ms)]
        return names, [*graces, _encoded(tuple(numbers)), *messages]


def longest_ms(quotas: Iterable[AnyQuota]) -> int:
    """Return how far apart in ms two times can be and still be counted together."""
    return max((quota.longest_ms for quota in quotas), default=0)


_quiet_spans = lru_cache(maxsize=1 << 12)(Hours.inside)
_encoded = lru_cache(maxsize=256)(packed)
"""Most messages have the same terms as those before."""
