"""Rules of repetition: the examples of RFC 5545, cron, refusals, and how much is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil import rrule
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import InvalidValue
from dispatcher.times import recurrence
from dispatcher.times.recurrence import Recurrence
from dispatcher.times.zones import DAY_MS
from tests.support.examples import examples

NEW_YORK = ZoneInfo("America/New_York")

EXAMPLES = """
    FREQ=DAILY;COUNT=10 @ 1997-09-02 = 1997-09 2-11 END
    FREQ=DAILY;UNTIL=19971224T000000Z @ 1997-09-02
        = 1997-09 2-30; 1997-10 1-31; 1997-11 1-30; 1997-12 1-23 END
    FREQ=DAILY;INTERVAL=2 @ 1997-09-02
        = 1997-09 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30;
          1997-10 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30; 1997-11 1,3,5,7
    FREQ=DAILY;INTERVAL=10;COUNT=5 @ 1997-09-02 = 1997-09 2,12,22; 1997-10 2,12 END
    FREQ=YEARLY;UNTIL=20000131T140000Z;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA @ 1998-01-01
        = 1998-01 1-31; 1999-01 1-31; 2000-01 1-31 END
    FREQ=DAILY;UNTIL=20000131T140000Z;BYMONTH=1 @ 1998-01-01
        = 1998-01 1-31; 1999-01 1-31; 2000-01 1-31 END
    FREQ=WEEKLY;COUNT=10 @ 1997-09-02
        = 1997-09 2,9,16,23,30; 1997-10 7,14,21,28; 1997-11 4 END
    FREQ=WEEKLY;UNTIL=19971224T000000Z @ 1997-09-02
        = 1997-09 2,9,16,23,30; 1997-10 7,14,21,28; 1997-11 4,11,18,25; 1997-12 2,9,16,23 END
    FREQ=WEEKLY;INTERVAL=2;WKST=SU @ 1997-09-02
        = 1997-09 2,16,30; 1997-10 14,28; 1997-11 11,25; 1997-12 9,23; 1998-01 6,20; 1998-02 3,17
    FREQ=WEEKLY;UNTIL=19971007T000000Z;WKST=SU;BYDAY=TU,TH @ 1997-09-02
        = 1997-09 2,4,9,11,16,18,23,25,30; 1997-10 2 END
    FREQ=WEEKLY;COUNT=10;WKST=SU;BYDAY=TU,TH @ 1997-09-02
        = 1997-09 2,4,9,11,16,18,23,25,30; 1997-10 2 END
    FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR @ 1997-09-01
        = 1997-09 1,3,5,15,17,19,29; 1997-10 1,3,13,15,17,27,29,31;
          1997-11 10,12,14,24,26,28; 1997-12 8,10,12,22 END
    FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH @ 1997-09-02
        = 1997-09 2,4,16,18,30; 1997-10 2,14,16 END
    FREQ=MONTHLY;COUNT=10;BYDAY=1FR @ 1997-09-05
        = 1997-09 5; 1997-10 3; 1997-11 7; 1997-12 5; 1998-01 2; 1998-02 6; 1998-03 6;
          1998-04 3; 1998-05 1; 1998-06 5 END
    FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR @ 1997-09-05
        = 1997-09 5; 1997-10 3; 1997-11 7; 1997-12 5 END
    FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU @ 1997-09-07
        = 1997-09 7,28; 1997-11 2,30; 1998-01 4,25; 1998-03 1,29; 1998-05 3,31 END
    FREQ=MONTHLY;COUNT=6;BYDAY=-2MO @ 1997-09-22
        = 1997-09 22; 1997-10 20; 1997-11 17; 1997-12 22; 1998-01 19; 1998-02 16 END
    FREQ=MONTHLY;BYMONTHDAY=-3 @ 1997-09-28
        = 1997-09 28; 1997-10 29; 1997-11 28; 1997-12 29; 1998-01 29; 1998-02 26
    FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15 @ 1997-09-02
        = 1997-09 2,15; 1997-10 2,15; 1997-11 2,15; 1997-12 2,15; 1998-01 2,15 END
    FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1 @ 1997-09-30
        = 1997-09 30; 1997-10 1,31; 1997-11 1,30; 1997-12 1,31; 1998-01 1,31; 1998-02 1 END
    FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15 @ 1997-09-10
        = 1997-09 10-15; 1999-03 10-13 END
    FREQ=MONTHLY;INTERVAL=2;BYDAY=TU @ 1997-09-02
        = 1997-09 2,9,16,23,30; 1997-11 4,11,18,25; 1998-01 6,13,20,27; 1998-03 3,10,17,24,31
    FREQ=YEARLY;COUNT=10;BYMONTH=6,7 @ 1997-06-10
        = 1997-06 10; 1997-07 10; 1998-06 10; 1998-07 10; 1999-06 10; 1999-07 10; 2000-06 10;
          2000-07 10; 2001-06 10; 2001-07 10 END
    FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3 @ 1997-03-10
        = 1997-03 10; 1999-01 10; 1999-02 10; 1999-03 10; 2001-01 10; 2001-02 10; 2001-03 10;
          2003-01 10; 2003-02 10; 2003-03 10 END
    FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200 @ 1997-01-01
        = 1997-01 1; 1997-04 10; 1997-07 19; 2000-01 1; 2000-04 9; 2000-07 18; 2003-01 1;
          2003-04 10; 2003-07 19; 2006-01 1 END
    FREQ=YEARLY;BYDAY=20MO @ 1997-05-19 = 1997-05 19; 1998-05 18; 1999-05 17
    FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO @ 1997-05-12 = 1997-05 12; 1998-05 11; 1999-05 17
    FREQ=YEARLY;BYMONTH=3;BYDAY=TH @ 1997-03-13
        = 1997-03 13,20,27; 1998-03 5,12,19,26; 1999-03 4,11,18,25
    FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8 @ 1997-06-05
        = 1997-06 5,12,19,26; 1997-07 3,10,17,24,31; 1997-08 7,14,21,28;
          1998-06 4,11,18,25; 1998-07 2,9,16,23,30; 1998-08 6,13,20,27;
          1999-06 3,10,17,24; 1999-07 1,8,15,22,29; 1999-08 5,12,19,26
    EXDATE:19970902T090000 RRULE:FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13 @ 1997-09-02
        = 1998-02 13; 1998-03 13; 1998-11 13; 1999-08 13; 2000-10 13
    FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13 @ 1997-09-13
        = 1997-09 13; 1997-10 11; 1997-11 8; 1997-12 13; 1998-01 10; 1998-02 7; 1998-03 7;
          1998-04 11; 1998-05 9; 1998-06 13
    FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8 @ 1996-11-05
        = 1996-11 5; 2000-11 7; 2004-11 2
    FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3 @ 1997-09-04
        = 1997-09 4; 1997-10 7; 1997-11 6 END
    FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2 @ 1997-09-29
        = 1997-09 29; 1997-10 30; 1997-11 27; 1997-12 30; 1998-01 29; 1998-02 26; 1998-03 30
    FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T210000Z @ 1997-09-02
        = 1997-09-02 09:00,12:00,15:00 END
    FREQ=MINUTELY;INTERVAL=15;COUNT=6 @ 1997-09-02
        = 1997-09-02 09:00,09:15,09:30,09:45,10:00,10:15 END
    FREQ=MINUTELY;INTERVAL=90;COUNT=4 @ 1997-09-02 = 1997-09-02 09:00,10:30,12:00,13:30 END
    FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40 @ 1997-09-02 = TWENTY
    FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16 @ 1997-09-02 = TWENTY
    FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO @ 1997-08-05 = 1997-08 5,10,19,24 END
    FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU @ 1997-08-05 = 1997-08 5,17,19,31 END
    FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5 @ 2007-01-15
        = 2007-01 15,30; 2007-02 15; 2007-03 15,30 END
