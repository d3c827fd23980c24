"""What a forked child does with what its parent has open: it renews it, and finalises nothing.

A connection that two processes use mixes their answers, and one that the child closes is closed for
the parent, too: libpq, SQLite and AMQP each say so.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_renewals: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def renew_after_fork(owner: T, renew: Callable[[T], None]) -> None:
    """Call ``renew(owner)`` in every forked child before anything else, as long as it lives.

    It lets go of connections, threads and locks, and closes none of them.
    """
    _renewals[owner] = renew


def never_finalise(inherited: object) -> None:
    """Keep what the parent has open, also when the interpreter ends: finalising it closes it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _renew() -> None:
    errors = []
    for owner, renew in list(_renewals.items()):
        try:
            renew(owner)
        except Exception as error:  # noqa: BLE001 - one owner must not keep the others' parts old
            errors.append(error)
    if errors:
        raise errors[0]  # Python prints it, and goes on


os.register_at_fork(after_in_child=_renew)
