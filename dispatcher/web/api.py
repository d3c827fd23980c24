"""The HTTP API: the application, its paths, and what stands before and after every call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from copy import deepcopy
from functools import partial, wraps
from inspect import iscoroutinefunction
from itertools import chain
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.status import HTTP_405_METHOD_NOT_ALLOWED
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.app import App
from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import DispatcherError
from dispatcher.problems import headers_of
from dispatcher.telemetry.journal import digest_with
from dispatcher.web import endpoints, problems
from dispatcher.web.access import RATE, Admission, Auth, Caller
from dispatcher.web.bounds import SharedThreads, Streams, Threads
from dispatcher.web.context import Context, problem_for
from dispatcher.web.endpoints import ENDPOINTS, PREFIX, Endpoint
from dispatcher.web.problems import THE_CALL, Refused, bounded, check_is_utf8, invalid

log = logging.getLogger(__name__)

_DOCUMENT = f"{PREFIX}/openapi.json"
_MOST_THREADS, _LISTEN_THREADS = 16, 4
"""Calls, and reads of events, at a time. The store has 32 connections; the page uses some, too."""
_LONG_THREADS, _LONG_THREADS_OF_ONE = 2, 1
"""Long calls at a time, of all keys and of one. They hold the lock of the interpreter most."""


class Api(FastAPI):
    """The application, and what all calls share. ``listening`` are the threads that read events."""

    def __init__(self, dispatcher: Dispatcher, *, auth: Auth | None, rate: str) -> None:
        super().__init__(
            title="dispatcher",
            description="Messages that are sent at a future time, under exact quotas.",
            version="1",
            openapi_url=_DOCUMENT,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            separate_input_output_schemas=False,
            # FastAPI's spans and logs have paths, queries and errors, which name recipients.
            telemetry={"tracing": False, "logs": False},
        )
        self.dispatcher = dispatcher
        self.settings = dispatcher.settings
        self.threads = Threads(dispatcher, _MOST_THREADS)
        self.long = SharedThreads(dispatcher, _LONG_THREADS, most_of_one=_LONG_THREADS_OF_ONE)
        self.listening = Threads(dispatcher, _LISTEN_THREADS)
        self.streams = Streams()
        self.digest = digest_with(self.settings.log_key)
        self.admission = Admission(self.parts, self.threads, auth=auth, rate=rate)
        for endpoint in ENDPOINTS:
            is_awaited = iscoroutinefunction(endpoint.function)
            success: dict[int | str, Any] = {endpoint.status: {"model": endpoint.answer}}
            # On its own router: FastAPI asks an included one for its routes at each call.
            self.router.add_api_route(
                f"{PREFIX}{endpoint.path}",
                endpoint.function if is_awaited else _in_thread(endpoint),
                methods=[endpoint.method],
                status_code=endpoint.status,
                operation_id=endpoint.name,
                response_class=Response,
                response_model=None,
                responses=success if endpoint.answer else None,
                route_class_override=CallRoute,
            )
        self._document = endpoints.document_of(self)
        self.parameters = endpoints.parameters_of(self._document)
        self.add_middleware(CallMiddleware)
        if self.settings.allowed_hosts:
            hosts = [*self.settings.allowed_hosts]
            self.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
        for kind in (DispatcherError, Refused, RequestValidationError, HTTPException):
            self.add_exception_handler(kind, _failed)
        self.add_exception_handler(Exception, _broken)

    @property
    def parts(self) -> App:
        return app_of(self.dispatcher)

    def openapi(self) -> dict[str, Any]:
        """Add the types of bodies now: one that cannot be used stops no calls on other channels."""
        if self.openapi_schema is None:
            document = deepcopy(self._document)
            endpoints.add_bodies(document["components"]["schemas"], self.settings.body_types)
            self.openapi_schema = document
        return self.openapi_schema


def api(dispatcher: Dispatcher, *, auth: Auth | None = None, rate: str = RATE) -> FastAPI:
    """Return the HTTP API of a dispatcher, an ASGI application to serve or to mount.

    ``auth`` returns the :class:`Caller` of a request; by default callers have the keys that
    ``dispatcher keys`` makes. ``rate`` limits the calls of a caller that has no rate of its own.
    The caller of this function closes the dispatcher. Raises InvalidValue for a rate that cannot
    be read.
    """
    return Api(dispatcher, auth=auth, rate=rate)


def _in_thread(endpoint: Endpoint) -> Callable[..., Coroutine[Any, Any, Response]]:
    """Run it, once its call is counted, in threads that it gets with the call.

    FastAPI keeps functions for ever.
    """

    def admitted(context: Context, **given: Any) -> Response:
        caller = context.admit()
        if endpoint.is_unbound:
            caller.check_unbound()
        response: Response = endpoint.function(context, **given)
        return response

    @wraps(endpoint.function)
    async def answered(context: Context, **given: Any) -> Response:
        service, work = context.service, partial(admitted, context, **given)
        if endpoint.is_long:
            return await service.long.run_for(context.caller.name, work)
        return await service.threads.run(work)

    return answered


class CallRoute(APIRoute):
    """Checks the rights of a caller before FastAPI reads a call, and bounds its length."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        [self.described] = [each for each in ENDPOINTS if each.name == self.operation_id]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):
            context = Context(Request(scope))
            context.check(*self.described.rights)
            if self.described.most_bytes is not None:
                most = self.described.most_bytes or context.longest
                receive = bounded(receive, most, f"a call has at most {most} bytes")
            if self.described.is_long:
                streams, name = context.service.streams, context.caller.name
                await streams.within(name, super().handle, (scope, receive, send))
                return
        await super().handle(scope, receive, send)


