"""Fault points: named lines at which a test ends, freezes, delays or fails this process.

``DISPATCHER_FAULTS`` arms them: ``submit.after_reserve=kill``, several with ``;`` between. A fault
happens at the first pass, with ``@3`` at the third, with ``@3+`` at the third and each one after.
Without armed faults a point costs a call and a check of one global.

===================  ===============================================================================
``kill``             SIGKILL to this process
``stop``             SIGSTOP to this process; the test continues it
``raise``            InjectedFault, which no code handles
``wait:<file>``      ``<file>.reached`` is written, and this thread goes on once ``<file>`` exists
===================  ===============================================================================
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import InvalidSettings, quoted

VARIABLE = "DISPATCHER_FAULTS"
POINTS = frozenset({
    "series.after_take", "series.after_batch", "series.after_change", "series.after_removal",
    "series.after_cancel",
    "submit.before_reserve", "submit.after_reserve", "submit.after_commit", "submit.after_enqueue",
    "reserve.between_shards",
    "joined.after_add", "joined.after_commit",
    "cancel.after_rows",
    "suppress.after_row",
    "event.after_booking", "event.after_rows", "event.after_cancel",
    "reschedule.after_booking", "reschedule.after_row", "reschedule.after_release",
    "deliver.after_claim", "deliver.after_permits", "deliver.before_send", "deliver.after_begin",
    "deliver.after_send", "deliver.after_record",
    "put_back.after_row",
    "renew.after_permits", "renew.after_claims",
    "enqueue_due.after_take",
    "rescue.before_put_back", "rescue.in_transaction",
    "reconcile.after_barring", "reconcile.after_giving_up", "reconcile.after_look_up",
    "reconcile.before_release", "reconcile.after_release",
    "rebuild.after_wipe", "rebuild.after_restore", "rebuild.after_windows",
    "tell.in_transaction",
    "prune.after_batch",
})  # fmt: skip

log = logging.getLogger(__name__)

_ONE = re.compile(r"([a-z_]+\.[a-z_]+)=(kill|stop|raise|wait:[^@]+)(?:@([1-9]\d*)(\+)?)?")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_LOOK_EVERY_SECONDS = 0.005


class InjectedFault(Exception):
    """Raised at a point that is armed with ``raise``."""


class _Fault(NamedTuple):
    action: str
    first: int
    again: bool

    def happen(self, point: str) -> None:
        if self.action in _SIGNALS:
            # To this thread, so that it stops here: the process may stop another one first.
            signal.pthread_kill(threading.get_ident(), _SIGNALS[self.action])
        elif self.action == "raise":
            raise InjectedFault(point)
        else:
            permission = Path(self.action.removeprefix("wait:"))
            reached = permission.with_name(f"{permission.name}.reached")
            reached.write_text(f"{os.getpid()}\n")
            while not permission.exists():
                time.sleep(_LOOK_EVERY_SECONDS)


class _Armed:
    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._faults = dict(map(_parsed, filter(None, map(str.strip, spec.split(";")))))
        self.passes = Counter[str]()
        self._lock = threading.Lock()

    def pass_by(self, point: str) -> None:
        armed = self._faults.get(point)
        if armed is None:
            return
        with self._lock:
            self.passes[point] += 1
            number = self.passes[point]
        if number == armed.first or (armed.again and number > armed.first):
            log.critical("fault at %s, pass %d: %s", point, number, armed.action)
            armed.happen(point)


_armed: _Armed | None = None


def fault(point: str) -> None:
    """Cause the fault that is armed at this point, if any."""
    if _armed is not None:  # the simulation arms faults of its own
        _armed.pass_by(point)


def arm(spec: str | None) -> None:
    """Arm the faults of ``spec``, none for None. Raises InvalidSettings."""
    global _armed  # noqa: PLW0603 - one process, one set of faults
    _armed = _Armed(spec) if spec else None


def arm_by_environment() -> None:
    """Arm the faults of the environment, and warn of them. Raises InvalidSettings."""
    spec = os.environ.get(VARIABLE)
    if not spec:
        return
    if _armed is None or _armed.spec != spec:
        arm(spec)
    text = (
        f"{VARIABLE} IS SET: this process kills, stops or fails itself on purpose ({spec}). "
        "It is for tests; unset it in production."
    )
    log.critical("%s", text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)  # also without a handler of logs


def _parsed(text: str) -> tuple[str, _Fault]:
    match = _ONE.fullmatch(text)
    if match is None:
        raise InvalidSettings(
            VARIABLE, f"{quoted(text)} cannot be read",
            "<point>=<kill, stop, raise or wait:<file>>, with @<pass> or @<pass>+ behind it if not "
            "at the first pass, several with ; between",
        )  # fmt: skip
    point, action, first, again = match.groups()
    if point not in POINTS:
        raise InvalidSettings(VARIABLE, f"there is no point {point}", ", ".join(sorted(POINTS)))
    return point, _Fault(action, int(first or 1), bool(again))