"""
"""The worked examples of RFC 5545 §3.8.5.3, in its order, at 9 o'clock in New York.

The UNTIL of every 3 hours is the one of erratum 3779. END: the rule has no more.
"""


def examples_of_the_rfc() -> Iterator[tuple[str, datetime, list[datetime], bool]]:
    times = [f"{hour:02}:{minute}" for hour in range(9, 17) for minute in ("00", "20", "40")]
    twenty = "; ".join(f"1997-09-0{day} {','.join(times)}" for day in (2, 3))
    for text in re.split(r"\n {4}(?! )", EXAMPLES.replace("TWENTY", twenty).rstrip())[1:]:
        match = re.fullmatch(r"(.*?)\s@\s(\S+)\s+=\s(.*?)( END)?", text, re.DOTALL)
        assert match is not None
        rule, start, dates, end = match.groups()
        yield (
            rule.replace(" ", "\n"),
            datetime.fromisoformat(f"{start}T09:00"),
            [moment for dated in dates.split(";") for moment in _dated(*dated.split())],
            end is not None,
        )


def _dated(day: str, listed: str) -> Iterator[datetime]:
    for one in listed.split(","):
        if ":" in one:
            yield datetime.fromisoformat(f"{day}T{one}")
        else:
            first, _, last = one.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield datetime.fromisoformat(f"{day}-{number:02}T09:00")


def ms(moment: datetime, zone: ZoneInfo = NEW_YORK) -> int:
    return int(moment.replace(tzinfo=moment.tzinfo or zone).timestamp()) * 1_000


@pytest.mark.parametrize(("text", "start", "expected", "ends"), list(examples_of_the_rfc()))
def test_examples_of_the_rfc(
    text: str, start: datetime, expected: list[datetime], ends: bool
) -> None:
    rule = Recurrence.parse(text, start=start)
    instants = [ms(moment) for moment in expected]
    until = instants[0] + 9_000 * DAY_MS if ends else instants[-1] + 1
    found = rule.between("America/New_York", instants[0] - 400 * DAY_MS, until)
    assert [one.at_ms for one in found] == instants
    assert rule.following("America/New_York", 0, len(instants)) == found
    after = rule.first_from("America/New_York", instants[-1] + 1)
    assert (after is None) == ends
    assert Recurrence.parse(rule.rule, start=start) == rule


START = datetime.fromisoformat("2026-01-05T02:30")
NIGHT = "FREQ=DAILY;BYHOUR=2;BYMINUTE=30"


@pytest.mark.parametrize(
    ("zone", "text", "how", "day", "expected"),
    [
        ("Europe/Berlin", NIGHT, {}, "2026-03-29", ["01:30 2026-03-29T02:30"]),
        ("Europe/Berlin", NIGHT, {"gap": "before"}, "2026-03-29", ["00:30 2026-03-29T02:30"]),
        ("Europe/Berlin", NIGHT, {"gap": "skip"}, "2026-03-29", []),
        ("Europe/Berlin", f"{NIGHT};BYHOUR=2,3".replace(";BYHOUR=2;", ";"), {}, "2026-03-29",
         ["01:30 2026-03-29T02:30"]),
        ("Europe/Berlin", NIGHT, {}, "2026-10-25", ["00:30 2026-10-25T02:30"]),
        ("Europe/Berlin", NIGHT, {"repeat": "second"}, "2026-10-25", ["01:30 2026-10-25T02:30"]),
        ("Europe/Berlin", NIGHT, {"repeat": "both"}, "2026-10-25",
         ["00:30 2026-10-25T02:30+02:00", "01:30 2026-10-25T02:30+01:00"]),
        ("Europe/Berlin", "FREQ=HOURLY;BYHOUR=1,2,3", {}, "2026-10-25",
         [f"{at} 2026-10-25T{at}Z" for at in ("00:30", "01:30", "02:30")]),
        ("Europe/Berlin", "FREQ=HOURLY;BYHOUR=1,2,3", {}, "2026-03-29",
         [f"{at} 2026-03-29T{at}Z" for at in ("00:30", "01:30", "23:30")]),
        ("Europe/Berlin", "FREQ=HOURLY;INTERVAL=24", {}, "2026-07-01", ["01:30 2026-07-01T01:30Z"]),
        ("Australia/Lord_Howe", "FREQ=DAILY;BYHOUR=2;BYMINUTE=15", {}, "2026-10-03",
         ["15:45 2026-10-04T02:15"]),
        ("Australia/Lord_Howe", "FREQ=HOURLY;BYHOUR=1,2", {}, "2026-04-04",
         [f"{at} 2026-04-04T{at}Z" for at in ("14:30", "15:30")]),
    ],
)  # fmt: skip
def test_times_that_clock_changes_skip_and_repeat(
    zone: str, text: str, how: dict[str, Any], day: str, expected: list[str]
) -> None:
    """``expected`` has UTC times of the day in UTC, and names."""
    begin = ms(datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=UTC))
    found = Recurrence.parse(text, start=START, **how).between(zone, begin, begin + DAY_MS)
    told = [
        f"{datetime.fromtimestamp(one.at_ms / 1_000, UTC):%H:%M} {one.nominal}" for one in found
    ]
    assert told == expected


def test_occurrences_of_a_day_that_is_left_out_become_one_each_with_the_next() -> None:
    """Apia had no 30 December 2011: what falls onto another occurrence is one with it."""
    rule = Recurrence.parse("FREQ=DAILY;COUNT=4", start=datetime.fromisoformat("2011-12-29T09:00"))
    found = rule.following("Pacific/Apia", 0, 9)
    days = ["2011-12-29T19:00", "2011-12-30T19:00", "2011-12-31T19:00"]
    assert [one.at_ms for one in found] == [
        ms(datetime.fromisoformat(f"{day}+00:00")) for day in days
    ]
    assert [one.nominal for one in found] == [
        f"{day}T09:00" for day in ("2011-12-29", "2011-12-30", "2012-01-01")
    ]


MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
NAMES = {
    "month": {name: number for number, name in enumerate(MONTHS, 1)},
    "weekday": {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6},
}


def fits(field: str, value: int, least: int, most: int, names: dict[str, int]) -> bool:
    """Tell whether a field of cron has a value: an independent reading."""
    for item in field.lower().split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        low, high = least, most
        if first != "*":
            low = names.get(first, int(first) if first.isdigit() else -1)
            high = names.get(last, int(last) if last.isdigit() else low)
        if low <= value <= high and (value - low) % int(step or 1) == 0:
            return True
    return False


def is_cron_time(fields: list[str], moment: datetime) -> bool:
    minute, hour, day, month, weekday = fields
    if not fits(minute, moment.minute, 0, 59, {}) or not fits(hour, moment.hour, 0, 23, {}):
        return False
    shown = moment.isoweekday()
    of_week = any(fits(weekday, one, 0, 7, NAMES["weekday"]) for one in {shown, shown % 7})
    of_month = fits(day, moment.day, 1, 31, {})
    both = "*" in (day[0], weekday[0])
    fitting = of_week and of_month if both else of_week or of_month
    return fitting and fits(month, moment.month, 1, 12, NAMES["month"])


def a_cron(random: Random) -> str:
    def field(least: int, most: int, names: list[str]) -> str:
        low, high = sorted(random.sample(range(least, most + 1), 2))
        kinds = [
            "*",
            "*",
            f"*/{random.randint(1, most)}",
            str(low),
            f"{low}-{high}",
            f"{low},{high}",
        ]
        kinds += [f"{low}-{high}/{random.randint(1, 9)}", f"{low}-{high},{most}"]
        return random.choice(kinds + names)

    months = field(1, 12, ["jan-jun", "FEB", "oct,Dec"])
    weekdays = field(0, 7, ["mon-fri", "SUN", "sat,sun", "5-7"])
    return f"{field(0, 59, [])} {field(0, 23, [])} {field(1, 31, [])} {months} {weekdays}"


def test_cron_means_what_its_fields_say_minute_by_minute() -> None:
    random = Random(5)  # noqa: S311 - repeatable
    begin = datetime(2027, 12, 20, tzinfo=UTC)
    minutes = [begin + timedelta(minutes=number) for number in range(15 * 1_440)]
    met = 0
    for _ in range(examples(100)):
        text = a_cron(random)
        expected = [ms(moment) for moment in minutes if is_cron_time(text.split(), moment)]
        try:
            rule = Recurrence.parse(text, start=START)
        except InvalidValue as refused:
            expected = [] if "never fires" in refused.problem else [-1]  # 30 February
            found = []
        else:
            found = [one.at_ms for one in rule.between("UTC", ms(begin), ms(begin) + 15 * DAY_MS)]
        assert found == expected, text
        met += bool(found)
    assert met


HALF_PAST, SHARP = "BYMINUTE=30;BYSECOND=0", "BYMINUTE=0;BYSECOND=0"
MONDAYS = f"RRULE:FREQ=WEEKLY;BYDAY=MO;BYHOUR=2;{HALF_PAST}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("*/20 * * * *", "RRULE:FREQ=HOURLY;BYMINUTE=0,20,40;BYSECOND=0"),
        ("@hourly", "RRULE:FREQ=HOURLY;BYMINUTE=0;BYSECOND=0"),
        ("@daily", "RRULE:FREQ=DAILY;BYHOUR=0;BYMINUTE=0;BYSECOND=0"),
        ("@Weekly", "RRULE:FREQ=DAILY;BYDAY=SU;BYHOUR=0;BYMINUTE=0;BYSECOND=0"),
        ("@monthly", "RRULE:FREQ=DAILY;BYMONTHDAY=1;BYHOUR=0;BYMINUTE=0;BYSECOND=0"),
        ("@yearly", "RRULE:FREQ=DAILY;BYMONTH=1;BYMONTHDAY=1;BYHOUR=0;BYMINUTE=0;BYSECOND=0"),
        ("30 9 * * mon-fri", f"RRULE:FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=9;{HALF_PAST}"),
        (
            "0 9 1 * fri-sun",
            "\n".join(
                f"RRULE:FREQ=DAILY;{days};BYHOUR=9;{SHARP}"
                for days in ("BYMONTHDAY=1", "BYDAY=FR,SA,SU")
            ),
        ),
        ("FREQ=YEARLY", f"RRULE:FREQ=YEARLY;BYMONTH=1;BYMONTHDAY=5;BYHOUR=2;{HALF_PAST}"),
        ("freq=yearly;byweekno=9", f"RRULE:FREQ=YEARLY;BYDAY=MO;BYWEEKNO=9;BYHOUR=2;{HALF_PAST}"),
        (
            "FREQ=MONTHLY;COUNT=2",
            f"RRULE:FREQ=MONTHLY;COUNT=2;BYMONTHDAY=5;BYHOUR=2;{HALF_PAST}",
        ),
        (
            "COUNT=2;FREQ=MINUTELY;BYHOUR=+3,02,3;INTERVAL=9",
            "RRULE:FREQ=MINUTELY;INTERVAL=9;COUNT=2;BYHOUR=2,3;BYSECOND=0",
        ),
        (
            "RDATE;VALUE=DATE:20260301\r\nEXDATE;VALUE=DATE:2026\r\n 0105\r\nRRULE:FREQ=WEEKLY",
            f"{MONDAYS}\nRDATE;VALUE=DATE:20260301\nEXDATE;VALUE=DATE:20260105",
        ),
    ],
)
def test_rules_are_written_out(text: str, rule: str) -> None:
    read = Recurrence.parse(text, start=START)
    assert read.rule == rule
    assert Recurrence.parse(read.rule, start=START) == read


REFUSED = [
    ("", "0 rules"), ("daily", "FREQ"), ("x" * 2_001, "2,000"), (None, "no text"),
    ("FREQ=FORTNIGHTLY", "FREQ"), ("INTERVAL=2", "FREQ"), ("FREQ=DAILY;FREQ=DAILY", "twice"),
    ("FREQ=DAILY;COUNT=1;UNTIL=20270101T000000", "both"), ("FREQ=DAILY;X-A=1", "cannot have"),
    ("FREQ=DAILY;BYEASTER=0", "cannot have"), ("FREQ=DAILY;", "cannot have"),
    ("FREQ=DAILY;UNTIL=20270101", "'UNTIL=20270101'"),
    ("FREQ=DAILY;UNTIL=20251231T000000", "never fires"),
    ("FREQ=DAILY;UNTIL=20251231T000000Z", "never fires"),
    ("FREQ=HOURLY;UNTIL=20251231T000000", "never fires"),
    ("FREQ=DAILY;UNTIL=20270230T000000", "no time"), ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL"),
    ("FREQ=DAILY;COUNT=0", "COUNT"), ("FREQ=DAILY;COUNT=10001", "1 to 10000"),
    ("FREQ=DAILY;COUNT=1,2", "COUNT"), ("FREQ=DAILY;INTERVAL=1,2", "INTERVAL"),
    ("FREQ=DAILY;INTERVAL=0", "INTERVAL"), ("FREQ=YEARLY;INTERVAL=100", "1 to 99"),
    ("FREQ=DAILY;BYHOUR=24", "0 to 23"), ("FREQ=DAILY;BYMINUTE=60", "0 to 59"),
    ("FREQ=DAILY;BYSECOND=60", "0 to 59"), ("FREQ=DAILY;BYMONTH=0", "1 to 12"),
    ("FREQ=DAILY;BYMONTHDAY=0", "-31 to 31 without 0"), ("FREQ=DAILY;BYMONTHDAY=1,", "'1,'"),
    ("FREQ=YEARLY;BYYEARDAY=367", "-366 to 366"), ("FREQ=YEARLY;BYWEEKNO=52", "-51 to 51"),
    ("FREQ=YEARLY;BYSETPOS=0", "without 0"), (f"FREQ=DAILY;BYHOUR=1{',1' * 60}", "BYHOUR"),
    ("FREQ=MONTHLY;BYWEEKNO=1", "BYWEEKNO=1'"), ("FREQ=DAILY;BYYEARDAY=1", "BYYEARDAY=1'"),
    ("FREQ=WEEKLY;BYDAY=MO;BYSETPOS=1", "BYSETPOS=1'"), ("FREQ=WEEKLY;BYDAY=1MO", "end with 0"),
    ("FREQ=HOURLY;BYDAY=1MO", "end with 0"), ("FREQ=MONTHLY;BYDAY=1MO,TU", "BYDAY=1MO,TU'"),
    ("FREQ=MONTHLY;BYDAY=0MO", "BYDAY=0MO'"), ("FREQ=MONTHLY;BYDAY=6MO", "end with 5"),
    ("FREQ=YEARLY;BYDAY=54MO", "end with 53"), ("FREQ=DAILY;BYDAY=XX", "BYDAY"),
    ("FREQ=YEARLY;BYMONTH=12;BYDAY=-6MO", "end with 5"),
    (f"FREQ=DAILY;BYDAY=MO{',MO' * 60}", "BYDAY"), ("FREQ=DAILY;BYDAY=", "BYDAY"),
    ("FREQ=WEEKLY;WKST=1", "WKST"), ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
    ("FREQ=HOURLY;INTERVAL=24;BYHOUR=3", "never fires"),
    ("FREQ=SECONDLY;INTERVAL=60;BYSECOND=1", "never fires"),
    ("FREQ=MONTHLY;BYSETPOS=2", "never fires"),
    ("FREQ=DAILY;UNTIL=20260105T030000\nEXDATE:20260105", "never fires"),
    ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "start and zone are given"),
    ("RDATE;TZID=Europe/Berlin:20260101T000000", "start and zone are given"),
    ("EXRULE:FREQ=DAILY", "start and zone"), ("EXDATE:20260101T000000", "0 rules"),
    ("RDATE:20260101T000000/PT1H", "no time"), ("\n".join(["FREQ=DAILY"] * 11), "11 rules"),
    ("@reboot", "FREQ"), ("60 * * * *", "0 to 59"), ("* 24 * * *", "0 to 23"),
    ("* * 0 * *", "1 to 31"), ("* * * 13 *", "1 to 12"), ("* * * * 8", "0 to 7"),
    ("5/15 * * * *", "/steps"), ("*/0 * * * *", "/steps"), ("30-10 * * * *", "0 to 59"),
    ("* * * foo *", "1 to 12"), ("* * L * *", "1 to 31"), ("* * * * 5#2", "0 to 7"),
    ("0 0 30 2 *", "never fires"), ("1 2 3 4", "FREQ"), ("0 0 * * 1 2026", "FREQ"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_refused_rules(text: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Recurrence.parse(text, start=START)
    assert refused.value.field == "rule"
    assert problem in refused.value.problem
    assert "RRULE of RFC 5545" in refused.value.accepted


@pytest.mark.parametrize(
    ("text", "given", "problem"),
    [
        ("FREQ=DAILY;COUNT=2", {"count": 2}, "rule: has a part twice"),
        ("FREQ=DAILY;COUNT=2", {"until": START}, "rule: has a part twice, or both"),
        ("FREQ=DAILY", {"until": START, "count": 1}, "rule: has a part twice, or both"),
        ("FREQ=DAILY", {"until": START.date()}, "until: datetime.date"),
        ("FREQ=DAILY", {"until": START - timedelta(days=1)}, "rule: never fires"),
        ("FREQ=DAILY", {"until": datetime.max.replace(tzinfo=NEW_YORK)}, "until: 9999-12-31"),
        ("FREQ=DAILY", {"count": 0}, "count: 0"),
        ("0 0 1 * 1", {"count": 5}, "rule: has 2 rules"),
        ("RDATE:20300101T090000", {"count": 5}, "rule: names dates alone"),
        ("FREQ=DAILY", {"start": START.replace(tzinfo=UTC)}, "start: "),
        ("FREQ=DAILY", {"start": START.replace(microsecond=1)}, "start: "),
        ("FREQ=DAILY", {"start": START.replace(year=1969)}, "start: "),
        ("FREQ=DAILY", {"start": "2026-01-01"}, "start: "),
    ],
)
def test_refused_arguments(text: str, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{re.escape(problem)}"):
        Recurrence.parse(text, **{"start": START, **given})


WORDS = [
    *"FREQ= ; = : , - + * / 0 1 2 31 53 366 -1 99999999999 MO 1MO TU T Z @daily".split(),  # noqa: SIM905
    *"YEARLY MONTHLY WEEKLY DAILY HOURLY MINUTELY SECONDLY UNTIL= COUNT= ² \x85".split(),  # noqa: SIM905
    *(f";{name}=" for name in ("BYDAY", "BYMONTH", "BYSETPOS", "BYWEEKNO", "BYHOUR", "INTERVAL")),
    *("RRULE:", "RDATE:", "EXDATE:", "20260301T000000", "99991231T235959Z", "00010101T000000"),
    *("\n", " "),
]


@settings(max_examples=examples(1_000), deadline=None, database=None)
@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(WORDS), max_size=9).map("".join)
    | st.lists(st.sampled_from(WORDS), max_size=9).map(lambda words: f"FREQ={''.join(words)}"),
    st.datetimes(datetime.fromisoformat("1970-01-01"), datetime.fromisoformat("9000-12-31")).map(
        lambda at: at.replace(microsecond=0, fold=0)
    ),
    st.integers(-(10**20), 10**20),
)
def test_hostile_text_raises_nothing_but_a_refusal(text: str, start: datetime, at_ms: int) -> None:
    try:
        rule = Recurrence.parse(text, start=start)
    except InvalidValue:
        return
    first = rule.first_from("Pacific/Apia", at_ms)
    assert first is None or first >= at_ms
    assert rule.between("Pacific/Apia", at_ms, at_ms + 1_000) == rule.between(
        "Pacific/Apia", at_ms, at_ms + 1_000
    )


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY",
        "FREQ=WEEKLY",
        "FREQ=MONTHLY;BYDAY=MO",
        "FREQ=YEARLY;BYDAY=MO",
    ],
)
def test_a_year_costs_no_more_long_after_the_start(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the days and times that dateutil tells."""
    rule = Recurrence.parse(text, start=START)
    told = 0

    iterate = rrule.rrule._iter  # type: ignore[attr-defined]  # only the sources know it

    def counting(self: rrule.rrule) -> Iterator[datetime]:
        nonlocal told
        for one in iterate(self):
            told += 1
            yield one

    monkeypatch.setattr(rrule.rrule, "_iter", counting)
    begin = ms(datetime(2046, 1, 1, tzinfo=UTC))
    assert rule.between("Europe/Berlin", begin, begin + 365 * DAY_MS)
    assert 50 < told < 375
    told = 0
    assert rule.first_from("Europe/Berlin", begin)
    assert told < 120


