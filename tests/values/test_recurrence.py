"""Rules of repetition: the worked examples of RFC 5545."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from dispatcher.times.recurrence import Recurrence
from dispatcher.times.zones import DAY_MS

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
