"""Lengths of time in whole milliseconds, as Redis and the tables keep them."""

from __future__ import annotations

from datetime import timedelta

MILLISECOND = timedelta(milliseconds=1)


def to_length_ms(length: timedelta) -> int:
    return length // MILLISECOND
