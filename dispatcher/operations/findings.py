"""Checks, and findings with a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

F = TypeVar("F")


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, and will fail under circumstances that the finding names."""
    ERROR = "error"
    """It does not work, or breaks a promise."""
    SKIPPED = "skipped"
    """Not examined, because of another finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, and its remedy.

    With ``stops_worker`` a worker must not start: waiting does not correct the error.
    """

    check: str = ""
    level: Level
    found: str
    remedy: str | None = None
    stops_worker: bool = False


def ok(found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(level=Level.OK, found=found)


def warning(found: str, remedy: str) -> Finding:
    """Return a finding about what will fail."""
    return Finding(level=Level.WARNING, found=found, remedy=remedy)


def error(found: str, remedy: str, *, stops_worker: bool = False) -> Finding:
    """Return a finding about what is wrong."""
    return Finding(level=Level.ERROR, found=found, remedy=remedy, stops_worker=stops_worker)


def skipped(found: str) -> Finding:
    """Return the finding for missing facts."""
    return Finding(level=Level.SKIPPED, found=found)


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    """One named check of facts. It asks no server itself."""

    name: str
    judge: Callable[[F], Finding]

    def __call__(self, facts: F) -> Finding:
        """Return the finding about the facts, with the name of this check."""
        return replace(self.judge(facts), check=self.name)


def check(name: str) -> Callable[[Callable[[F], Finding]], Check[F]]:
    """Make a check of a function."""
    return lambda judge: Check(name, judge)


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of all checks."""

    findings: tuple[Finding, ...]

    @property
    def counts(self) -> Mapping[Level, int]:
        """The number of findings of each level."""
        counted = Counter(each.level for each in self.findings)
        return {level: counted[level] for level in Level}

    @property
    def level(self) -> Level:
        """The worst level."""
        counts = self.counts
        return next((each for each in (Level.ERROR, Level.WARNING) if counts[each]), Level.OK)
