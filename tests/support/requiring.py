"""What a machine may lack: its tests are skipped, unless ``DISPATCHER_TESTS_REQUIRE`` names it."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def is_required(what: str) -> bool:
    return what in os.environ.get("DISPATCHER_TESTS_REQUIRE", "").split(",")


def missing(what: str, reason: str) -> NoReturn:
    """Skip the test, or fail it where what is missing is required."""
    if is_required(what):
        pytest.fail(reason)
    pytest.skip(reason)
