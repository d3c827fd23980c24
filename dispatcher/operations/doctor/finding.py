"""Checks and findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

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


class Verdict(NamedTuple):
    """The result of a check function."""

    level: Level
    found: str
    remedy: str | None = None
    stops_worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, and its remedy.

    With ``stops_worker`` a worker must not start: waiting does not correct the error.
    """

    check: str
    level: Level
    found: str
    remedy: str | None = None
    stops_worker: bool = False


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    """One named check of facts. It asks no server itself."""

    name: str
    judge: Callable[[F], Verdict]

    def __call__(self, facts: F) -> Finding:
        """Return the finding about the facts."""
        level, found, remedy, stops_worker = self.judge(facts)
        return Finding(
            check=self.name, level=level, found=found, remedy=remedy, stops_worker=stops_worker
        )

    def skipped(self, why: str) -> Finding:
        """Return the finding for missing facts."""
        return Finding(check=self.name, level=Level.SKIPPED, found=why)


def check(name: str) -> Callable[[Callable[[F], Verdict]], Check[F]]:
    """Make a check of a function."""
    return lambda judge: Check(name, judge)


def ok(found: str) -> Verdict:
    """Return a verdict without a problem."""
    return Verdict(Level.OK, found)


def warning(found: str, remedy: str) -> Verdict:
    """Return a verdict about what will fail."""
    return Verdict(Level.WARNING, found, remedy)


def error(found: str, remedy: str, *, stops_worker: bool = False) -> Verdict:
    """Return a verdict about what is wrong."""
    return Verdict(Level.ERROR, found, remedy, stops_worker)
