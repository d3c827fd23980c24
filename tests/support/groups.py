"""A group of claims, and its recorder, for tests of delivery's parts."""

from __future__ import annotations

from math import inf
from typing import Any
from uuid import uuid4

from dispatcher.delivery import Delivery
from dispatcher.delivery.recorder import Recorder
from dispatcher.delivery.send_log import ClaimLog
from dispatcher.delivery.sender import Group

_NONE: Any = None


def a_group() -> Group:
    log = ClaimLog(_NONE, uuid4(), None)
    return Group(claimed_at=0.0, received_at=0.0, ends_at=inf, send_log=log)


def a_recorder(delivery: Delivery) -> Recorder:
    return Recorder(delivery.shared, _NONE, a_group(), ())
