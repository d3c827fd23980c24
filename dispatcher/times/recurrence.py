"""Rules of repetition, in the words of RFC 5545 or of cron, and their instants in a zone.

YEARLY, MONTHLY, WEEKLY and DAILY go by the clocks on the wall. ``dateutil`` finds their days. It
begins with the last period before the time asked for, so that a rule costs the same long after its
start; with a COUNT it begins at the start. It would search until the year 9999 for a rule that
never fires. So it is asked about the same days near that year: the calendar repeats every 400
years.

HOURLY, MINUTELY and SECONDLY go by elapsed time since the instant of their start. Their BY parts
are compared with what the clocks show at an instant. An HOURLY rule with BYMINUTE counts its hours
from the full hour before its start.

Cron goes by the clocks, but by elapsed time where its hours are ``*``. Where it names days of the
month and of the week, a day needs to be one of the two.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import lru_cache
from heapq import merge
from itertools import islice, takewhile
from typing import Literal, NamedTuple, Self
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from dispatcher.errors import InvalidValue, plain, quoted
from dispatcher.times import zones
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.zones import DAY_MS

Gap = Literal["after", "before", "skip"]
"""What becomes of a wall time that a clock change skips.

``after`` counts it with the offset before the change, as RFC 5545 does: 02:30 becomes 03:30.
``before`` counts it with the offset after the change: 01:30. ``skip`` drops it.
"""
Repeat = Literal["first", "second", "both"]
"""At which of its two instants a wall time counts that a clock change repeats."""

MAX_TEXT, MAX_RULES, MAX_COUNT = 2_000, 10, 10_000
_EPOCH, _YEARS = datetime(1970, 1, 1, tzinfo=UTC), range(1970, 9_001)
_CENTURY_MS, _LAST_MS = 36_525 * DAY_MS, 7_700 * 365 * DAY_MS
_SEARCHED_YEAR = 9_799  # dateutil begins no later: an interval and a search take a century each
_PATIENCE = 1_000_000  # so many slots without an instant end the search by elapsed time
_ELAPSED_MS = {"HOURLY": 3_600_000, "MINUTELY": 60_000, "SECONDLY": 1_000}
_LENGTHS_MS = {
    "YEARLY": 366 * DAY_MS, "MONTHLY": 31 * DAY_MS, "WEEKLY": 7 * DAY_MS, "DAILY": DAY_MS,
    **_ELAPSED_MS,
}  # fmt: skip
_CLOCK = {"BYHOUR": (3_600_000, 24), "BYMINUTE": (60_000, 60), "BYSECOND": (1_000, 60)}
# dateutil mistakes weeks 52, 53, -52 and -53 for others where years turn: -1 is the last week.
_RANGES = {
    "INTERVAL": (1, _CENTURY_MS), "COUNT": (1, MAX_COUNT),
    "BYMONTH": (1, 12), "BYWEEKNO": (-51, 51), "BYYEARDAY": (-366, 366), "BYMONTHDAY": (-31, 31),
    "BYHOUR": (0, 23), "BYMINUTE": (0, 59), "BYSECOND": (0, 59), "BYSETPOS": (-366, 366),
}  # fmt: skip
_ONLY_WITH = {"BYWEEKNO": ("YEARLY",), "BYYEARDAY": ("YEARLY",), "BYSETPOS": ("YEARLY", "MONTHLY")}
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_DAY, _NTH, _NUMBER = f"({'|'.join(_WEEKDAYS)})", "[+-]?[1-9][0-9]?", "[+-]?[0-9]{1,9}"
_FORMS = {
    "FREQ": "|".join(_LENGTHS_MS), "WKST": _DAY, "UNTIL": "[0-9]{8}T[0-9]{6}Z?",
    "BYDAY": f"{_DAY}(,{_DAY}){{,59}}|{_NTH}{_DAY}(,{_NTH}{_DAY}){{,59}}",
}  # fmt: skip
_LINE = re.compile(r"(RRULE|RDATE|EXDATE)(?:;VALUE=DATE(?:-TIME)?)?:(.*)")
_ACCEPTED = (
    "an RRULE of RFC 5545, such as FREQ=WEEKLY;BYDAY=MO,TH, with an UNTIL as 20261224T090000, or "
    "in UTC with Z; lines of RRULE:, RDATE: and EXDATE:; five fields of cron, or @daily"
)
_NICKNAMES = {
    "@HOURLY": "0 * * * *", "@DAILY": "0 0 * * *", "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0", "@MONTHLY": "0 0 1 * *", "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}  # fmt: skip
_CRON_DAYS = "SUN MON TUE WED THU FRI SAT SUN"
_CRON_FIELDS = (
    ("minute", 0, 59, ""), ("hour", 0, 23, ""), ("day of the month", 1, 31, ""),
    ("month", 1, 12, "--- JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
    ("day of the week", 0, 7, _CRON_DAYS),
)  # fmt: skip
_CRON_ITEM = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_Parts = Mapping[str, str]
_Lines = tuple[list[_Parts], list[datetime], frozenset[date], list[str]]
"""Rules, dates besides, what is excluded (days, wall times, instants), and lines of these two."""


class Occurrence(NamedTuple):
    """An instant, in milliseconds since 1970, and the name that it has in its recurrence.

    The name is the wall time of the rule, with its offset where both instants of a repeated one
    count; of a rule by elapsed time, and of a date in UTC, it is the instant with ``Z``.
    """

    at_ms: int
    nominal: str


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A rule of repetition from the wall time ``start`` on, as :meth:`parse` returns it.

    ``rule`` is its text in RFC 5545, in which all is written out that an RRULE takes from its
    start. The start itself counts only where the rule names it.
    """

    rule: str
    start: datetime
    gap: Gap = "after"
    repeat: Repeat = "first"

    def __post_init__(self) -> None:
        at, accepted = self.start, "a wall time in whole seconds, of the years 1970 to 9000"
        if not isinstance(at, datetime) or at.tzinfo or at.microsecond or at.year not in _YEARS:
            raise InvalidValue("start", quoted(at), accepted)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        start: datetime,
        until: datetime | None = None,
        count: int | None = None,
        gap: Gap = "after",
        repeat: Repeat = "first",
    ) -> Self:
        """Read an RRULE, lines of RRULE, RDATE and EXDATE, or cron. Raises InvalidValue.

        ``until`` (naive: a wall time) and ``count`` are for a rule that has neither UNTIL nor
        COUNT. COUNT counts from the start, also what is skipped or excluded. A rule that never
        fires is refused.
        """
        cls("", start, gap, repeat)
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise _refusal(f"is no text of at most {MAX_TEXT:,} characters")
        ends = ""
        if count is not None:
            if not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
                raise InvalidValue("count", quoted(count), f"1 to {MAX_COUNT}")
            ends = f";COUNT={int(count)}"
        if until is not None:
            if not isinstance(until, datetime) or until.year not in _YEARS:
                raise InvalidValue("until", quoted(until), "a time of the years 1970 to 9000")
            until = until.astimezone(UTC) if until.tzinfo else until
            ends += f";UNTIL={until:%Y%m%dT%H%M%S}{'Z' * bool(until.tzinfo)}"
        read, _, _, besides = _read(plain(text), start, ends)
        if ends and not read:
            raise _refusal("names dates alone, which no until or count ends")
        rules = list[str]()
        for parts in read:
            names = (name for name in (*_FORMS, *_RANGES) if name in parts)
            rule = "RRULE:" + ";".join(f"{name}={parts[name]}" for name in names)
            rules.append(rule)
            alone = "\n".join([rule, *(line for line in besides if line[0] == "E")])
            # Where clocks are furthest ahead, an UNTIL in UTC comes last.
            if cls(alone, start, gap, repeat).first_from("Etc/GMT-14", -DAY_MS) is None:
                raise _refusal(f"never fires: {quoted(rule)} from {start.isoformat()} on")
        return cls("\n".join([*rules, *besides]), start, gap, repeat)

    def between(self, zone: str, start_ms: int, end_ms: int) -> list[Occurrence]:
        """Return what lies from ``start_ms`` until before ``end_ms``, in strictly growing instants.

        Of several occurrences at an instant the least name counts. SECONDLY gives 86,400 a day.
        """
        names = dict[int, str]()
        for at_ms, name in self._near(zones.rules(zone), start_ms, end_ms):
            if start_ms <= at_ms < end_ms:
                names[at_ms] = min(name, names.get(at_ms, name))
        return [Occurrence(at_ms, names[at_ms]) for at_ms in sorted(names)]

    def first_from(self, zone: str, at_ms: int) -> int | None:
        """Return the first instant at ``at_ms`` or later, None where there is none any more."""
        return next((one.at_ms for one in self.following(zone, at_ms, 1)), None)

    def following(self, zone: str, at_ms: int, most: int) -> list[Occurrence]:
        """Return the first occurrences at ``at_ms`` or later, ``most`` of them or fewer."""
        ahead = set[int]()
        for one in self._near(zones.rules(zone), at_ms, _LAST_MS):
            ahead |= {one.at_ms} if one.at_ms >= at_ms else set()
            if len(ahead) >= most:
                break
        # Where clocks change, a later wall time may be an earlier instant.
        return self.between(zone, at_ms, max(ahead, default=at_ms) + 1)[:most]

    def _near(self, zone: ZoneInfo, start_ms: int, end_ms: int) -> Iterator[Occurrence]:
        """Return what lies in a span and near it, in order but where clocks change."""
        rules, dates, excluded, _ = _read(self.rule, self.start)
        first_ms = self._instants(self.start, zone, is_bound=True)[0]
        begin_ms, end_ms = (min(max(ms, -DAY_MS), _LAST_MS) for ms in (start_ms, end_ms))
        counted = (one for one in dates if not one.tzinfo or first_ms <= _ms(one) < _LAST_MS)
        streams = [self._at(counted, zone, excluded, _LAST_MS)]
        for parts in rules:
            last_ms, by_elapsed_time = _LAST_MS, parts["FREQ"] in _ELAPSED_MS
            if "UNTIL" in parts and (by_elapsed_time or parts["UNTIL"][-1] == "Z"):
                until = datetime.fromisoformat(parts["UNTIL"])
                last_ms = self._instants(until, zone, is_bound=True)[-1]
            span = (begin_ms, min(end_ms, last_ms + 1))
            if by_elapsed_time:
                moments = _ticks(parts, zone, first_ms, span, excluded)
            else:
                moments = _walls(parts, self.start, span)
            count = int(parts["COUNT"]) if "COUNT" in parts else None
            streams.append(self._at(islice(moments, count), zone, excluded, last_ms))
        return merge(*streams)

    def _at(
        self, moments: Iterable[datetime], zone: ZoneInfo, excluded: Set[date], last_ms: int
    ) -> Iterator[Occurrence]:
        for moment in moments:
            wall, instants = moment, self._instants(moment, zone)
            if excluded and moment.tzinfo:
                wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
            for at_ms in instants:
                if at_ms > last_ms or (excluded and excluded & {wall, wall.date(), _utc(at_ms)}):
                    continue
                named = moment
                if len(instants) > 1:
                    named = moment.replace(tzinfo=timezone((_ms(moment) - at_ms) * MILLISECOND))
                name = named.isoformat(timespec="seconds" if named.second else "minutes")
                yield Occurrence(at_ms, name.replace("+00:00", "Z"))

    def _instants(self, moment: datetime, zone: ZoneInfo, *, is_bound: bool = False) -> list[int]:
        """Return the instants of a wall time, in order; a bound is never skipped."""
        if moment.tzinfo:
            return [_ms(moment)]
        # With the offset before a clock change, and after it: they differ only near one (PEP 495).
        before, after = (_ms(moment.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
        if before == after:
            return [before]
        if before > after:
            is_skipped = self.gap == "skip" and not is_bound
            return [] if is_skipped else [after if self.gap == "before" else before]
        return {"first": [before], "second": [after], "both": [before, after]}[self.repeat]


def _walls(parts: _Parts, start: datetime, span: tuple[int, int]) -> Iterator[datetime]:
    """Yield the wall times of a rule in a span and a day around it, from the start on."""
    begin, end = (_utc(ms).replace(tzinfo=None) for ms in (span[0] - DAY_MS, span[1] + DAY_MS))
    begin = start if "COUNT" in parts else max(begin, start)
    until = datetime.fromisoformat(parts.get("UNTIL", "9999-12-31"))
    end = end if until.tzinfo else min(end, until)
    freq, every = parts["FREQ"], int(parts.get("INTERVAL", "1"))
    if freq in {"YEARLY", "MONTHLY"}:
        origin = start.year * 12 + (start.month - 1 if freq == "MONTHLY" else 0)
        months = begin.year * 12 + begin.month - 1
        months -= (months - origin) % (every if freq == "MONTHLY" else 12 * every)
        day = datetime(months // 12, months % 12 + 1, 1)  # noqa: DTZ001 - a wall time
    else:
        day = datetime.combine(start, time.min)
        if freq == "WEEKLY":
            day -= timedelta(days=(day.weekday() - _WEEKDAYS.index(parts.get("WKST", "MO"))) % 7)
        day = begin - (begin - day) % (every * _LENGTHS_MS[freq] * MILLISECOND)
    ahead = (_SEARCHED_YEAR - day.year) // 400 * 400
    text = ";".join(f"{name}={parts[name]}" for name in parts.keys() - {"COUNT", "UNTIL"})
    distant = rrulestr(text, dtstart=day.replace(year=day.year + ahead)) if begin <= end else ()
    walls = (wall.replace(year=wall.year - ahead) for wall in distant)
    return (wall for wall in takewhile(lambda wall: wall <= end, walls) if wall >= begin)


def _ticks(
    parts: _Parts, zone: ZoneInfo, first_ms: int, span: tuple[int, int], excluded: Set[date]
) -> Iterator[datetime]:
    """Yield the instants of a rule by elapsed time in a span, or up to its end with a COUNT.

    They are the ticks in those slots of each day that the BY parts leave.
    """
    begin, end = max(span[0], first_ms), span[1]
    if "COUNT" in parts:
        begin, end, excluded = first_ms, min(end, first_ms + _CENTURY_MS), frozenset()
    by = {name: [*map(int, parts[name].split(","))] for name in _CLOCK if name in parts}
    unit = _ELAPSED_MS[parts["FREQ"]]
    every = unit * int(parts.get("INTERVAL", "1"))
    seconds = [0] if parts["FREQ"] == "SECONDLY" else by.pop("BYSECOND")
    has_minutes = parts["FREQ"] == "HOURLY" and "BYMINUTE" in by
    slots, length = [0], DAY_MS
    for name, (size, number) in _CLOCK.items():
        if by:
            values, length = by.pop(name, [*range(number)]), size
            slots = [slot + size * value for slot in slots for value in values]
    [(_, _, offset)] = zones.pieces(zone, first_ms, first_ms + 1)
    origin = first_ms - (first_ms + offset) % (unit if has_minutes else min(unit, 60_000))
    at, idle = begin - 59_000, 0
    while at < end and idle < _PATIENCE:
        _, until, offset = zones.pieces(zone, at, at + DAY_MS)[0]
        day = (at + offset) // DAY_MS
        midnight, idle = day * DAY_MS - offset, idle + 25  # a day costs as much as 25 slots
        until = min(until, midnight + DAY_MS, end)
        for slot in slots if _fits(parts, _utc(day * DAY_MS).date(), excluded) else ():
            idle += 1
            first, last = max(at, midnight + slot), min(until, midnight + slot + length)
            ticks = range(first + (origin - first) % every, last, every)
            if has_minutes:
                is_due = first == midnight + slot and (first - origin) % every < unit
                ticks = range(first, last, length) if is_due else range(0)
            for tick in ticks:
                idle = 0
                yield from (_utc(ms) for s in seconds if (ms := tick + s * 1_000) >= begin)
        at = until if has_minutes else until + (origin - until) % every


def _fits(parts: _Parts, day: date, excluded: Set[date]) -> bool:
    """Tell whether a rule by elapsed time has a day."""
    back, weekday = f"{day.day - monthrange(day.year, day.month)[1] - 1}", _WEEKDAYS[day.weekday()]
    shown = {"BYMONTH": {f"{day.month}"}, "BYMONTHDAY": {f"{day.day}", back}, "BYDAY": {weekday}}
    return day not in excluded and not any(
        shown[name].isdisjoint(parts[name].split(",")) for name in shown.keys() & parts.keys()
    )


@lru_cache(maxsize=1 << 10)
def _read(text: str, start: datetime, end: str = "") -> _Lines:
    """Read lines; ``end`` are further parts of each RRULE. Raises InvalidValue."""
    rules, besides = list[_Parts](), list[str]()
    moments: dict[str, list[date]] = {"RDATE": [], "EXDATE": []}
    text = re.sub(r"\r?\n[ \t]", "", text.strip().upper())
    for line in (_of_cron(text) or text).splitlines():
        match = _LINE.fullmatch(line if ":" in line else f"RRULE:{line}")
        if match is None:
            raise _refusal(f"has {quoted(line)}, and start and zone are given beside the rule")
        if match[1] == "RRULE":
            rules.append(_written_out(match[2] + end, start))
        else:
            besides.append(line)
            moments[match[1]] += map(_moment, match[2].split(","))
    if not (rules or moments["RDATE"]) or len(rules) > (1 if "COUNT" in end else MAX_RULES):
        raise _refusal(f"has {len(rules)} rules, not 1 to {MAX_RULES}, or 1 with a count beside it")
    dates = (
        moment if isinstance(moment, datetime) else datetime.combine(moment, start.time())
        for moment in moments["RDATE"]
    )
    counted = [moment for moment in dates if moment.tzinfo or moment >= start]
    return rules, counted, frozenset(moments["EXDATE"]), besides


def _written_out(text: str, start: datetime) -> _Parts:
    """Return the parts of an RRULE, with all that it takes from its start but the phase."""
    pairs = [part.partition("=")[::2] for part in text.split(";")]
    freq = dict(pairs).get("FREQ", "")
    if freq not in _LENGTHS_MS:
        raise _refusal(f"has {quoted(freq)} as FREQ, not one of {', '.join(_LENGTHS_MS)}")
    parts = {name: _value(name, value, freq) for name, value in pairs}
    if len(parts) < len(pairs) or parts.keys() >= {"UNTIL", "COUNT"}:
        raise _refusal(f"has a part twice, or both UNTIL and COUNT: {quoted(text)}")
    _moment(parts.get("UNTIL", "19700101"))
    most = {"YEARLY": 5 if "BYMONTH" in parts else 53, "MONTHLY": 5}.get(freq, 0)
    if any(int(number) > most for number in re.findall("[0-9]+", parts.get("BYDAY", ""))):
        raise _refusal(f"has {quoted(parts['BYDAY'])} in BYDAY, where numbers end with {most}")
    if freq not in _ELAPSED_MS:
        parts = {"BYHOUR": str(start.hour), "BYMINUTE": str(start.minute)} | parts
    if freq != "SECONDLY":
        parts.setdefault("BYSECOND", str(start.second))
    if parts.keys() & {"BYDAY", "BYMONTHDAY", "BYYEARDAY"}:
        return parts
    if freq == "WEEKLY" or "BYWEEKNO" in parts:
        return parts | {"BYDAY": _WEEKDAYS[start.weekday()]}
    if freq == "YEARLY":
        parts.setdefault("BYMONTH", str(start.month))
    return parts | ({"BYMONTHDAY": str(start.day)} if freq in {"YEARLY", "MONTHLY"} else {})


def _value(name: str, text: str, freq: str) -> str:
    """Return the value of a part as it is written. Raises InvalidValue."""
    if name in _FORMS and re.fullmatch(_FORMS[name], text):
        return text
    if name not in _RANGES or freq not in _ONLY_WITH.get(name, _LENGTHS_MS):
        raise _refusal(f"has {quoted(f'{name}={text}')}, which an RRULE of FREQ={freq} cannot have")
    least, most = _RANGES[name]
    form = rf"{_NUMBER}(,{_NUMBER}){{,59}}" if name[:2] == "BY" else _NUMBER
    numbers = {*map(int, text.split(","))} if re.fullmatch(form, text) else {most + 1}
    most //= _LENGTHS_MS[freq] if name == "INTERVAL" else 1
    if not all(least <= n <= most and (n or least == 0) for n in numbers):
        bounds = f"{least} to {most}{' without 0' * (least < 0)}"
        raise _refusal(f"has {quoted(text)} in {name}, not {bounds}")
    return ",".join(map(str, sorted(numbers)))


def _moment(text: str) -> date:
    try:
        if re.fullmatch("[0-9]{8}(T[0-9]{6}Z?)?", text, re.ASCII):
            return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)
    except ValueError:
        pass
    raise _refusal(f"has {quoted(text)}, which is no time and no date")


def _of_cron(text: str) -> str | None:
    """Return the lines of rules that cron text means, None for another text."""
    fields = _NICKNAMES.get(text, text).split()
    if len(fields) != len(_CRON_FIELDS) or {*text} & {*":="}:
        return None
    minutes, hours, days, months, weekdays = map(_cron_values, fields, _CRON_FIELDS)
    rule = "FREQ=HOURLY" if fields[1] == "*" else f"FREQ=DAILY;BYHOUR={hours}"
    rule += f";BYMINUTE={minutes};BYSECOND=0" + (f";BYMONTH={months}" if fields[3] != "*" else "")
    of_month = f";BYMONTHDAY={days}" if fields[2] != "*" else ""
    of_week = f";BYDAY={weekdays}" if fields[4] != "*" else ""
    if of_month and of_week and "*" not in fields[2][0] + fields[4][0]:
        return f"{rule}{of_month}\n{rule}{of_week}"
    return rule + of_month + of_week


def _cron_values(text: str, field: tuple[str, int, int, str]) -> str:
    (name, least, most, words), values = field, set[int]()
    for item in text.split(","):
        numbers = re.sub("[A-Z]{3}", lambda word: str(words.find(word[0]) // 4), item)
        match = _CRON_ITEM.fullmatch(numbers)
        first, last, step = match.groups() if match else ("99", None, None)
        begin, end, every = int(first or least), int(last or first or most), int(step or 1)
        if words == _CRON_DAYS and end == 0 < begin:
            end = most
        if (step and first and not last) or not every or not least <= begin <= end <= most:
            ranges = f"{least} to {most}, a range, * or one of these with /steps"
            raise _refusal(f"has {quoted(item)} as {name}, not {ranges}")
        values |= {*range(begin, end + 1, every)}
    return ",".join(words.split()[n][:2] if words == _CRON_DAYS else str(n) for n in sorted(values))


def _refusal(problem: str) -> InvalidValue:
    return InvalidValue("rule", problem, _ACCEPTED)


def _utc(ms: int) -> datetime:
    return _EPOCH + ms * MILLISECOND


def _ms(moment: datetime) -> int:
    """Return an instant; of a wall time what it would be, were it one of UTC."""
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // MILLISECOND
