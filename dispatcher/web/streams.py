"""Calls that last for as long as the caller listens, or sends. How many there are is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Literal

from anyio import CapacityLimiter
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dispatcher.web.problems import Refused

Kind = Literal["batches", "listeners"]
MOST: dict[Kind, tuple[int, int, int]] = {"batches": (8, 32, 5), "listeners": (50, 200, 60)}
"""The most of one key, the most in all, and after how many seconds to ask again."""
_LISTEN_THREADS = 4


class Streams:
    """The long calls that are under way. ``threads`` are those that read events."""

    def __init__(self) -> None:
        self._under_way: dict[Kind, Counter[str]] = {kind: Counter() for kind in MOST}
        self.threads = CapacityLimiter(_LISTEN_THREADS)

    def take(self, kind: Kind, name: str) -> None:
        """Take a place for a call of that key's. Raises Refused where none is free."""
        taken, (of_one, in_all, seconds) = self._under_way[kind], MOST[kind]
        headers = {"Retry-After": f"{seconds}"}
        if taken[name] >= of_one:
            detail = f"the key has {of_one} {kind} under way; it may have no more"
            raise Refused(429, f"too-many-{kind}", detail, headers=headers)
        if taken.total() >= in_all:
            detail = f"this server has {in_all} {kind} under way; it takes no more"
            raise Refused(503, f"too-many-{kind}", detail, headers=headers)
        taken[name] += 1

    def free(self, kind: Kind, name: str) -> None:
        """Give the place back."""
        taken = self._under_way[kind]
        taken[name] -= 1
        if not taken[name]:
            del taken[name]


class LongResponse(StreamingResponse):
    """The answer to a long call, which has a place while it lasts. Raises Refused without one."""

    kind: Kind

    def __init__(self, content: AsyncIterator[str], streams: Streams, name: str) -> None:
        streams.take(self.kind, name)
        self._streams = streams
        self._name = name
        super().__init__(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await self.stream(scope, receive, send)
        finally:
            self._streams.free(self.kind, self._name)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the content ends or the caller goes."""
        await super().__call__(scope, receive, send)


class EventResponse(LongResponse):
    """The answer to a listener for events."""

    kind = "listeners"
    media_type = "text/event-stream"


class VerdictResponse(LongResponse):
    """The answer to a batch, which is written while the call is still read.

    So it does not wait for the caller's disconnection, which is read where the lines are.
    """

    kind = "batches"
    media_type = "application/x-ndjson"

    async def stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Write until the lines end."""
        await self.stream_response(send)
