"""Figures that tests measure, on a line each at the end of the run.

They travel in the tests' reports, so that a run of several processes shows them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_FIGURE = "measured"


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    def add(line: str) -> None:
        request.node.user_properties.append((_FIGURE, f"{request.node.name}: {line}"))

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    figures = [
        value
        for reports in terminalreporter.stats.values()
        for each in reports
        if getattr(each, "when", None) == "call"
        for name, value in each.user_properties
        if name == _FIGURE
    ]
    if figures:
        terminalreporter.section(_FIGURE)
        for line in figures:
            terminalreporter.write_line(line)
