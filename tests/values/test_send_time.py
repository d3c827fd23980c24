"""What is taken as a send time, and what is refused and why; what counts as a local time."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz

from dispatcher import Settings
from dispatcher.errors import InvalidSendTime
from dispatcher.message import Draft
from dispatcher.submission.validation import ValidDraft, validate_fields
from dispatcher.times import send_time
from tests.support.clock import NOON

BERLIN = "Europe/Berlin"


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]  # parts vary in number


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-12-24T08:30+01:00", utc(2026, 12, 24, 7, 30)),
        ("2026-12-24T08:30:15+0100", utc(2026, 12, 24, 7, 30, 15)),
        ("2026-12-24T08:30:15.250Z", utc(2026, 12, 24, 8, 30, 15, 250_000)),
        ("2026-12-24 08:30Z", utc(2026, 12, 24, 8, 30)),
        ("20261224T083000Z", utc(2026, 12, 24, 8, 30)),
        ("2026-12-24T08Z", utc(2026, 12, 24, 8)),
        ("2026-W52-4T08:30Z", utc(2026, 12, 24, 8, 30)),
        ("2026-12-24T08:30-11:30", utc(2026, 12, 24, 20, 0)),
        ("  2026-12-24T08:30Z\n", utc(2026, 12, 24, 8, 30)),
    ],
)
def test_an_iso_string_with_an_offset_needs_no_zone(text: str, instant: datetime) -> None:
    parsed = send_time.parse(text)
    assert parsed == instant
    assert parsed.tzinfo is UTC


@pytest.mark.parametrize(
    "value",
    ["2026-12-24T08:30", "2026-12-24 08:30:00", datetime(2026, 12, 24, 8, 30)],  # noqa: DTZ001 - naive on purpose
)
def test_a_local_time_is_read_in_its_zone(value: str | datetime) -> None:
    assert send_time.parse(value, zone=BERLIN) == utc(2026, 12, 24, 7, 30)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 12, 24, 8, 30, tzinfo=timezone(timedelta(hours=1))),
        datetime(2026, 12, 24, 8, 30, tzinfo=ZoneInfo(BERLIN)),
        datetime(2026, 12, 24, 8, 30, tzinfo=tz.gettz(BERLIN)),
    ],
)
def test_an_aware_datetime_is_turned_into_utc(value: datetime) -> None:
    parsed = send_time.parse(value)
    assert parsed == utc(2026, 12, 24, 7, 30)
    assert parsed.tzinfo is UTC


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "now", "tomorrow", "today 8:30", "2026", "2026-12", "2026-12-24", "20261224"),
        *("08:30", "24.12.2026 08:30Z", "12/24/2026 08:30Z", "Dec 24 2026 08:30Z"),
        *("2026-13-01T00:00Z", "2026-02-30T00:00Z", "2026-12-24T25:00Z", "2026-12-24T08:61Z"),
        *("2026-12-24T08:30:60Z", "2026-12-24T08:30Zzz", "2026-12-24T08:30+99:00", "1766565000"),
        *("2026-12-24T08:30+01:00 or so", "2026-12-24T", "²026-12-24T08:30Z", "\0", "x" * 10_000),
        *("٢٠٢٦-12-24T08:30Z", "2026-12-24T08:30\ud800Z"),
        *(None, True, 0, 1_766_565_000, 1.5, date(2026, 12, 24), b"2026", timedelta(1)),
    ],
)
def test_what_is_unreadable_never_means_now(value: Any) -> None:
    with pytest.raises(InvalidSendTime) as refused:
        send_time.parse(value)
    assert refused.value.field == "send_at"
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("value", ["2026-12-24T08:30+01:00", utc(2026, 12, 24, 7, 30)])
@pytest.mark.parametrize("zone", [BERLIN, "Pacific/Apia"])
def test_a_zone_beside_an_offset_does_not_move_the_time(value: str | datetime, zone: str) -> None:
    """It is the recipient's, whatever clock the time was said by."""
    assert send_time.parse(value, zone=zone) == utc(2026, 12, 24, 7, 30)