def test_the_first_instant_may_have_a_later_wall_time() -> None:
    """In Berlin 02:30 becomes 03:30 that day, and 03:00 comes before it."""
    text = "FREQ=DAILY;BYHOUR=2;BYMINUTE=30\nRRULE:FREQ=DAILY;BYHOUR=3;BYMINUTE=0"
    rule = Recurrence.parse(text, start=START)
    at_ms, one = (ms(datetime.fromisoformat(f"2026-03-29T0{at}:00Z")) for at in (0, 1))
    assert rule.first_from("Europe/Berlin", at_ms + DAY_MS // 32) == one


def test_an_until_in_utc_ends_a_rule_by_the_instant() -> None:
    rule = Recurrence.parse("FREQ=DAILY;UNTIL=20260104T190000Z", start=START)
    assert len(rule.following("Asia/Tokyo", 0, 9)) == 1
    assert rule.first_from("UTC", 0) is None


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """Note the first argument of each call of a function of the module."""
    calls, called = list[Any](), getattr(recurrence, name)

    def noting(first: Any, *more: Any) -> Any:
        calls.append(first)
        return called(first, *more)

    monkeypatch.setattr(recurrence, name, noting)
    return calls


def test_seconds_of_excluded_days_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Recurrence.parse("FREQ=SECONDLY\nEXDATE;VALUE=DATE:20260105,20260106", start=START)
    told = counted(monkeypatch, "_utc")
    assert rule.first_from("UTC", 0) == ms(datetime.fromisoformat("2026-01-07T00:00Z"))
    assert len(told) < 40


@pytest.mark.parametrize("text", ["FREQ=HOURLY", "@hourly", "FREQ=MINUTELY;INTERVAL=60"])
def test_a_day_by_elapsed_time_costs_no_more_long_after_the_start(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Recurrence.parse(text, start=START)
    told, begin = counted(monkeypatch, "_utc"), ms(datetime(2046, 1, 1, tzinfo=UTC))
    assert len(rule.between("Europe/Berlin", begin, begin + DAY_MS)) == 24
    assert len(told) < 40


@pytest.mark.parametrize("part", ["BYSECOND=0", "BYHOUR=9", "BYMINUTE=1,2,3"])
def test_a_search_by_elapsed_time_finds_a_leap_day(part: str) -> None:
    rule = Recurrence.parse(f"FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=29;{part}", start=START)
    [first] = rule.following("UTC", 0, 1)
    assert first.nominal.startswith("2028-02-29T")


@pytest.mark.parametrize(
    "text", ["FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=SECONDLY;INTERVAL=3600;BYMINUTE=0"]
)
def test_a_search_by_elapsed_time_ends(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the days that are looked at."""
    days = counted(monkeypatch, "_utc")
    assert Recurrence(f"RRULE:{text}", START).first_from("UTC", 0) is None
    assert 1_000 < len(days) < 50_000


def test_a_search_without_end_ends_after_a_century(monkeypatch: pytest.MonkeyPatch) -> None:
    """dateutil alone would look at three million days."""
    looked, days = 0, rrule._iterinfo.ddayset

    def counting(self: rrule._iterinfo, year: int, month: int, day: int) -> object:
        nonlocal looked
        looked += 1
        return days(self, year, month, day)

    monkeypatch.setattr(rrule._iterinfo, "ddayset", counting)
    rule = Recurrence("RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", START)
    assert rule.first_from("UTC", 0) is None
    assert 36_000 < looked < 250_000
    leap = Recurrence.parse("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", start=START)
    assert leap.first_from("UTC", ms(datetime(2096, 3, 1, tzinfo=UTC))) == ms(
        datetime(2104, 2, 29, 2, 30, tzinfo=UTC)
    )
    last = Recurrence.parse("FREQ=MONTHLY;BYMONTHDAY=31", start=START)
    assert [one.nominal for one in last.following("UTC", 0, 3)] == [
        f"2026-{month}-31T02:30" for month in ("01", "03", "05")
    ]
    assert leap.first_from("UTC", 10**18) is None


@pytest.mark.parametrize("year", [1970, 2100, 8999])
def test_a_rule_may_begin_in_any_century(year: int) -> None:
    rule = Recurrence.parse("FREQ=DAILY", start=START.replace(year=year, month=3))
    [first] = rule.following("UTC", ms(datetime(year, 3, 1, tzinfo=UTC)), 1)
    assert first.nominal[:7] == f"{year}-03"


@pytest.mark.parametrize(
    ("text", "start", "zone", "after", "instants"),
    [
        pytest.param(
            "20 2 * * *", "2020-10-20T00:00", "Europe/Paris", "2020-10-24T12:00",
            ["2020-10-25T00:20", "2020-10-26T01:20"], id="celery-6438",
        ),
        pytest.param(
            "0 * * * *", "2026-10-31T00:00", "US/Pacific", "2026-11-01T07:30",
            ["2026-11-01T08:00", "2026-11-01T09:00", "2026-11-01T10:00"], id="celery-10107",
        ),
        pytest.param(
            "4 16 * * *", "2025-01-01T00:00", "America/New_York", "2025-03-08T12:00",
            ["2025-03-08T21:04", "2025-03-09T20:04"], id="django-celery-beat-134",
        ),
        pytest.param(
            "0 9 * * *", "2018-01-01T00:00", "US/Eastern", "2018-11-03T12:00",
            ["2018-11-03T13:00", "2018-11-04T14:00"], id="django-celery-beat-194",
        ),
        pytest.param(
            "FREQ=WEEKLY;BYDAY=TH;COUNT=1", "2025-11-25T03:00", "Asia/Kolkata", "2025-11-20T00:00",
            ["2025-11-26T21:30"], id="rrule.js-658",
        ),
    ],
)  # fmt: skip
def test_what_others_got_wrong(
    text: str, start: str, zone: str, after: str, instants: list[str]
) -> None:
    """The table of docs/series.md."""
    rule = Recurrence.parse(text, start=datetime.fromisoformat(start))
    begin = ms(datetime.fromisoformat(after).replace(tzinfo=UTC))
    times = [at_ms for at_ms, _ in rule.following(zone, begin, len(instants))]
    assert times == [ms(datetime.fromisoformat(one).replace(tzinfo=UTC)) for one in instants]
