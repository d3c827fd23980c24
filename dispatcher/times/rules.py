"""Rules of repetition as text: RFC 5545 (§3.3.10, §3.8.5), and cron, which is written as such.

Cron goes by the clocks on the wall, but where its hours are ``*``: then by elapsed time. Where days
of the month and of the week are both restricted either suffices, as in cron.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from math import prod
from typing import Literal, NamedTuple, cast, get_args

from dispatcher.errors import InvalidValue, quoted

Frequency = Literal["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]

MAX_TEXT, MAX_RULES, MAX_COUNT, MAX_TIMES_A_DAY = 2_000, 10, 10_000, 1_440
BY_ELAPSED_TIME = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
"""The seconds of what goes by elapsed time."""

_MOST_INTERVAL = {"YEARLY": 99, "MONTHLY": 1_199, "WEEKLY": 5_199, "DAILY": 36_524}
_CENTURY_SECONDS = 36_524 * 86_400
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_RANGES = {
    "BYMONTH": (1, 12), "BYWEEKNO": (-51, 51), "BYYEARDAY": (-366, 366), "BYMONTHDAY": (-31, 31),
    "BYHOUR": (0, 23), "BYMINUTE": (0, 59), "BYSECOND": (0, 59), "BYSETPOS": (-366, 366),
}  # fmt: skip
"""dateutil mistakes weeks 52, 53, -52 and -53 for others where years turn: -1 is the last week."""
_TIMES, _DAILY = ("BYHOUR", "BYMINUTE", "BYSECOND"), 3
_PARTS = {"FREQ", "INTERVAL", "UNTIL", "COUNT", "WKST", "BYDAY", *_RANGES}
_NOT_WITH = {
    "BYWEEKNO": {*get_args(Frequency)} - {"YEARLY"},
    "BYYEARDAY": {"MONTHLY", "WEEKLY", "DAILY"},
    "BYMONTHDAY": {"WEEKLY"},
}
_LINE = re.compile(r"(RRULE|RDATE|EXDATE)(?:;VALUE=DATE(?:-TIME)?)?:(.*)")
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
_WEEKDAY = re.compile(rf"([+-]?[0-9]{{1,2}})?({'|'.join(_WEEKDAYS)})", re.ASCII)
_MOMENT = re.compile(r"[0-9]{8}(T[0-9]{6}Z?)?", re.ASCII)
_ACCEPTED = (
    "an RRULE of RFC 5545, such as FREQ=WEEKLY;BYDAY=MO,TH, with an UNTIL as 20261224T090000, or "
    "in UTC with Z; lines of RRULE:, RDATE: and EXDATE:; five fields of cron, or @daily"
)
_NICKNAMES = {
    "@HOURLY": "0 * * * *", "@DAILY": "0 0 * * *", "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0", "@MONTHLY": "0 0 1 * *", "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}  # fmt: skip
_MONTHS, _CRON_DAYS = 12, "SUN MON TUE WED THU FRI SAT"
_CRON_FIELDS = (
    ("minute", 0, 59, ""), ("hour", 0, 23, ""), ("day of the month", 1, 31, ""),
    ("month", 1, 12, "- JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
    ("day of the week", 0, 7, _CRON_DAYS),
)  # fmt: skip
_CRON_ITEM = re.compile(
    r"(?:\*|([0-9]{1,2}|[A-Z]{3})(?:-([0-9]{1,2}|[A-Z]{3}))?)(?:/([0-9]{1,2}))?", re.ASCII
)


_By = dict[str, tuple[int, ...]]
_Days = tuple[tuple[int, int], ...]


class Rule(NamedTuple):
    """An RRULE in which nothing is left to the start but the phase of ``interval``."""

    freq: Frequency
    interval: int
    until: datetime | None  # naive: what the clocks show; aware: UTC
    most: int | None  # COUNT
    week_begins: int
    days: _Days  # of the week, with the number in the month or year, or 0
    by: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        parts = {
            "FREQ": self.freq,
            "INTERVAL": self.interval if self.interval > 1 else None,
            "UNTIL": self.until and basic(self.until),
            "COUNT": self.most,
            "BYDAY": ",".join(f"{number or ''}{_WEEKDAYS[day]}" for day, number in self.days),
            **{name: ",".join(map(str, values)) for name, values in self.by},
            "WKST": _WEEKDAYS[self.week_begins] if self.week_begins else None,
        }
        return ";".join(f"{name}={value}" for name, value in parts.items() if value)


class Lines(NamedTuple):
    """Rules, dates besides, and what is excluded: days, wall times and, aware, instants."""

    rules: tuple[Rule, ...]
    dates: tuple[datetime, ...]
    excluded: frozenset[date]

    def __str__(self) -> str:
        lines = [f"RRULE:{rule}" for rule in self.rules]
        moments = {one for one in self.excluded if isinstance(one, datetime)}
        days = self.excluded - moments
        for name, values in (
            ("RDATE", self.dates),
            ("EXDATE", moments),
            ("EXDATE;VALUE=DATE", days),
        ):
            if values:
                lines.append(f"{name}:{','.join(sorted(map(basic, values)))}")
        return "\n".join(lines)


def read(text: str, start: datetime, end: str = "") -> Lines:
    """Read lines; ``end`` are further parts of each RRULE. Raises InvalidValue."""
    rules, dates, excluded = list[str](), list[date](), list[date]()
    text = re.sub(r"\r?\n[ \t]", "", text.strip().upper())
    for line in (_of_cron(text) or text).splitlines():
        match = _LINE.fullmatch(line if ":" in line else f"RRULE:{line}")
        if match is None:
            raise refusal(f"has {quoted(line)}, and start and zone are given beside the rule")
        if match[1] == "RRULE":
            rules.append(match[2] + end)
        else:
            (dates if match[1] == "RDATE" else excluded).extend(map(_moment, match[2].split(",")))
    if not (rules or dates) or len(rules) > (1 if "COUNT" in end else MAX_RULES):
        raise refusal(f"has {len(rules)} rules, not 1 to {MAX_RULES}, or 1 with a count beside it")
    whole = (
        one if isinstance(one, datetime) else datetime.combine(one, start.time()) for one in dates
    )
    read_rules = tuple(_read_rule(rule, start) for rule in rules)
    return Lines(read_rules, tuple(whole), frozenset(excluded))


def _read_rule(text: str, start: datetime) -> Rule:
    parts = _split(text)
    freq = cast(Frequency, _one_of(get_args(Frequency), "FREQ", parts.get("FREQ", "")))
    by = {
        name: tuple(sorted({_number(name, one, *_RANGES[name]) for one in parts[name].split(",")}))
        for name in _RANGES
        if name in parts
    }
    days = _read_days(parts["BYDAY"], freq, by) if "BYDAY" in parts else ()
    wrong = [name for name in by if freq in _NOT_WITH.get(name, ())]
    if wrong or (by.keys() == {"BYSETPOS"} and not days):
        problem = f"has {wrong[0]} with FREQ={freq}" if wrong else "has no BY part but BYSETPOS"
        raise refusal(problem)
    days = _write_out(freq, by, days, start)
    most = _MOST_INTERVAL.get(freq) or _CENTURY_SECONDS // BY_ELAPSED_TIME[freq]
    return Rule(
        freq,
        _number("INTERVAL", parts.get("INTERVAL", "1"), 1, most),
        _until(parts["UNTIL"], start) if "UNTIL" in parts else None,
        _number("COUNT", parts["COUNT"], 1, MAX_COUNT) if "COUNT" in parts else None,
        _WEEKDAYS.index(_one_of(_WEEKDAYS, "WKST", parts.get("WKST", "MO"))),
        days,
        tuple((name, by[name]) for name in _RANGES if name in by),
    )


def _split(text: str) -> dict[str, str]:
    parts = dict[str, str]()
    for part in text.split(";"):
        name, _, value = part.partition("=")
        if name not in _PARTS:
            raise refusal(f"has {quoted(part)}, no part of an RRULE")
        if name in parts:
            raise refusal(f"has {name} twice")
        parts[name] = value
    if {"UNTIL", "COUNT"} <= parts.keys():
        raise refusal("has both UNTIL and COUNT")
    return parts


def _write_out(freq: Frequency, by: _By, days: _Days, start: datetime) -> _Days:
    """Give a rule what it takes from its start; return its days of the week."""
    if not days and not by.keys() & {"BYMONTHDAY", "BYYEARDAY"}:
        if freq == "WEEKLY" or "BYWEEKNO" in by:
            days = ((start.weekday(), 0),)
        elif freq in {"YEARLY", "MONTHLY"}:
            by["BYMONTHDAY"] = (start.day,)
            if freq == "YEARLY":
                by.setdefault("BYMONTH", (start.month,))
    if freq != "SECONDLY":
        by.setdefault("BYSECOND", (start.second,))
    if freq not in BY_ELAPSED_TIME:
        by.setdefault("BYHOUR", (start.hour,))
        by.setdefault("BYMINUTE", (start.minute,))
    expanding = _TIMES[max(0, get_args(Frequency).index(freq) - _DAILY) :]
    times = prod(len(by.get(name, "1")) for name in expanding)
    if times > MAX_TIMES_A_DAY and freq not in BY_ELAPSED_TIME:
        raise refusal(f"names more than {MAX_TIMES_A_DAY:,} times a day with FREQ={freq}")
    most = times * {"YEARLY": 366, "MONTHLY": 31, "WEEKLY": 7}.get(freq, 1)
    if min(map(abs, by.get("BYSETPOS", (1,)))) > most:
        raise refusal(f"never fires: no period has as many times as BYSETPOS wants, but {most}")
    return days


def _read_days(text: str, freq: str, by: _By) -> _Days:
    """Read BYDAY. Where a day has a number each gets them all: dateutil wants both kinds to fit."""
    most = 0
    if freq in {"YEARLY", "MONTHLY"} and "BYWEEKNO" not in by:
        most = 53 if freq == "YEARLY" and "BYMONTH" not in by else 5
    days = set[tuple[int, int]]()
    for one in text.split(","):
        match = _WEEKDAY.fullmatch(one)
        if match is None or (match[1] and not 0 < abs(int(match[1])) <= most):
            numbers = f"with numbers up to {most}" if most else "without a number"
            raise refusal(
                f"has {quoted(one)} in BYDAY; here it takes {', '.join(_WEEKDAYS)} {numbers}"
            )
        days.add((_WEEKDAYS.index(match[2]), int(match[1] or 0)))
    if any(number for _, number in days):
        days = {
            (day, n) for day, number in days for n in ([number] if number else range(1, most + 1))
        }
    return tuple(sorted(days))


def _one_of(values: tuple[str, ...], name: str, text: str) -> str:
    if text not in values:
        raise refusal(f"has {quoted(text)} as {name}, not one of {', '.join(values)}")
    return text


def _number(name: str, text: str, least: int, most: int) -> int:
    number = int(text) if _NUMBER.fullmatch(text) else most + 1
    if not least <= number <= most or (number == 0 and least < 0):
        ranges = f"{least} to {most}" if least >= 0 else f"1 to {most} or {least} to -1"
        raise refusal(f"has {quoted(text)} in {name}, not {ranges}")
    return number


def _moment(text: str) -> date:
    try:
        if _MOMENT.fullmatch(text):
            return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)
    except ValueError:
        pass
    raise refusal(f"has {quoted(text)}, which is no time and no date")


def _until(text: str, start: datetime) -> datetime:
    until = _moment(text)
    if not isinstance(until, datetime):
        raise refusal(f"has the date {text} as UNTIL, while its start is a time of a day")
    # Clocks are at most 14 hours ahead of UTC.
    if until.replace(tzinfo=None) < start - timedelta(hours=14 if until.tzinfo else 0):
        raise refusal(f"has an UNTIL of {text}, before its start, {start.isoformat()}")
    return until


def _of_cron(text: str) -> str | None:
    """Return the lines of rules that cron text means, None for another text."""
    fields = _NICKNAMES.get(text, text).split()
    if len(fields) != len(_CRON_FIELDS) or any(":" in field or "=" in field for field in fields):
        return None
    minutes, hours, days, months, weekdays = map(_cron_values, fields, _CRON_FIELDS)
    rule = f"FREQ=DAILY;BYHOUR={_joined(hours)}" if fields[1] != "*" else "FREQ=HOURLY"
    rule += f";BYMINUTE={_joined(minutes)};BYSECOND=0"
    if len(months) < _MONTHS:
        rule += f";BYMONTH={_joined(months)}"
    of_month = f";BYMONTHDAY={_joined(days)}" if fields[2] != "*" else ""
    of_week = (
        f";BYDAY={_joined(_WEEKDAYS[(day + 6) % 7] for day in weekdays)}"
        if fields[4] != "*"
        else ""
    )
    if of_month and of_week and "*" not in fields[2][0] + fields[4][0]:
        return f"{rule}{of_month}\n{rule}{of_week}"
    return rule + of_month + of_week


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _cron_values(text: str, field: tuple[str, int, int, str]) -> list[int]:
    name, least, most, words = field
    names, values = words.split(), set[int]()
    for item in text.split(","):
        match = _CRON_ITEM.fullmatch(item)
        first, last, step = match.groups() if match else ("", None, None)
        if match and first is None:
            first, last = str(least), str(most)
        begin, end = (
            names.index(word) if word in names else int(word) if word.isdigit() else -1
            for word in (first, last or first)
        )
        if words == _CRON_DAYS and end == 0 < begin:
            end = most
        has_step = step is None or (int(step) > 0 and last)
        if not least <= begin <= end <= most or not has_step:
            ranges = f"{least} to {most}, a range, * or one of these with /steps"
            raise refusal(f"has {quoted(item)} as {name}, not {ranges}")
        values |= set(range(begin, end + 1, int(step or 1)))
    return sorted(values)


def refusal(problem: str) -> InvalidValue:
    return InvalidValue("rule", problem, _ACCEPTED)


def basic(moment: date) -> str:
    return moment.isoformat().replace("-", "").replace(":", "").replace("+0000", "Z")
