"""Admission of calls: by a valid key, and as often as its limit allows."""

from __future__ import annotations

import logging
from datetime import timedelta

from fastapi import Request

from dispatcher.app import App
from dispatcher.errors import LimitersUnavailable, quoted
from dispatcher.limiters import Limiter, parse
from dispatcher.problems import limit_headers
from dispatcher.web.access import Auth, Caller, KeyAuth
from dispatcher.web.bounds import Threads
from dispatcher.web.problems import Refused

log = logging.getLogger(__name__)

RATE = "100/second"
"""The limit of a caller that has none of its own."""
_WARN_SECONDS = 60.0


class Admission:
    def __init__(self, parts: App, threads: Threads, *, auth: Auth | None, rate: str) -> None:
        self._threads = threads
        self.caller_of = auth or KeyAuth(parts.api_keys)
        self._redis = parts.plain_redis
        self._prefix = f"{parts.settings.namespace}.api"
        self._rate = rate
        self._limits: dict[str, Limiter] = {}
        self._clock = parts.clock
        self._warns_at = 0.0
        parse(rate)

    async def identify(self, request: Request) -> None:
        caller = None
        if isinstance(self.caller_of, KeyAuth):
            caller = self.caller_of.cached(request)
        request.state.caller = caller or await self._threads.run(self.caller_of, request)

    def admit(self, request: Request) -> Caller:
        caller = request.state.caller = self.caller_of(request)
        self.count(request)
        return caller

    def count(self, request: Request) -> None:
        """Count the call; refuse it where none is left. It goes on where Redis does not answer."""
        request.state.is_counted = True
        caller: Caller = request.state.caller
        rate = caller.rate or self._rate
        limiter = self._limits.get(rate)
        if limiter is None:
            limiter = self._limits[rate] = parse(rate).on(self._redis, prefix=self._prefix)
        try:
            decision = limiter.acquire(caller.name)
        except LimitersUnavailable as error:
            now = self._clock.monotonic()
            if now >= self._warns_at:
                self._warns_at = now + _WARN_SECONDS
                log.warning("calls are not limited while Redis does not answer: %s", error)
            return
        request.state.headers = limit_headers(limiter.limits, decision, name="key")
        if not decision:
            wait = max(1, -(-decision.retry_after // timedelta(seconds=1)))
            detail = f"{quoted(caller.name)} may call {rate}; try again in {wait} s"
            raise Refused(429, "limit-reached", detail, headers={"Retry-After": str(wait)})
