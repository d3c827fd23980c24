"""The findings of the doctor, each with a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
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
    return Finding(level=Level.OK, found=found)


def warning(found: str, remedy: str) -> Finding:
    return Finding(level=Level.WARNING, found=found, remedy=remedy)


def error(found: str, remedy: str, *, stops_worker: bool = False) -> Finding:
    return Finding(level=Level.ERROR, found=found, remedy=remedy, stops_worker=stops_worker)


def skipped(found: str) -> Finding:
    return Finding(level=Level.SKIPPED, found=found)


@dataclass(frozen=True, slots=True)
class Examination:
    findings: tuple[Finding, ...]

    @property
    def counts(self) -> Mapping[Level, int]:
        counted = Counter(each.level for each in self.findings)
        return {level: counted[level] for level in Level}

    @property
    def level(self) -> Level:
        counts = self.counts
        return next((each for each in (Level.ERROR, Level.WARNING) if counts[each]), Level.OK)
