"""The HTTP API: its endpoints, and what stands before and after every call."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial, wraps
from importlib.resources import files
from inspect import iscoroutinefunction
from itertools import chain
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.status import HTTP_405_METHOD_NOT_ALLOWED
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.app import App
from dispatcher.body_types import BodyTypes
from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import DispatcherError
from dispatcher.problems import MEDIA_TYPE, headers_of
from dispatcher.telemetry.journal import digest_with
from dispatcher.web import calls, models
from dispatcher.web.access import RATE, Admission, Auth, Right
from dispatcher.web.bounds import Streams, Threads
from dispatcher.web.context import Context, problem_for
from dispatcher.web.keys import KeyAuth
from dispatcher.web.problems import THE_CALL, Refused, bounded, check_is_utf8, invalid

log = logging.getLogger(__name__)

PREFIX = "/v1"


class _AnyName(PathConvertor):
    """A name in a path, whole: recipients of webhooks have slashes; line ends are refused later."""

    regex = "(?s:.*)"


register_url_convertor("any_name", _AnyName())


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of the API. The name of its ``function`` is its id in ``docs/openapi.py``.

    ``path``: below ``/v1``. ``rights`` are checked before a body is read. ``most_bytes`` of a body:
    None for any number, 0 for those of one message. ``is_long``: a call that changes nothing and
    may take many times as long as a submit; it shares the threads for such calls. ``is_unbound``:
    not for keys that are bound to channels or a scope.
    """

    method: str
    path: str
    function: Callable[..., Any]
    rights: tuple[Right, ...]
    _: KW_ONLY
    most_bytes: int | None = 0
    is_long: bool = False
    is_unbound: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__


