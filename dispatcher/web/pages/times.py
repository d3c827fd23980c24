"""Times and lengths as the page shows them, and as people type them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta

from dispatcher.errors import InvalidSendTime, quoted
from dispatcher.times import send_time, zones

ACCEPTED = (
    "a time such as 9:30, 2026-12-24 08:30, or Thu 24 Dec 2026 08:30:00 as this page shows it; "
    "also with an offset: 2026-12-24T08:30+01:00"
)
_FORM = "%a %d %b %Y %H:%M:%S"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TYPED = re.compile(
    r"((?P<date>\d{4}-\d\d-\d\d)[ T]"
    r"|([a-z]+,? )?(?P<day>\d{1,2}) (?P<month>[a-z]{3})( (?P<year>\d{4}))?,? )?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(:(?P<second>\d\d)(\.(?P<thousandths>\d{1,3}))?)?"
    r"( ?(?P<offset>[+-]\d\d:\d\d))?",
    re.ASCII | re.IGNORECASE,
)
_UTC = re.compile(r"(?<![\w'\"])\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00(?![\w'\"])")
_CAPITAL = re.compile(r"(?<=[a-z])([A-Z])")


def local_text(instant: datetime, zone: str, form: str = "") -> str:
    """Return an instant as the clocks of a zone show it.

    A date with a time that the clocks repeat has its offset.
    """
    local, form_shown = instant.astimezone(zones.rules(zone)), form or _FORM
    thousandths = f".{local.microsecond // 1_000:03}" if local.microsecond and not form else ""
    first, second = (local.replace(fold=each).isoformat()[-6:] for each in (0, 1))
    is_repeated = first != second  # a time that exists twice; no instant shows a skipped one
    is_whole = "%d" in form_shown and "%H" in form_shown
    offset = f" {local.isoformat()[-6:]}" if is_repeated and is_whole else ""
    return f"{local:{form_shown}}{thousandths}{offset}"


def with_local_times(text: str, zone: str) -> str:
    """Return an error's text with instants of a zone. What it quotes stays as typed."""

    def local(found: re.Match[str]) -> str:
        try:
            return local_text(datetime.fromisoformat(found[0]), zone)
        except (ValueError, OverflowError):
            return found[0]

    return _UTC.sub(local, text)


def in_words(name: str) -> str:
    """Return a reason that begins with a class of errors in words: ``quota exceeded 1/minute``."""
    kind, space, rest = name.partition(" ")
    return _CAPITAL.sub(r" \1", kind).lower() + space + rest


def read_time(
    text: str, zone: str, *, field: str, near: datetime, of_day: bool = False
) -> datetime:
    """Return the instant that a person typed: every form of :func:`local_text`, or ISO 8601.

    A time without a date is the next one from ``near`` on, with ``of_day`` that of its day. A date
    without a year is the one nearest to it, and a date without a time its beginning. Raises
    InvalidSendTime.
    """
    local = near.astimezone(send_time.check_zone(zone)).replace(tzinfo=None)
    if of_day:
        local = local.replace(hour=0, minute=0, second=0, microsecond=0)
    typed = _read(" ".join(text.split()), local)
    try:
        return send_time.parse_time_or_date(typed or text, zone=zone, field=field)
    except InvalidSendTime as error:
        if not error.accepted.startswith(send_time.ACCEPTED):
            raise
        raise InvalidSendTime(field, f"cannot read {quoted(text)}", ACCEPTED) from None


def _read(text: str, near: datetime) -> datetime | None:
    found = _TYPED.fullmatch(text)
    if found is None or (found["month"] or "jan").lower() not in _MONTHS:
        return None
    clock = f"{found['hour']:0>2}:{found['minute']}:{found['second'] or '00'}"
    clock += f".{found['thousandths'] or '0':0<6}"
    has_date = found["date"] is not None or found["month"] is not None
    if not has_date:
        dates = [f"{near + timedelta(days=each):%Y-%m-%d}" for each in (0, 1)]
    elif found["date"] is not None:
        dates = [found["date"]]
    else:
        month = _MONTHS.index(found["month"].lower()) + 1
        years = [found["year"]] if found["year"] else range(near.year - 1, near.year + 2)
        dates = [f"{int(year):04}-{month:02}-{int(found['day']):02}" for year in years]
    times = []
    for date in dates:
        with suppress(ValueError):
            times.append(datetime.fromisoformat(f"{date}T{clock}"))
    if not has_date:
        # The minute that is under way counts: people type no seconds.
        times = [time for time in times if time >= near.replace(second=0, microsecond=0)]
    nearest = min(times, key=lambda time: abs(time - near), default=None)
    if nearest is None or found["offset"] is None:
        return nearest
    with suppress(ValueError):
        return datetime.fromisoformat(f"{nearest.isoformat()}{found['offset']}")
    return None
