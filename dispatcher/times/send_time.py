"""Turns a caller's send time into one instant, or raises the exact reason why it cannot.

Parsing and the tests for skipped and repeated local times are python-dateutil's. The rules of
the zones come from the tz database through ``zoneinfo``: dateutil's own reader knows only the
32-bit part of a zone file and loses daylight saving after 2037
(docs/decisions/0004-zone-rules.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from dateutil import parser, tz

from dispatcher.errors import InvalidSendTime, InvalidValue, kind_of, plain, quoted
from dispatcher.times import zones
from dispatcher.times.clock import MILLISECOND

ACCEPTED = (
    "a time with an offset (2026-12-24T08:30+01:00), "
    "or a local time (2026-12-24T08:30) together with zone"
)
_ISO_WITH_TIME = re.compile(r"\d{4}-?(W\d\d-?\d|\d\d-?\d\d|\d{3})[T ]\d\d.*", re.ASCII)
_OFFSET = re.compile(r"[T ].*[Z+-]", re.ASCII | re.IGNORECASE)
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMEDELTA = "a datetime.timedelta, such as timedelta(minutes=10)"
_LAST_YEAR = 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse(
    value: datetime | str,
    *,
    zone: str | None = None,
    fold: int | None = None,
    field: str = "send_at",
) -> datetime:
    """Return the instant ``value`` names, aware UTC, rounded up to a whole millisecond.

    Rounding up, never down: a message must not leave before its time. Raises InvalidSendTime
    when the value is unreadable, has neither offset nor zone, is skipped by a clock change, or is
    repeated by one and ``fold`` (0: first, 1: second time) does not say which. For a value with an
    offset the zone has no effect; its name must still exist.
    """
    if fold is not None and not (isinstance(fold, int) and fold in (0, 1)):
        raise InvalidSendTime("fold", quoted(fold), "0 for the first, 1 for the second time")
    if zone is not None:
        check_zone(zone)
    if type(value) is datetime and value.tzinfo is UTC and value.year < _LAST_YEAR:
        excess = value.microsecond % 1_000
        return value + timedelta(microseconds=1_000 - excess) if excess else value
    with _readable(value, field, ACCEPTED, "a time of the years 1 to 9999"):
        moment = wall_or_instant(value, field)
        if moment.tzinfo is UTC:
            return _whole_milliseconds(moment)
        if moment.utcoffset() is None:
            moment = _in_zone(moment, zone, fold, field)
        elif not tz.datetime_exists(moment):
            raise InvalidSendTime(field, _skipped(moment), "a local time that exists")
        return _whole_milliseconds(moment.astimezone(UTC))


def local_wish(value: datetime | str, instant: datetime, zone: str) -> str | None:
    """Return the local time by which ``value`` named an instant, as a message keeps it.

    None where it has an offset from UTC.
    """
    if isinstance(value, str):
        has_offset = _OFFSET.search(value.strip()) is not None
    else:
        has_offset = value.utcoffset() is not None
    return None if has_offset else as_local(instant, zone)


def as_local(instant: datetime, zone: str) -> str:
    """Return the wall time in a zone, to the ms, with ``;fold=1`` where it is the second one."""
    local = instant.astimezone(check_zone(zone))
    wall = local.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{wall};fold=1" if local.fold else wall


def instant_of(wish: str, zone: str) -> datetime:
    """Return the instant of a local time as a message keeps it, by the present rules of the zone.

    One that clocks skip comes as much later as they skip. Raises InvalidSendTime where there is no
    such zone.
    """
    wall, _, is_second = wish.partition(";fold=")
    local = datetime.fromisoformat(wall).replace(tzinfo=check_zone(zone))
    if is_second and tz.datetime_exists(local):
        local = tz.enfold(local)
    return local.astimezone(UTC)


def parse_time_or_date(
    value: datetime | date | str, *, zone: str | None = None, field: str
) -> datetime:
    """Return what :func:`parse` returns; for a date, when it begins in ``zone``, or else in UTC."""
    value = plain(value)
    try:
        if isinstance(value, str) and _ISO_DATE.fullmatch(value.strip()):
            value = date.fromisoformat(value.strip())
        if isinstance(value, date) and not isinstance(value, datetime):
            midnight = datetime.combine(value, time.min)
            return zones.first_instant(midnight, check_zone("UTC" if zone is None else zone))
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidSendTime):
            raise
        raise InvalidSendTime(field, f"there is no date {value}", "a date of a calendar") from None
    try:
        return parse(value, zone=zone, field=field)
    except InvalidSendTime as refused:
        if refused.accepted != ACCEPTED:
            raise
        accepted = f"{ACCEPTED}, or a date (2026-12-24)"
        raise InvalidSendTime(field, refused.problem, accepted) from None


def after(length: timedelta, *, now: datetime, field: str = "send_in") -> datetime:
    """Return the instant ``length`` after ``now``, rounded up to a whole millisecond."""
    accepted = "a length of 0 or more"
    if not isinstance(length, timedelta):
        raise InvalidSendTime(field, kind_of(length), _TIMEDELTA)
    with _readable(length, field, accepted, "less than 8,000 years"):
        if length < timedelta(0):
            raise InvalidSendTime(field, f"{quoted(length)} lies in the past", accepted)
        return _whole_milliseconds(now + length)


def length_until_expiry(length: timedelta, *, farthest: datetime) -> timedelta:
    """Return ``length`` rounded up to a whole millisecond, where it is more than 0.

    A message that is sent at ``farthest`` must expire before the year 10000.
    """
    accepted = "a length of more than 0"
    if not isinstance(length, timedelta):
        raise InvalidSendTime("expire_after", kind_of(length), _TIMEDELTA)
    with _readable(length, "expire_after", accepted, "less than 8,000 years"):
        if length <= timedelta(0):
            raise InvalidSendTime("expire_after", quoted(length), accepted)
        rounded = -(-length // MILLISECOND) * MILLISECOND
        _ = farthest + rounded
        return rounded


@contextmanager
def _readable(value: object, field: str, accepted: str, in_range: str) -> Iterator[None]:
    """Raise InvalidSendTime for whatever the code of a caller's object raises, as pandas.NaT."""
    try:
        yield
    except InvalidSendTime:
        raise
    except OverflowError:
        raise InvalidSendTime(field, "is out of range", in_range) from None
    except Exception as error:  # noqa: BLE001 - the code of others may raise anything
        problem = f"{kind_of(value)} that cannot be read ({type(error).__name__})"
        raise InvalidSendTime(field, problem, accepted) from None