@pytest.mark.parametrize(
    ("zone", "local"),
    [
        (BERLIN, "2026-03-29T02:30"),
        ("Australia/Lord_Howe", "2026-10-04T02:15"),  # its clocks move by half an hour
        ("Pacific/Apia", "2011-12-30T12:00"),  # the whole day was skipped
        ("America/New_York", "2040-03-11T02:30"),  # beyond 32-bit zone files
    ],
)
@pytest.mark.parametrize("fold", [None, 0, 1])
def test_a_local_time_that_a_clock_change_skips_is_refused(
    zone: str, local: str, fold: int | None
) -> None:
    aware = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))
    for local_time in (local, aware):
        with pytest.raises(InvalidSendTime, match="skipped by a clock change"):
            send_time.parse(local_time, zone=zone, fold=fold)


@pytest.mark.parametrize(
    ("zone", "local", "first", "second"),
    [
        (BERLIN, "2026-10-25T02:30", utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 1, 30)),
        (
            "Australia/Lord_Howe",
            "2026-04-05T01:45",
            utc(2026, 4, 4, 14, 45),
            utc(2026, 4, 4, 15, 15),
        ),
    ],
)
def test_a_local_time_that_a_clock_change_repeats_needs_fold(
    zone: str, local: str, first: datetime, second: datetime
) -> None:
    with pytest.raises(InvalidSendTime, match="happens twice") as refused:
        send_time.parse(local, zone=zone)
    offered = re.findall(r"(\S+) \((?:first|second)\)", refused.value.accepted)
    assert [send_time.parse(text) for text in offered] == [first, second]
    assert send_time.parse(local, zone=zone, fold=0) == first
    assert send_time.parse(local, zone=zone, fold=1) == second
    naive = datetime.fromisoformat(local).replace(fold=1)
    assert send_time.parse(naive, zone=zone) == second


@pytest.mark.parametrize(
    ("zone", "local"),
    [
        (BERLIN, "2026-03-29T01:59:59.999"),
        (BERLIN, "2026-03-29T03:00"),
        (BERLIN, "2026-10-25T01:59:59.999"),
        (BERLIN, "2026-10-25T03:00"),
        ("Pacific/Apia", "2011-12-29T23:59"),
        ("Pacific/Apia", "2011-12-31T00:00"),
    ],
)
def test_the_times_beside_a_clock_change_need_nothing(zone: str, local: str) -> None:
    expected = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    assert send_time.parse(local, zone=zone) == expected


@pytest.mark.parametrize("fold", [2, -1, "1", "first"])
def test_a_fold_other_than_0_or_1_is_refused(fold: Any) -> None:
    with pytest.raises(InvalidSendTime) as refused:
        send_time.parse("2026-10-25T02:30", zone=BERLIN, fold=fold)
    assert refused.value.field == "fold"


@pytest.mark.parametrize(
    "value",
    [
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=12))),
        datetime.max.replace(tzinfo=UTC),  # rounding up leaves the calendar
        "0001-01-01T00:00+14:00",
        "9999-12-31T23:59:59.999999Z",
    ],
)
def test_a_time_outside_the_calendar_is_refused(value: datetime | str) -> None:
    with pytest.raises(InvalidSendTime):
        send_time.parse(value)


@pytest.mark.parametrize("value", ["0001-01-01T00:00", "9999-12-31T23:59"])
@pytest.mark.parametrize("zone", [BERLIN, "Pacific/Kiritimati", "America/Los_Angeles"])
def test_a_local_time_at_the_ends_of_the_calendar_raises_nothing_else(
    value: str, zone: str
) -> None:
    with contextlib.suppress(InvalidSendTime):
        assert send_time.parse(value, zone=zone).tzinfo is UTC


@pytest.mark.parametrize(
    ("microsecond", "rounded"), [(0, 0), (1, 1_000), (1_000, 1_000), (999_001, 1_000_000)]
)
def test_rounding_to_milliseconds_goes_up(microsecond: int, rounded: int) -> None:
    second = utc(2026, 12, 31, 23, 59, 59)
    parsed = send_time.parse(second + timedelta(microseconds=microsecond))
    assert parsed == second + timedelta(microseconds=rounded)


