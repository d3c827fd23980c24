"""How the whole house stands: what no process can count on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What lives and what is late by the store; who is at work by Redis, None where it is away.

    ``messages`` by channel and status; at most a million of each status are counted.
    """

    messages: Mapping[tuple[str, str], int]
    overdue: int
    longest_overdue: timedelta
    duties: Mapping[str, timedelta] | None
    """How long ago each duty of the sweep was done."""
    workers: int | None
    beats: int | None
