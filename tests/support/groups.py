"""A group of claims, for tests of delivery's parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from dispatcher import Settings
from dispatcher.delivery import Shared
from dispatcher.delivery.group import Group
from dispatcher.delivery.send_log import ClaimLog
from dispatcher.times.clock import SystemClock

_BARE: Any = SimpleNamespace(clock=SystemClock(), settings=Settings())


def a_group(shared: Shared = _BARE) -> Group:
    log = ClaimLog(uuid4())
    return Group(shared, {}, (), claimed_at=0.0, send_log=log)
