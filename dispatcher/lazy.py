"""The decorator of parts that are built when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class built_once(Generic[T]):  # noqa: N801 - used as a decorator
    """A property that is kept, and that two threads do not build twice.

    The lock belongs to the object, not to the module: a child forked while another thread of its
    parent builds would find a module's lock taken for ever. The child makes an object of its own.
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
            if name not in built:  # else another thread has built it meanwhile
                built[name] = self._build(instance)
            part: T = built[name]
            return part
