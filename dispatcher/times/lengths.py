"""Lengths of time in whole milliseconds, as Redis and the tables keep them."""

from __future__ import annotations

from datetime import timedelta

MILLISECOND = timedelta(milliseconds=1)


def to_length_ms(length: timedelta) -> int:
    return length // MILLISECOND


def length_text(length: timedelta) -> str:
    """Return a length for people: 2 hours, 95 s, 300 ms."""
    seconds = round(length.total_seconds())
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * size or seconds == size:
            many = seconds // size
            return f"{many} {unit}{'' if many == 1 else 's'}"
    return f"{seconds} s" if seconds else f"{length // MILLISECOND} ms"
