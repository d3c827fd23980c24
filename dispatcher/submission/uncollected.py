"""Work on many short-lived objects, without the garbage collector looking through them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def uncollected(work: Callable[P, T]) -> Callable[P, T]:
    """Let ``work`` run while the collector of cycles is off, and turn it on again if it was on.

    All threads share it, so a call that ends while another is under way turns it on for both: that
    costs time and nothing else. Where a program has turned it off, it stays off.
    """

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return work(*args, **kwargs)
        finally:
            if was_on:
                gc.enable()

    return run
