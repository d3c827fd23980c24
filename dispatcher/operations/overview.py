"""The figures of a deployment: messages, load, limits, signs of life; rankings; metrics."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from dispatcher.errors import InvalidValue, Unavailable, quoted
from dispatcher.limiters import ChannelFill, Fills
from dispatcher.message import Status
from dispatcher.reservation import QuotaTimeline, Terms, Timelines
from dispatcher.scope import Scope, of_channel, plain
from dispatcher.settings import Settings
from dispatcher.store import Busy, Counts, Figures, Load, Of, OverdueFigure
from dispatcher.telemetry.liveness import Kind, Sign, Signs
from dispatcher.telemetry.metrics import Vitals

_CANDIDATES = 50
"""How many of the busiest are examined for a ranking by ``fill``."""
_LONGEST = timedelta(days=366)
_MOST = 1_000

By = Literal["messages", "fill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of a deployment. ``now`` is the database's.

    ``limits``, ``workers``, ``beats``, ``duties`` and ``items_rejected`` (of the broker, counted
    until a day after the last) are None where Redis does not answer; then ``silence`` is the error.

    A process that ended normally is not listed; a killed one is listed for a day, as not alive.
    """

    counts: Counts
    overdue: OverdueFigure
    load: Load
    limits: tuple[ChannelFill, ...] | None
    workers: tuple[Sign, ...] | None
    beats: tuple[Sign, ...] | None
    duties: tuple[Sign, ...] | None
    items_rejected: int | None
    silence: str | None

    @property
    def now(self) -> datetime:
        """When it was read."""
        return self.counts.now

    @property
    def held(self) -> int:
        """How many messages are held."""
        return self.total(Status.HELD)

    def total(self, status: Status) -> int:
        """Return how many messages have a status, over all channels."""
        return sum(each.get(status, 0) for each in self.counts.by_channel.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FullestQuota:
    """The quota that is nearest to full somewhere within the examined time.

    In the stretch that begins ``at``, ``booked`` of ``most`` are booked.
    """

    quota: str
    booked: int
    most: int
    at: datetime

    @property
    def fill(self) -> float:
        """How full it is: 1 is full."""
        return self.booked / self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """One entry of a ranking. ``fullest`` is None without a quota, or where Redis is silent."""

    name: str
    messages: int
    next_at: datetime
    fullest: FullestQuota | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tops:
    """A ranking. ``complete``: every due message was counted; ``silence`` as in an overview."""

    of: Of
    within: timedelta
    complete: bool
    silence: str | None
    tops: tuple[Top, ...]


class Overviews:
    """Reads overviews, rankings and metrics. Changes nothing."""

    def __init__(
        self,
        *,
        settings: Settings,
        figures: Figures,
        fills: Fills,
        signs: Signs,
        timelines: Timelines,
    ) -> None:
        self._settings = settings
        self._figures = figures
        self._fills = fills
        self._signs = signs
        self._timelines = timelines

    def read(self, *, since: timedelta) -> Overview:
        """Return an overview. Raises InvalidValue and StoreUnavailable.

        Messages that have ended are counted if they did so within ``since``.
        """
        _check_length("since", since)
        limits = signs = rejected = silence = None
        try:
            signs = self._signs.read()
            rejected = self._signs.items_rejected()
            limits = self._fills.read()
        except Unavailable as error:
            silence = str(error)
        return Overview(
            counts=self._figures.counts(since=since),
            overdue=self._figures.overdue(),
            load=self._figures.load(),
            limits=limits,
            workers=signs[Kind.WORKER] if signs else None,
            beats=signs[Kind.BEAT] if signs else None,
            duties=signs[Kind.DUTY] if signs else None,
            items_rejected=rejected,
            silence=silence,
        )

    def vitals(self) -> Vitals:
        """Return the figures for metrics. Raises StoreUnavailable."""
        duties = alive = None
        with suppress(Unavailable):
            signs = self._signs.read()
            duties = {each.name: each.age for each in signs[Kind.DUTY]}
            alive = {kind: sum(each.is_alive for each in some) for kind, some in signs.items()}
        counts = self._figures.counts(since=timedelta(0))
        overdue = self._figures.overdue()
        return Vitals(
            messages={
                (channel, status.value): many
                for channel, some in counts.by_channel.items()
                for status, many in some.items()
                if not status.is_final
            },
            overdue=overdue.many,
            longest_overdue=overdue.longest,
            duties=duties,
            workers=alive[Kind.WORKER] if alive else None,
            beats=alive[Kind.BEAT] if alive else None,
        )

    def tops(self, of: Of, *, within: timedelta, limit: int, by: By) -> Tops:
        """Return the busiest scopes, recipients or channels by messages due ``within`` that time.

        Raises InvalidValue and StoreUnavailable.
        """
        _check_length("within", within)
        for field, value, known in (("of", of, get_args(Of)), ("by", by, get_args(By))):
            if not isinstance(value, str) or value not in known:
                raise InvalidValue(field, quoted(value), " or ".join(known))
        if not isinstance(limit, int) or not 1 <= limit <= _MOST:
            raise InvalidValue("limit", quoted(limit), f"1 to {_MOST}")
        many = limit if by == "messages" else max(limit, _CANDIDATES)
        busiest, complete = self._figures.busiest(of, within=within, limit=many)
        tops, silence = self._with_fills(of, busiest, within)
        if by == "fill":
            tops.sort(key=lambda each: each.fullest.fill if each.fullest else 0.0, reverse=True)
        return Tops(
            of=of, within=within, tops=tuple(tops[:limit]), complete=complete, silence=silence
        )

    def _with_fills(
        self, of: Of, busiest: Iterable[Busy], within: timedelta
    ) -> tuple[list[Top], str | None]:
        silence = None
        tops = []
        for each in busiest:
            fullest = None
            if silence is None:
                try:
                    fullest = self._fullest(_scope(of, each.name), each.next_at, within)
                except Unavailable as error:
                    silence = str(error)
            tops.append(
                Top(name=each.name, messages=each.messages, next_at=each.next_at, fullest=fullest)
            )
        return tops, silence

    def _fullest(self, scope: Scope, start: datetime, within: timedelta) -> FullestQuota | None:
        if scope.kind not in self._settings.quotas_of:
            return None
        terms = Terms((scope,), self._settings.zone)
        [window] = self._timelines.windows(terms, start, start + within)
        found = filter(None, map(_fullest_of, window.quotas))
        # A quota of one is full with a single message, so it ranks last; of two equally full quotas
        # the larger one ranks first.
        return max(found, key=lambda each: (each.most > 1, each.fill, each.most), default=None)


def _fullest_of(quota: QuotaTimeline) -> FullestQuota | None:
    fill = max(quota.fills, key=lambda each: each.booked, default=None)
    if fill is None:
        return None
    count = quota.quota.count
    return FullestQuota(quota=str(quota.quota), booked=fill.booked, most=count, at=fill.begins_at)


def _scope(of: Of, name: str) -> Scope:
    if of != "channel":
        return plain(name)
    kind = of_channel(name)
    return Scope(kind, name, f"@{kind}")


def _check_length(field: str, length: object) -> None:
    if not isinstance(length, timedelta) or not timedelta(0) < length <= _LONGEST:
        accepted = f"a timedelta of more than 0 and at most {_LONGEST.days} days"
        raise InvalidValue(field, quoted(length), accepted)
