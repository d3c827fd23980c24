"""The decorator of parts that are built at their first use."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class built_once(Generic[T]):  # noqa: N801 - used as a decorator
    """A cached property that threads build only once.

    Unlike ``functools.cached_property`` it locks. The lock belongs to the object, not to the
    module: in a child forked while a thread of the parent builds, a module's lock would stay locked
    for ever. The child makes an object of its own.
    """

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        name, built = self._build.__name__, vars(instance)
        with built.setdefault("_building", RLock()):
            if name not in built:  # else another thread has built it
                built[name] = self._build(instance)
            part: T = built[name]
            return part