def check_range(
    send_at: datetime, *, now: datetime, farthest: timedelta, field: str = "send_at"
) -> None:
    if send_at < now:
        raise past(send_at, field)
    check_not_too_far(send_at, now=now, farthest=farthest, field=field)


def past(instant: datetime, field: str = "send_at") -> InvalidSendTime:
    return InvalidSendTime(field, f"{instant.isoformat()} is past", "a time from now on")


def check_not_too_far(
    send_at: datetime, *, now: datetime, farthest: timedelta, field: str = "send_at"
) -> None:
    if send_at - now > farthest:
        accepted = f"at most {farthest.days} days ahead"
        raise InvalidSendTime(field, f"{send_at.isoformat()} is too far ahead", accepted)


def check_zone(zone: str, *, field: str = "zone") -> ZoneInfo:
    try:
        return zones.rules(zone, field=field)
    except InvalidValue as refused:
        raise InvalidSendTime(refused.field, refused.problem, refused.accepted) from None


def to_ms(instant: datetime) -> int:
    """Return whole milliseconds since 1970, rounded down."""
    return (instant - _EPOCH) // MILLISECOND


def from_ms(ms: int) -> datetime:
    return _EPOCH + ms * MILLISECOND


def as_text(instant: datetime) -> str:
    """Return an instant in ISO 8601, in UTC, to the millisecond, with ``Z``."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def wall_or_instant(value: datetime | str, field: str) -> datetime:
    """Return an aware or a naive datetime. Raises InvalidSendTime where it cannot be read."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        is_of_numpy = type(value).__module__ == "numpy"
        remedy = f"{ACCEPTED}; pandas.Timestamp(…) makes one of it" if is_of_numpy else ACCEPTED
        raise InvalidSendTime(field, kind_of(value), remedy)
    text = plain(value).strip()
    if not _ISO_WITH_TIME.fullmatch(text):
        raise InvalidSendTime(field, f"cannot read {quoted(value)}", ACCEPTED)
    try:
        return parser.isoparse(text.replace(" ", "T", 1))
    except (ValueError, OverflowError):
        raise InvalidSendTime(field, f"cannot read {quoted(value)}", ACCEPTED) from None


def _in_zone(moment: datetime, zone: str | None, fold: int | None, field: str) -> datetime:
    if zone is None:
        raise InvalidSendTime(field, "has neither an offset nor a zone", ACCEPTED)
    local = moment.replace(tzinfo=check_zone(zone))
    if not tz.datetime_exists(local):
        raise InvalidSendTime(field, _skipped(local), "a local time that exists")
    if fold is None and moment.fold == 0 and tz.datetime_ambiguous(local):
        first, second = (tz.enfold(local, fold).isoformat() for fold in (0, 1))
        raise InvalidSendTime(
            field,
            f"{moment.isoformat()} happens twice in {zone}",
            f"the same with an offset: {first} (first) or {second} (second)",
        )
    return tz.enfold(local, fold if fold is not None else moment.fold)


def _skipped(local: datetime) -> str:
    wall = local.replace(tzinfo=None).isoformat()
    return f"{wall} is skipped by a clock change in {local.tzinfo}"


def _whole_milliseconds(instant: datetime) -> datetime:
    plain_one = datetime(
        instant.year, instant.month, instant.day,
        instant.hour, instant.minute, instant.second, instant.microsecond, tzinfo=UTC,
    )  # fmt: skip
    return plain_one + timedelta(microseconds=-instant.microsecond % 1_000)
