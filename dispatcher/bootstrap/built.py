"""The decorator of parts that are built when first asked for."""

from __future__ import annotations

from functools import cached_property
from threading import RLock
from typing import Self, TypeVar, cast, overload

T = TypeVar("T")

_building = RLock()


class built_once(cached_property[T]):  # noqa: N801 - used as a decorator
    """A cached property that two threads do not build twice."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        with _building:
            # Who waited finds what was built meanwhile: cached_property of Python 3.12 and later
            # does not look again.
            built = vars(instance).get(self.func.__name__)
            return super().__get__(instance, owner) if built is None else cast("T", built)
