"""The figures of a deployment: messages, load, limits, signs of life; rankings; metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil, inf
from typing import Literal, get_args

from dispatcher.celery.configuration import DUTIES
from dispatcher.errors import InvalidValue, Unavailable, plain, quoted
from dispatcher.limiters.permits import ChannelFill, Fills
from dispatcher.message import Status
from dispatcher.quota import CalendarLimit, Limit
from dispatcher.reservation.booking import Terms
from dispatcher.reservation.timeline import Timelines
from dispatcher.scope import Scope, of_channel, own_scope, scope_named
from dispatcher.settings import Settings
from dispatcher.store.listing import Counts, DueByMinute, Figures, Load, Of, OverdueFigure
from dispatcher.store.lists import Pause, Pauses
from dispatcher.telemetry.liveness import LOST_AFTER, MISSED_INTERVALS, Gauge, Kind, Sign, Signs
from dispatcher.times.send_time import from_ms, to_ms

_CANDIDATES = 50
"""How many of the busiest are examined for a ranking by ``fill``."""
_LONGEST = timedelta(days=366)
_FARTHEST = timedelta(days=7)
_MINUTE = timedelta(minutes=1)
_MINUTE_MS = 60_000
_MOST = 1_000

By = Literal["messages", "fill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of a deployment. ``now`` is the database's.

    ``limits``, ``workers``, ``beats``, ``duties`` and ``items_rejected`` (of the broker, counted
    until a day after the last) are None where Redis does not answer; then ``silence`` is the error.

    ``pauses`` are those in force.

    A process that ended normally is not listed; a killed one is listed for a day, as not alive. A
    duty is alive if it was done within ten of its intervals.
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
    pauses: tuple[Pause, ...] = ()

    @property
    def now(self) -> datetime:
        return self.counts.now

    @property
    def held(self) -> int:
        return self.total(Status.HELD)

    def total(self, status: Status) -> int:
        return sum(counts.get(status, 0) for counts in self.counts.by_channel.values())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMinute:
    """A minute in which messages of a channel are due.

    ``waiting`` of earlier minutes have not left when it begins. The last of its own leaves by
    ``last_at``, as fast as the channel's limits allow; None: not within the examined time, twice.
    It is ``overbooked`` where some of its messages leave after it.
    """

    at: datetime
    due: int
    waiting: int
    last_at: datetime | None
    overbooked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoad:
    """What is due on one channel, and when it leaves by the channel's ``limits``.

    ``late`` were due before. Minutes in which nothing is due are left out.
    """

    channel: str
    limits: tuple[str, ...]
    late: int
    minutes: tuple[LoadedMinute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadToCome:
    """The load of each channel from ``start`` until before ``end``, by the database's clock.

    Not ``complete``: more than 1,000,000 are due, and only up to ``counted_until`` all are counted.
    """

    start: datetime
    end: datetime
    complete: bool
    counted_until: datetime
    channels: tuple[ChannelLoad, ...]


@dataclass(frozen=True, kw_only=True)
class Overviews:
    """Reads overviews, rankings and metrics. Changes nothing."""

    settings: Settings
    figures: Figures
    fills: Fills
    signs: Signs
    timelines: Timelines
    pauses: Pauses

    def read(self, *, since: timedelta) -> Overview:
        _check_length("since", since)
        signs: Mapping[Kind, tuple[Sign, ...]] = {}
        limits = duties = rejected = silence = None
        try:
            signs = self.signs.read()
            duties = tuple(map(self._duty, signs[Kind.DUTY]))
            rejected = self.signs.items_rejected()
            limits = self.fills.read()
        except Unavailable as error:
            silence = str(error)
        return Overview(
            counts=self.figures.counts(since=since),
            overdue=self.figures.overdue(),
            load=self.figures.load(),
            limits=limits,
            workers=signs.get(Kind.WORKER),
            beats=signs.get(Kind.BEAT),
            duties=duties,
            items_rejected=rejected,
            silence=silence,
            pauses=tuple(self.pauses.in_force()),
        )

    def _duty(self, sign: Sign) -> Sign:
        duty = DUTIES.get(sign.name)
        if duty is None:  # of another version
            return sign
        interval = duty.every(self.settings)
        return replace(sign, lost_after=max(LOST_AFTER, MISSED_INTERVALS * interval))

    def load(self, *, within: timedelta) -> LoadToCome:
        """Return the load of each channel within that time. Raises InvalidValue, StoreUnavailable.

        The messages of a minute are taken as due at its beginning, those that are late in the first
        one. Limits of channels slow them down; limits of scopes, ``concurrency`` and the speed of
        workers and providers do not: how they act is not known before.
        """
        if not isinstance(within, timedelta) or not _MINUTE <= within <= _FARTHEST:
            accepted = f"a length of a minute to {_FARTHEST.days} days"
            raise InvalidValue("within", quoted(within), accepted)
        due = self.figures.due(within=within)
        return LoadToCome(
            start=due.start,
            end=due.start + within,
            complete=due.complete,
            counted_until=due.counted_until,
            channels=tuple(self._channel_load(name, due, within=within) for name in due.by_channel),
        )

    def _channel_load(self, name: str, due: DueByMinute, *, within: timedelta) -> ChannelLoad:
        channel = self.settings.channels.get(name)
        limits = channel.limits if channel is not None else ()
        late, until = due.late.get(name, 0), due.start + 2 * within
        minutes = _outflow(limits, due.start, dict(due.by_channel[name]), late, until=until)
        return ChannelLoad(
            channel=name, limits=tuple(map(str, limits)), late=late, minutes=tuple(minutes)
        )

    def vitals(self) -> list[Gauge]:
        living = {
            (channel, status.value): count
            for channel, counts in self.figures.counts(since=timedelta(0)).by_channel.items()
            for status, count in counts.items()
            if not status.is_final
        }
        overdue = self.figures.overdue()
        longest = {(): overdue.longest.total_seconds()}
        gauges = [
            Gauge("messages", "Messages that live.", living, ("channel", "status")),
            Gauge("overdue_messages", "Messages that no worker took in time.", {(): overdue.many}),
            Gauge("oldest_overdue_seconds", "How long ago the first of them was due.", longest),
        ]
        with suppress(Unavailable):
            signs = self.signs.read()
            ages = {(sign.name,): sign.age.total_seconds() for sign in signs[Kind.DUTY]}
            text = "Since a duty was last done."
            gauges.append(Gauge("sweep_age_seconds", text, ages, ("duty",)))
            for kind in (Kind.WORKER, Kind.BEAT):
                alive = sum(sign.is_alive for sign in signs[kind])
                gauges.append(Gauge(f"{kind.value}s", f"{kind.value}s alive.", {(): alive}))
        return gauges

    def tops(self, of: Of, *, within: timedelta, limit: int, by: By) -> Tops:
        _check_length("within", within)
        of, by = plain(of), plain(by)
        for field, value, known in (("of", of, get_args(Of)), ("by", by, get_args(By))):
            if not isinstance(value, str) or value not in known:
                raise InvalidValue(field, quoted(value), " or ".join(known))
        if not isinstance(limit, int) or not 1 <= limit <= _MOST:
            raise InvalidValue("limit", quoted(limit), f"1 to {_MOST}")
        candidates = limit if by == "messages" else max(limit, _CANDIDATES)
        busiest, complete = self.figures.busiest(of, within=within, limit=candidates)
        silence, tops = None, list[Top]()
        for row in busiest:
            fullest = None
            try:
                if silence is None:
                    fullest = self._fullest(_scope(of, row.name), row.next_at, within)
            except Unavailable as error:
                silence = str(error)
            top = Top(name=row.name, messages=row.messages, next_at=row.next_at, fullest=fullest)
            tops.append(top)
        if by == "fill":
            tops.sort(key=lambda top: top.fullest.fill if top.fullest else 0.0, reverse=True)
        return Tops(
            of=of, within=within, tops=tuple(tops[:limit]), complete=complete, silence=silence
        )

    def _fullest(self, scope: Scope, start: datetime, within: timedelta) -> FullestQuota | None:
        if scope.kind not in self.settings.quotas_of:
            return None
        terms = Terms((scope,), self.settings.zone)
        [window] = self.timelines.windows(terms, start, start + within)
        fills = [
            FullestQuota(
                quota=str(quota.quota),
                booked=fill.booked,
                most=fill.most,
                at=fill.begins_at,
            )
            for quota in window.quotas
            for fill in quota.fills
        ]
        # A quota of one is full with a single message, so it ranks last; of two equally full quotas
        # the larger one ranks first.
        return max(fills, key=lambda full: (full.most > 1, full.fill, full.most), default=None)


def _outflow(
    limits: Sequence[Limit | CalendarLimit],
    start: datetime,
    due: Mapping[datetime, int],
    late: int,
    *,
    until: datetime,
) -> Iterator[LoadedMinute]:
    """Yield the minutes of messages that leave in their order, as fast as limits allow.

    A limit whose period is at most a minute is a speed; a longer one gives what it has left,
    counted by minutes.
    """
    start_ms = to_ms(start)
    short = [
        limit for limit in limits if isinstance(limit, Limit) and limit.length_ms <= _MINUTE_MS
    ]
    long = [limit for limit in limits if limit not in short]
    speed = min((limit.count * _MINUTE_MS / limit.length_ms for limit in short), default=inf)
    gone = [0.0]
    """How many have left before each minute."""
    come, waits, total = dict[datetime, int](), dict[datetime, int](), late
    for number in range((until - start) // _MINUTE):
        at = start + number * _MINUTE
        if at in due:
            waits[at] = _ceil(total - gone[-1])
            total += due[at]
            come[at] = total
        waiting = total - gone[-1]
        spare = (_spare(limit, start_ms, number, gone) for limit in long) if waiting else ()
        gone.append(min(gone[-1] + min(speed, waiting, *spare), total))
    for at in sorted(due):
        last_at = None
        if come[at] <= gone[-1]:
            last = bisect_left(gone, come[at]) - 1
            within_ms = _ceil((come[at] - gone[last]) * _MINUTE_MS / speed)
            last_at = from_ms(start_ms + last * _MINUTE_MS + within_ms)
        is_late = last_at is None or last_at > at + _MINUTE
        yield LoadedMinute(
            at=at, due=due[at], waiting=waits[at], last_at=last_at, overbooked=is_late
        )


def _ceil(number: float) -> int:
    return ceil(round(number, 6))


def _spare(
    limit: Limit | CalendarLimit, start_ms: int, number: int, gone: Sequence[float]
) -> float:
    if isinstance(limit, CalendarLimit):
        [begins_ms, _] = limit.bounds(start_ms + number * _MINUTE_MS, 1)
        since = (begins_ms - start_ms) // _MINUTE_MS
    else:
        since = number - -(-limit.length_ms // _MINUTE_MS) + 1
    return limit.count - (gone[-1] - gone[max(since, 0)])


def _scope(of: Of, name: str) -> Scope:
    if of != "channel":
        return own_scope(name)
    return scope_named(of_channel(name), name)


def _check_length(field: str, length: object) -> None:
    if not isinstance(length, timedelta) or not timedelta(0) < length <= _LONGEST:
        accepted = f"a length of more than 0 and at most {_LONGEST.days} days"
        raise InvalidValue(field, quoted(length), accepted)