def test_send_in_counts_from_now_and_rounds_up() -> None:
    now = utc(2026, 12, 24, 8, 30, 0, 1)
    assert send_time.after(timedelta(0), now=now) == utc(2026, 12, 24, 8, 30, 0, 1_000)
    assert send_time.after(timedelta(hours=1), now=now) == utc(2026, 12, 24, 9, 30, 0, 1_000)


@pytest.mark.parametrize("length", [timedelta(microseconds=-1), timedelta.max, 5, "1 hour", None])
def test_a_send_in_that_is_negative_endless_or_no_length_is_refused(length: Any) -> None:
    with pytest.raises(InvalidSendTime) as refused:
        send_time.after(length, now=utc(2026, 12, 24))
    assert refused.value.field == "send_in"
    assert isinstance(length, timedelta) or "timedelta(minutes=10)" in refused.value.accepted


def test_a_range_holds_from_now_to_the_farthest_time() -> None:
    now, farthest = utc(2026, 12, 24), timedelta(days=10)
    send_time.check_range(now, now=now, farthest=farthest)
    send_time.check_range(now + farthest, now=now, farthest=farthest)
    with pytest.raises(InvalidSendTime, match="is past"):
        send_time.check_range(now - timedelta(milliseconds=1), now=now, farthest=farthest)
    with pytest.raises(InvalidSendTime, match="too far ahead"):
        send_time.check_range(now + farthest + timedelta(seconds=1), now=now, farthest=farthest)


HOUR = timedelta(hours=1)


class NoOffset(tzinfo):
    """Says nothing: Python counts a datetime with it as naive."""

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None

    def dst(self, _: datetime | None) -> timedelta | None:
        return None

    def tzname(self, _: datetime | None) -> str | None:
        return "?"


DISGUISED = datetime(2027, 1, 1, 12, tzinfo=NoOffset())


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings.load(data_dir=tmp_path_factory.mktemp("data"))


def scheduled(settings: Settings, **asked: Any) -> ValidDraft:
    draft = Draft(**{"channel": "file", "recipient": "ada", "body": {}} | asked)
    return validate_fields(draft, settings=settings, now=NOON)


@pytest.mark.parametrize(
    ("zoned", "field"),
    [
        ({"zone": "No/Where"}, "zone"),
        ({"zone": ""}, "zone"),
        ({"fold": 0}, "fold"),
        ({"fold": 1}, "fold"),
        ({"fold": 7}, "fold"),
        ({"zone": BERLIN, "fold": 1}, "fold"),
        ({"zone": "No/Where", "fold": 1}, None),
    ],
    ids=str,
)
def test_an_unknown_zone_or_a_fold_with_a_length_from_now_is_refused(
    settings: Settings, zoned: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(InvalidSendTime) as caught:
        scheduled(settings, send_in=HOUR, **zoned)
    assert caught.value.field in ({field} if field else {"zone", "fold"})
    assert caught.value.accepted


def test_a_zone_for_another_local_time_is_taken_with_a_length_from_now(settings: Settings) -> None:
    local = "2026-11-20T18:00"
    instant = datetime(2026, 11, 20, 17, tzinfo=UTC)
    draft = scheduled(settings, send_in=HOUR, zone=BERLIN, expires_at=local)
    assert (draft.send_at, draft.expires_at) == (NOON + HOUR, instant)
    assert draft.terms.zone == BERLIN, "its quiet hours and local quotas go by it"
    draft = scheduled(settings, send_in=HOUR, zone=BERLIN, on_conflict="shift", latest=local)
    assert draft.latest == instant
    draft = scheduled(settings, send_in=HOUR, zone=BERLIN, fold=0, expires_at=local)
    assert draft.expires_at == instant


def test_a_datetime_whose_zone_says_nothing_is_a_local_time() -> None:
    with pytest.raises(InvalidSendTime, match="neither an offset nor a zone"):
        send_time.parse(DISGUISED)
    instant = datetime(2027, 1, 1, 11, tzinfo=UTC)
    assert send_time.parse(DISGUISED, zone=BERLIN) == instant


class datetime64:  # noqa: N801 - numpy's
    __module__ = "numpy"


def test_an_instant_of_numpy_is_named(settings: Settings) -> None:
    with pytest.raises(InvalidSendTime, match=r"a datetime64; .*pandas\.Timestamp"):
        scheduled(settings, send_at=datetime64())
