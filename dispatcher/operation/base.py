"""What every side of the front door stands on: settings, parts, and an end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from dispatcher.bootstrap import Parts
from dispatcher.errors import InvalidDraft, InvalidValue, kind_of, quoted
from dispatcher.operation.awaiting import Threads
from dispatcher.settings import Settings
from dispatcher.times.clock import Clock

_MOST_FOUND = 10_000


class Base:
    """The settings and the parts, built when first asked for, and closed at the end."""

    def __init__(self, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        if not (settings is None or isinstance(settings, Settings)):
            raise InvalidValue("settings", kind_of(settings), "Settings, as from Settings.load()")
        self.settings = settings if settings is not None else Settings.load()
        self._parts = Parts(self.settings, clock)
        self._threads = Threads()

    def close(self) -> None:
        """Wait for calls that others await, then close the connections."""
        self._threads.close()
        self._parts.close()

    async def aclose(self) -> None:
        """Close without blocking the loop. ``async with`` does so, too."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def check_at_most(at_most: object, field: str = "at_most") -> None:
    """Raise InvalidDraft unless so many messages can be returned at once."""
    if not isinstance(at_most, int) or not 1 <= at_most <= _MOST_FOUND:
        raise InvalidDraft(field, quoted(at_most), f"1 to {_MOST_FOUND}")
