"""Calls that last for as long as the caller listens, or sends. How many there are is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from threading import RLock
from typing import Literal
from weakref import finalize

from anyio import move_on_after
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.web.problems import Refused

Kind = Literal["batches", "calls", "files", "listeners", "pages"]
MOST: dict[Kind, tuple[int, int, int]] = {
    "batches": (8, 32, 5),
    "calls": (8, 32, 1),
    "files": (4, 8, 5),
    "listeners": (50, 200, 60),
    "pages": (20, 20, 60),
}
"""The most of one key, the most in all, and after how many seconds to ask again."""
_NAMES: dict[Kind, str] = {
    "batches": "batches",
    "calls": "long calls",
    "files": "files under way",
    "listeners": "listeners",
    "pages": "pages with live numbers",
}
_PAGE_SECONDS, _END_SECONDS = 600.0, 1.0
"""How long numbers are sent to a page, which then asks again; how long their end may take."""
_CALL_SECONDS = 60.0
"""How long a long call may take until its answer is read."""
_PIECE_BYTES = 65_536


class Streams:
    def __init__(self) -> None:
        self._under_way: dict[Kind, Counter[str]] = {kind: Counter() for kind in MOST}
        self._lock = RLock()  # the collector may free a place while one is taken

    def take(self, kind: Kind, name: str) -> None:
        taken, (of_one, in_all, seconds) = self._under_way[kind], MOST[kind]
        headers = {"Retry-After": f"{seconds}"}
        with self._lock:
            if taken[name] >= of_one:
                detail = f"this key has {of_one} {_NAMES[kind]} open, which is the most"
                raise Refused(429, f"too-many-{kind}", detail, headers=headers)
            if taken.total() >= in_all:
                detail = f"this server has {in_all} {_NAMES[kind]} open, which is the most"
                raise Refused(503, f"too-many-{kind}", detail, headers=headers)
            taken[name] += 1

    def free(self, kind: Kind, name: str) -> None:
        with self._lock:
            taken = self._under_way[kind]
            taken[name] -= 1
            if not taken[name]:
                del taken[name]

    async def within(self, name: str, app: ASGIApp, call: tuple[Scope, Receive, Send]) -> None:
        """Answer a long call in pieces: it has its place until a slow reader has them."""
        scope, receive, send = call
        began = False

        async def send_pieces(message: Message) -> None:
            nonlocal began
            began = True
            body = message.get("body", b"")
            while len(body) > _PIECE_BYTES:
                await send({**message, "body": body[:_PIECE_BYTES], "more_body": True})
                body = body[_PIECE_BYTES:]
            await send({**message, "body": body} if body else message)

        self.take("calls", name)
        try:
            with move_on_after(_CALL_SECONDS) as bound:
                await app(scope, receive, send_pieces)
        finally:
            self.free("calls", name)
        if bound.cancelled_caught and not began:
            detail = f"the call was not answered within {_CALL_SECONDS:g} s"
            raise Refused(503, "too-slow", detail, headers={"Retry-After": "5"})


class LongResponse(StreamingResponse):
    """The answer to a long call, which has a place while it lasts. Raises Refused without one.

    An answer that is never sent, because its call was cancelled before, gives its place back, too.
    """

    kind: Kind

    def __init__(self, content: AsyncIterator[str], streams: Streams, name: str) -> None:
        streams.take(self.kind, name)
        self._free = finalize(self, streams.free, self.kind, name)
        super().__init__(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.stream(scope, receive, send)
        finally:
            self._free()

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


class EventResponse(LongResponse):
    kind = "listeners"
    media_type = "text/event-stream"


class NumbersResponse(LongResponse):
    """The live numbers of a page. They end in time also if the browser does not read."""

    kind = "pages"
    media_type = "text/event-stream"

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        with move_on_after(_PAGE_SECONDS) as bound:
            await super().stream(scope, receive, send)
        if bound.cancelled_caught:
            with move_on_after(_END_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class VerdictResponse(LongResponse):
    """The answer to a batch, which is written while the call is still read.

    So it does not wait for the caller's disconnection, which is read where the lines are.
    """

    kind = "batches"
    media_type = "application/x-ndjson"

    async def stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await self.stream_response(send)
