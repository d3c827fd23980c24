"""Answers that are made while they are read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from dispatcher.submission.cases import Result


class Unread(Iterator[Result]):
    """Results that are made while they are read, and says so when nobody ever reads them."""

    def __init__(self, results: Iterator[Result]) -> None:
        self._results = results
        self._begun = False

    def __next__(self) -> Result:
        self._begun = True
        return next(self._results)

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(
                "submit_many was given an iterable and its results were never read: "
                "nothing was submitted",
                RuntimeWarning,
                stacklevel=2,
            )
