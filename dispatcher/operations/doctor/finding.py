"""What a check answers, and what a check is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

F = TypeVar("F")


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """Works, and will not under circumstances that the finding names."""
    ERROR = "error"
    """Does not work, or a promise is not kept."""
    SKIPPED = "skipped"
    """Could not be looked at, because of what another finding tells."""


class Verdict(NamedTuple):
    """What a check says of the facts it was given."""

    level: Level
    found: str
    remedy: str | None = None
    stops_worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found, and what to do about it.

    ``stops_worker`` tells that a worker must not start like this: what is wrong stays wrong
    however long it waits.
    """

    check: str
    level: Level
    found: str
    remedy: str | None = None
    stops_worker: bool = False


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    """One subject, judged by facts that somebody else has asked for."""

    name: str
    judge: Callable[[F], Verdict]

    def __call__(self, facts: F) -> Finding:
        """Judge the facts."""
        level, found, remedy, stops_worker = self.judge(facts)
        return Finding(
            check=self.name, level=level, found=found, remedy=remedy, stops_worker=stops_worker
        )

    def skipped(self, why: str) -> Finding:
        """Return the finding that there are no facts."""
        return Finding(check=self.name, level=Level.SKIPPED, found=why)


def check(name: str) -> Callable[[Callable[[F], Verdict]], Check[F]]:
    """Make a check of a function."""
    return lambda judge: Check(name, judge)


def ok(found: str) -> Verdict:
    """Say that all is well."""
    return Verdict(Level.OK, found)


def warning(found: str, remedy: str) -> Verdict:
    """Say what will go wrong."""
    return Verdict(Level.WARNING, found, remedy)


def error(found: str, remedy: str, *, stops_worker: bool = False) -> Verdict:
    """Say what is wrong."""
    return Verdict(Level.ERROR, found, remedy, stops_worker)