_unbound = partial(Endpoint, is_unbound=True)
_MESSAGE = "/messages/{message_id}"
_SCOPE = "/scopes/{kind}/{scope:any_name}"
_RECIPIENT = "/suppressions/{recipient:any_name}"
_PAUSE = "/pauses/{kind}/{name:any_name}"
_QUOTAS = f"{_SCOPE}/quotas"
_EVENT = "/events/{name:any_name}"
_SERIES = "/series/{name:any_name}"
_READ, _WRITE, _OPERATE = (Right.MESSAGES_READ,), (Right.MESSAGES_WRITE,), (Right.OPERATE,)
_READ_RECIPIENTS, _SUPPRESS = (Right.RECIPIENTS_READ,), (Right.SUPPRESSIONS_WRITE,)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/messages", calls.submit, _WRITE),
    Endpoint("POST", "/messages/batch", calls.submit_batch, _WRITE, most_bytes=None),
    Endpoint("POST", "/plans", calls.plan, _WRITE, most_bytes=2_000_000, is_long=True),
    Endpoint("GET", "/messages", calls.list_messages, _READ, is_long=True),
    Endpoint("GET", "/counts", calls.counts, _READ, is_long=True),
    Endpoint("GET", _MESSAGE, calls.get, _READ),
    Endpoint("PATCH", _MESSAGE, calls.update, _WRITE),
    Endpoint("DELETE", _MESSAGE, calls.cancel, (Right.MESSAGES_CANCEL,)),
    Endpoint("POST", f"{_MESSAGE}/reschedule", calls.reschedule, _WRITE),
    Endpoint("POST", f"{_MESSAGE}/retry", calls.retry, _OPERATE),
    Endpoint("POST", f"{_MESSAGE}/release", calls.release, _OPERATE),
    Endpoint("POST", f"{_MESSAGE}/drop", calls.drop, _OPERATE),
    Endpoint(
        "GET", f"{_SCOPE}/timeline", calls.timeline, (*_READ, *_READ_RECIPIENTS), is_long=True
    ),
    Endpoint("GET", f"{_SCOPE}/next-slot", calls.next_slot, _READ),
    _unbound("GET", _RECIPIENT, calls.suppressions, _READ_RECIPIENTS),
    _unbound("PUT", _RECIPIENT, calls.suppress, _SUPPRESS),
    _unbound("DELETE", _RECIPIENT, calls.unsuppress, _SUPPRESS),
    _unbound("POST", "/erasures", calls.erase, _OPERATE),
    _unbound("GET", "/pauses", calls.pauses, _OPERATE),
    _unbound("PUT", _PAUSE, calls.pause, _OPERATE),
    _unbound("DELETE", _PAUSE, calls.resume, _OPERATE),
    _unbound("GET", "/quotas", calls.scope_settings, _OPERATE),
    _unbound("GET", _QUOTAS, calls.quotas_of, _OPERATE),
    _unbound("PUT", _QUOTAS, calls.set_quotas, _OPERATE),
    _unbound("DELETE", _QUOTAS, calls.unset_quotas, _OPERATE),
    _unbound("GET", "/status", calls.status, _OPERATE, is_long=True),
    _unbound("GET", "/load", calls.load, _OPERATE, is_long=True),
    _unbound("GET", "/refusals", calls.refusals, _OPERATE, is_long=True),
    _unbound("GET", _EVENT, calls.event, _READ),
    _unbound("PUT", _EVENT, calls.set_event, _WRITE),
    _unbound("POST", f"{_EVENT}/move", calls.move_event, _WRITE, is_long=True),
    _unbound("POST", f"{_EVENT}/cancel", calls.cancel_event, (Right.MESSAGES_CANCEL,)),
    _unbound("GET", "/series", calls.list_series, _READ, is_long=True),
    _unbound("GET", f"{_SERIES}/preview", calls.preview_series, _READ),
    _unbound("POST", f"{_SERIES}/pause", calls.pause_series, (Right.MESSAGES_CANCEL,)),
    _unbound("POST", f"{_SERIES}/resume", calls.resume_series, (Right.MESSAGES_CANCEL,)),
    _unbound("GET", _SERIES, calls.get_series, _READ),
    _unbound("PUT", _SERIES, calls.add_series, _WRITE, most_bytes=2_000_000, is_long=True),
    _unbound("PATCH", _SERIES, calls.change_series, _WRITE, most_bytes=2_000_000, is_long=True),
    _unbound("DELETE", _SERIES, calls.remove_series, (Right.MESSAGES_CANCEL,), is_long=True),
    Endpoint("GET", "/events", calls.events, _READ),
)
_DOCUMENT = f"{PREFIX}/openapi.json"
_MOST_THREADS, _LISTEN_THREADS = 16, 4
"""Calls, and reads of events, at a time. The store has 32 connections; the page uses some, too."""
_LONG_THREADS, _LONG_THREADS_OF_ONE = 2, 1
"""Long calls at a time, of all keys and of one. They hold the lock of the interpreter most."""


@cache
def _document() -> dict[str, Any]:
    """Return the document of the package, which ``make openapi`` writes. Types of bodies lack."""
    document: dict[str, Any] = json.loads(files(__package__).joinpath("openapi.json").read_bytes())
    return document