class CallMiddleware:
    """Finds callers before calls are read. Logs changes without names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        path = scope["path"].removeprefix(scope.get("root_path", ""))

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = {"Cache-Control": "no-store", **state.get("headers", {})}
                named = [(name.lower().encode(), value.encode()) for name, value in more.items()]
                message["headers"] = [*message.get("headers", ()), *named]
                state["status"] = message["status"]
            await send(message)

        request = Request(scope)
        if path != _DOCUMENT:
            try:
                check_is_utf8(scope)
                await request.app.admission.identify(request)
            except (Refused, DispatcherError) as error:
                answer = await _failed(request, error)
                await answer(scope, receive, send_more)
                return
        try:
            await self._app(scope, receive, send_more)
        finally:
            # After the answer was sent, so that the caller does not wait for the log.
            caller: Caller | None = state.get("caller")
            method, route = scope["method"], scope.get("route")
            if method != "GET" and caller and route is not None and "status" in state:
                path = route.path_format
                log.info("%s %s by %s: %d", method, path, caller.name, state["status"])


async def _failed(request: Request, error: Any) -> Response:
    """Answer an error of a call, which is counted first: it may be one too many."""
    if hasattr(request.state, "caller") and not hasattr(request.state, "is_counted"):
        try:
            await request.app.threads.run(request.app.admission.count, request)
        except Refused as refused:
            error = refused
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        error = invalid(first, first["loc"][1:], THE_CALL)
    if isinstance(error, HTTPException):
        error = _not_served(request, error)
    headers = headers_of(error) if isinstance(error, DispatcherError) else {}
    if isinstance(error, Refused):
        headers = dict(error.headers)
    return problems.response_of(problem_for(request, error), headers)


def _not_served(request: Request, error: HTTPException) -> Refused:
    """Name all methods of the path, which has several routes; Starlette names those of one."""
    kinds = {400: "unreadable", 404: "no-such-path", 405: "method-not-allowed", 413: "too-large"}
    headers = error.headers or {}
    if error.status_code == HTTP_405_METHOD_NOT_ALLOWED:
        path = getattr(request.scope.get("route"), "path", _DOCUMENT)
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        methods = [route.methods or () for route in routes if route.path == path]
        headers = {"Allow": ", ".join(sorted({*chain(*methods)}))}
    kind = kinds.get(error.status_code, "refused")
    return Refused(error.status_code, kind, str(error.detail), headers)


async def _broken(_request: Request, _error: Exception) -> Response:
    refused = Refused(500, "internal-error", "the call failed; the log of the server says why")
    return problems.response_of(refused.problem, {})
