"""Which instants a rule of repetition means, told slowly: every day and second is looked at.

It knows no dateutil and nothing of the package: clocks come from ``zoneinfo`` alone.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import groupby, product
from typing import Any
from zoneinfo import ZoneInfo

DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
LENGTHS = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
_A_DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Model:
    """An RRULE with what may stand beside it; the empty set of a BY part is none."""

    freq: str
    start: datetime
    interval: int = 1
    week_begins: int = 0
    by: dict[str, frozenset[int]] = field(default_factory=dict)
    days: frozenset[tuple[int, int]] = frozenset()
    until: datetime | None = None
    count: int | None = None
    excluded: frozenset[date] = frozenset()
    dates: frozenset[datetime] = frozenset()

    def text(self) -> str:
        parts = {"FREQ": self.freq, "INTERVAL": self.interval, "COUNT": self.count}
        parts |= {name: ",".join(map(str, values)) for name, values in self.by.items()}
        parts["BYDAY"] = ",".join(f"{number or ''}{DAYS[day]}" for day, number in self.days)
        parts["UNTIL"] = self.until and _basic(self.until)
        parts["WKST"] = DAYS[self.week_begins]
        lines = ["RRULE:" + ";".join(f"{name}={value}" for name, value in parts.items() if value)]
        lines += [f"EXDATE:{_basic(one)}" for one in self.excluded]
        lines += [f"RDATE:{_basic(one)}" for one in self.dates]
        return "\n".join(lines)

    def between(
        self, zone: ZoneInfo, begin: int, end: int, gap: str, repeat: str
    ) -> list[tuple[int, str]]:
        """Return instants in seconds, and names, from ``begin`` until before ``end``."""
        found = [*self._of_rule(zone, begin, end, gap, repeat), *self._of_dates(zone, gap, repeat)]
        names: dict[int, str] = {}
        for at, name in found:
            if begin <= at < end and datetime.fromtimestamp(at, UTC) not in self.excluded:
                names[at] = min(name, names.get(at, name))
        return sorted(names.items())

    def _of_rule(
        self, zone: ZoneInfo, begin: int, end: int, gap: str, repeat: str
    ) -> Iterator[tuple[int, str]]:
        if self.freq not in LENGTHS:
            for wall in self._walls(begin, end):
                yield from self._named(wall, zone, gap, repeat)
            return
        for at in self._instants_of_elapsed_time(zone, self._first(zone, gap, repeat), begin, end):
            last = at
            if self.until and self.until.tzinfo:
                last = int(self.until.timestamp())
            elif self.until:
                last = _instants(self.until, zone, _kept(gap), repeat)[-1]
            if at <= last:
                yield from self._unless_excluded(at, zone)

    def _of_dates(self, zone: ZoneInfo, gap: str, repeat: str) -> Iterator[tuple[int, str]]:
        for moment in self.dates:
            if moment.tzinfo and moment.timestamp() >= self._first(zone, gap, repeat):
                yield from self._unless_excluded(int(moment.timestamp()), zone)
            elif not moment.tzinfo and moment >= self.start:
                yield from self._named(moment, zone, gap, repeat, of_rule=False)

    def _first(self, zone: ZoneInfo, gap: str, repeat: str) -> int:
        return _instants(self.start, zone, _kept(gap), repeat)[0]

    def _unless_excluded(self, at: int, zone: ZoneInfo) -> Iterator[tuple[int, str]]:
        wall = _wall(at, zone)
        if not {wall, wall.date()} & self.excluded:
            yield at, _name(datetime.fromtimestamp(at, UTC))

    def _named(
        self, wall: datetime, zone: ZoneInfo, gap: str, repeat: str, *, of_rule: bool = True
    ) -> Iterator[tuple[int, str]]:
        if {wall, wall.date()} & self.excluded:
            return
        instants = _instants(wall, zone, gap, repeat)
        for at in instants:
            if of_rule and self.until and self.until.tzinfo and at > self.until.timestamp():
                continue
            offset = timezone(wall.replace(tzinfo=UTC) - datetime.fromtimestamp(at, UTC))
            yield at, _name(wall.replace(tzinfo=offset) if len(instants) > 1 else wall)

    def _walls(self, begin: int, end: int) -> Iterator[datetime]:
        """Yield the wall times of the days around a span, and of the periods in which they lie."""
        first = (datetime.fromtimestamp(begin, UTC) - _A_DAY).date()
        last = (datetime.fromtimestamp(end, UTC) + _A_DAY).date()
        if self.count:
            first = min(first, self.start.date())
        if self.freq == "YEARLY":
            first, last = first.replace(month=1, day=1), last.replace(month=12, day=31)
        elif self.freq == "MONTHLY":
            first = first.replace(day=1)
            last = last.replace(day=calendar.monthrange(last.year, last.month)[1])
        else:
            first, last = first - 7 * _A_DAY, last + 7 * _A_DAY
            while first.weekday() != self.week_begins:
                first -= _A_DAY
        times = sorted(
            product(
                self.by.get("BYHOUR") or {self.start.hour},
                self.by.get("BYMINUTE") or {self.start.minute},
                self.by.get("BYSECOND") or {self.start.second},
            )
        )
        days = [first + number * _A_DAY for number in range((last - first).days + 1)]
        counted = 0
        for period, members in groupby(days, self._period):
            if (period - self._period(self.start.date())) % self.interval:
                continue
            fitting = [day for day in members if self._fits(day)]
            walls = [datetime(day.year, day.month, day.day, *t) for day in fitting for t in times]  # noqa: DTZ001 - wall times
            for wall in self._chosen(walls):
                counted += wall >= self.start
                within = not self.until or self.until.tzinfo or wall <= self.until
                if wall >= self.start and within and counted <= (self.count or counted):
                    yield wall

    def _instants_of_elapsed_time(
        self, zone: ZoneInfo, first: int, begin: int, end: int
    ) -> Iterator[int]:
        unit, shown = LENGTHS[self.freq], _wall(first, zone)
        minutes, seconds = self.by.get("BYMINUTE"), self.by.get("BYSECOND")
        origin = first
        if self.freq != "SECONDLY":
            origin -= shown.second
            seconds = seconds or frozenset({self.start.second})
        if self.freq == "HOURLY" and minutes:
            origin -= shown.minute * 60
        begin = max(origin, first if self.count else origin + (begin - origin) // unit * unit)
        counted = 0
        for number in range((begin - origin) // unit, -((origin - end) // unit) + 1):
            if number % self.interval:
                continue
            period = range(origin + number * unit, origin + (number + 1) * unit)
            members = [at for at in period if self._has(at, zone, origin, minutes, seconds)]
            for at in self._chosen(members):
                counted += at >= first
                if at >= first and counted <= (self.count or counted):
                    yield at

    def _has(
        self,
        at: int,
        zone: ZoneInfo,
        origin: int,
        minutes: frozenset[int] | None,
        seconds: frozenset[int] | None,
    ) -> bool:
        if seconds and at % 60 not in seconds:  # no zone of these years shifts seconds
            return False
        if self.freq == "HOURLY" and not minutes and (at - origin) % 3_600 >= 60:
            return False
        wall = _wall(at, zone)
        return (
            wall.hour in (self.by.get("BYHOUR") or {wall.hour})
            and wall.minute in (minutes or {wall.minute})
            and self._fits(wall.date())
        )

    def _chosen(self, members: list[Any]) -> list[Any]:
        positions = self.by.get("BYSETPOS")
        size = len(members)
        return [
            member
            for index, member in enumerate(members)
            if not positions or {index + 1, index - size} & positions
        ]

    def _period(self, day: date) -> int:
        if self.freq == "YEARLY":
            return day.year
        if self.freq == "MONTHLY":
            return day.year * 12 + day.month
        if self.freq == "WEEKLY":
            return (day.toordinal() - 1 - self.week_begins) // 7
        return day.toordinal()

    def _fits(self, day: date) -> bool:
        of_year, of_month = (
            365 + calendar.isleap(day.year),
            calendar.monthrange(day.year, day.month)[1],
        )
        number = day.timetuple().tm_yday
        month_days, year_days = self.by.get("BYMONTHDAY"), self.by.get("BYYEARDAY")
        days, months, weeks = self.days, self.by.get("BYMONTH"), self.by.get("BYWEEKNO")
        if self.freq in {"YEARLY", "MONTHLY", "WEEKLY"} and not (month_days or year_days or days):
            if self.freq == "WEEKLY" or weeks:
                days = frozenset({(self.start.weekday(), 0)})
            else:
                month_days = frozenset({self.start.day})
                if self.freq == "YEARLY":
                    months = months or frozenset({self.start.month})
        place, size = day.day, of_month
        if self.freq == "YEARLY" and not self.by.get("BYMONTH"):
            place, size = number, of_year
        return (
            day.month in (months or {day.month})
            and bool({day.day, day.day - of_month - 1} & (month_days or {day.day}))
            and bool({number, number - of_year - 1} & (year_days or {number}))
            and (not weeks or bool(set(_week(day, self.week_begins)) & weeks))
            and (
                not days
                or any(
                    day.weekday() == one
                    and n in {0, (place - 1) // 7 + 1, -((size - place) // 7) - 1}
                    for one, n in days
                )
            )
        )


def _week(day: date, begins: int) -> tuple[int, int]:
    """Return the number of a day's week from the beginning and from the end of the week's year."""

    def monday(one: date) -> date:
        while one.weekday() != begins:
            one -= _A_DAY
        return one

    year = (monday(day) + 3 * _A_DAY).year  # of its fourth day
    first, after = monday(date(year, 1, 4)), monday(date(year + 1, 1, 4))
    return (monday(day) - first).days // 7 + 1, (monday(day) - after).days // 7


def _wall(at: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)


def _kept(gap: str) -> str:
    """Return how the start and the end are read, which are never dropped."""
    return "after" if gap == "skip" else gap


def _instants(wall: datetime, zone: ZoneInfo, gap: str, repeat: str) -> list[int]:
    both = [int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1)]
    shown = [at for at in both if _wall(at, zone) == wall]
    if not shown:  # PEP 495: the first has the offset before, the second the one after
        return {"after": both[:1], "before": both[1:], "skip": []}[gap]
    instants = sorted(set(shown))
    return {"first": instants[:1], "second": instants[-1:], "both": instants}[repeat]


def _basic(moment: date) -> str:
    if not isinstance(moment, datetime):
        return f"{moment:%Y%m%d}"
    return f"{moment:%Y%m%dT%H%M%S}" + ("Z" if moment.tzinfo else "")


def _name(moment: datetime) -> str:
    text = f"{moment:%Y-%m-%dT%H:%M}" + (f":{moment:%S}" if moment.second else "")
    if moment.tzinfo is None:
        return text
    offset = f"{moment:%z}"
    return text + ("Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:]}")


def changes(zone: ZoneInfo, years: Iterable[int]) -> Iterator[int]:
    """Yield the seconds since 1970 at which a zone's offset changes."""
    for year in years:
        day = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
        end = int(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp())
        while day < end:
            if _offset(zone, day) != _offset(zone, day + 86_400):
                yield next(
                    at
                    for at in range(day + 60, day + 86_401, 60)
                    if _offset(zone, at) != _offset(zone, day)
                )
            day += 86_400


def _offset(zone: ZoneInfo, at: int) -> timedelta | None:
    return datetime.fromtimestamp(at, zone).utcoffset()