class Api(FastAPI):
    """The application, and what all calls share. ``listening`` are the threads that read events."""

    def __init__(self, dispatcher: Dispatcher, *, auth: Auth | None, rate: str) -> None:
        super().__init__(
            openapi_url=_DOCUMENT,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            # FastAPI's spans and logs have paths, queries and errors, which name recipients.
            telemetry={"tracing": False, "logs": False},
        )
        self.dispatcher = dispatcher
        self.settings = dispatcher.settings
        self.threads = Threads(dispatcher, _MOST_THREADS)
        self.long = Threads(dispatcher, _LONG_THREADS, most_of_one=_LONG_THREADS_OF_ONE)
        self.listening = Threads(dispatcher, _LISTEN_THREADS)
        self.streams = Streams()
        self.digest = digest_with(self.settings.log_key)
        auth = auth or KeyAuth(self.parts.database)
        self.admission = Admission(self.parts, auth=auth, rate=rate)
        for endpoint in ENDPOINTS:
            is_awaited = iscoroutinefunction(endpoint.function)
            # On its own router: FastAPI asks an included one for its routes at each call.
            self.router.add_api_route(
                f"{PREFIX}{endpoint.path}",
                endpoint.function if is_awaited else _in_thread(endpoint),
                methods=[endpoint.method],
                operation_id=endpoint.name,
                response_class=Response,
                response_model=None,
                route_class_override=CallRoute,
            )
        paths = _document()["paths"].values()
        self.operations = {call["operationId"]: call for path in paths for call in path.values()}
        """What the document says of each call, by its name."""
        self.add_middleware(CallMiddleware)
        if self.settings.allowed_hosts:
            hosts = [*self.settings.allowed_hosts]
            self.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
        for kind in (DispatcherError, Refused, RequestValidationError, HTTPException):
            self.add_exception_handler(kind, _answer_error)
        self.add_exception_handler(Exception, _answer_fault)

    @property
    def parts(self) -> App:
        return app_of(self.dispatcher)

    def openapi(self) -> dict[str, Any]:
        """Add the types of bodies now: one that cannot be used stops no calls on other channels."""
        if self.openapi_schema is None:
            document = deepcopy(_document())
            add_bodies(document["components"]["schemas"], self.settings.body_types)
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
    """Run it in threads that it gets with the call: FastAPI keeps functions for ever."""

    @wraps(endpoint.function)
    async def answered(context: Context, **parameters: Any) -> Response:
        if endpoint.is_unbound:
            context.caller.check_unbound()
        service, work = context.service, partial(endpoint.function, context, **parameters)
        if endpoint.is_long:
            return await service.long.run_for(context.caller.name, work)
        return await service.threads.run(work)

    return answered


class CallRoute(APIRoute):
    """Checks the rights of a caller before FastAPI reads a call, and bounds its length."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        [self.described] = [call for call in ENDPOINTS if call.name == self.operation_id]

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
    """Finds callers, and counts calls, before these are read. Logs changes without names."""

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
                method, route, caller = scope["method"], scope.get("route"), state.get("caller")
                if method != "GET" and caller is not None and route is not None:
                    path, status = route.path_format, message["status"]
                    log.info("%s %s by %s: %d", method, path, caller.name, status)
            await send(message)

        request = Request(scope)
        if path != _DOCUMENT:
            try:
                check_is_utf8(scope)
                await request.app.threads.run(request.app.admission.admit, request)
            except (Refused, DispatcherError) as error:
                answer = await _answer_error(request, error)
                await answer(scope, receive, send_more)
                return
        await self._app(scope, receive, send_more)


async def _answer_error(request: Request, error: Any) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        error = invalid(first, first["loc"][1:], THE_CALL)
    if isinstance(error, HTTPException):
        error = _refusal_of(request, error)
    headers = error.headers if isinstance(error, Refused) else headers_of(error)
    problem = problem_for(request, error)
    text, status = json.dumps(problem), problem["status"]
    return Response(text, status, headers=dict(headers), media_type=MEDIA_TYPE)


def _refusal_of(request: Request, error: HTTPException) -> Refused:
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


async def _answer_fault(request: Request, _error: Exception) -> Response:
    detail = "the call failed; the log of the server says why"
    return await _answer_error(request, Refused(500, "internal-error", detail))


def add_bodies(schemas: dict[str, Any], body_types: BodyTypes) -> None:
    """Say which channel asks for which body: a schema of its own would be a type."""
    for channel in body_types.channels:
        name = f"body.{channel}"
        schema = body_types.json_schema(channel, f"#/components/schemas/{name}.{{model}}")
        parts = schema.pop("$defs", {})
        schemas |= {f"{name}.{part}": model for part, model in parts.items()} | {name: schema}
        body = {"anyOf": [{"$ref": f"#/components/schemas/{name}"}, {"type": "null"}]}
        rule = {
            "if": {"properties": {"channel": {"const": channel}}, "required": ["channel"]},
            "then": {"properties": {"body": body}},
        }
        for model in (models.NewMessage, models.NewMessageLine):
            schemas[model.__name__].setdefault("allOf", []).append(rule)
