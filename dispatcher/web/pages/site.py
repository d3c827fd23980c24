"""What all pages share: paths, access, the refusal of foreign calls, headers, templates."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import chain, product
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher import Pause, Wanted
from dispatcher.app import App
from dispatcher.client import Dispatcher, app_of, for_pages, selection_of
from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    InvalidSendTime,
    StoreUnavailable,
    Suppressed,
    cut,
    quoted,
)
from dispatcher.problems import headers_of, problem_of, status_of
from dispatcher.scope import of_channel, of_scope_on
from dispatcher.selection import Selection, id_of
from dispatcher.settings import like
from dispatcher.store.schema import Movable
from dispatcher.telemetry.journal import digest_with
from dispatcher.times import send_time, zones
from dispatcher.times.clock import length_text
from dispatcher.web.access import Admission, Caller, Right
from dispatcher.web.bounds import CachedRead, Streams, Threads
from dispatcher.web.keys import SIGN_IN, SignIn
from dispatcher.web.problems import CUT_OFF, Refused, bounded, check_is_utf8, forbidden, with_names

log = logging.getLogger(__name__)

T = TypeVar("T")


Access = Callable[[Request], Caller | None]
"""Returns who visits and what that person may do, or None for a stranger.

It runs in a thread. It may raise :func:`~dispatcher.web.problems.unauthorized`.
"""

_MOST_FORM_BYTES = 65_536
_MOST_THREADS, _SHARED_THREADS, _SHARED_THREADS_OF_ONE, _FIGURE_THREADS = 4, 4, 2, 2
"""Threads that check access, that answer all visitors, that answer one, that read figures."""
_SAFE = frozenset({"GET", "HEAD"})
_NOBODY = Caller(name="nobody", rights=frozenset())
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With no-referrer a browser would not name the origin of a form.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_OF_SCOPES = "count."
SCOPE = f"{_OF_SCOPES}KIND"
"""The parameter of a further scope in a query or a form: ``count.tenant``."""
_EVERYWHERE = ("zone", "done", "many")
"""Names that every query and form may have. ``done`` and ``many`` report the action before."""
PAGE_NAMES = {"from_at": "from", "until_at": "until", "idempotency_key": "key", "scopes": "count"}
_BOXES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}

_ACCEPTED = (
    "a time such as 9:30, 2026-12-24 08:30, or Thu 24 Dec 2026 08:30:00 as this page shows it; "
    "also with an offset: 2026-12-24T08:30+01:00"
)
_FORM = "%a %d %b %Y %H:%M:%S"
_CLOCKS = [
    clock + offset for clock in ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f") for offset in ("", "%z", " %z")
]
_WEEKDAY = re.compile(
    r"^(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)? ", re.IGNORECASE
)
_UTC = re.compile(r"(?<![\w'\"])\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00(?![\w'\"])")
_CAPITAL = re.compile(r"(?<=[a-z])([A-Z])")


@dataclass(frozen=True)
class PageRoute:
    """A path, and the function that answers a visit. Unless ``is_public``, it needs ``rights``.

    ``names`` are the parameters of its query, for a POST the fields of its form.
    ``most_bytes`` bounds the form of a POST. ``title``: that of its link in the navigation.
    ``is_unbound``: not for callers that are bound to channels or a scope. Functions run in a
    thread.
    """

    path: str
    answer: Callable[[Visit], Response]
    method: str = "GET"
    _: KW_ONLY
    names: tuple[str, ...] = ()
    rights: tuple[Right, ...] = (Right.MESSAGES_READ,)
    is_public: bool = False
    is_unbound: bool = False
    title: str = ""
    most_bytes: int = _MOST_FORM_BYTES


class Fields(dict[str, str]):
    """What is given by name. A template that asks for another name gets an empty text."""

    def __missing__(self, name: str) -> str:
        return ""

    def required(self, name: str, accepted: str) -> str:
        if name not in self:
            raise InvalidDraft(name, "not given", accepted)
        return self[name]

    def one_of(self, known: Collection[str], name: str, default: str) -> str:
        text = self.get(name)
        if text is None:
            return default
        if text not in known:
            accepted = f"one of {', '.join(known)}"
            raise InvalidDraft(name, f"cannot read {quoted(text)}", accepted)
        return text

    def is_on(self, name: str) -> bool:
        return _BOXES[self.one_of(_BOXES, name, "off")]

    @property
    def scopes(self) -> dict[str, str]:
        named = {name: value for name, value in self.items() if name.startswith(_OF_SCOPES)}
        return {name.removeprefix(_OF_SCOPES): value for name, value in named.items()}


@dataclass(kw_only=True)
class Visit:
    """One call of a page. ``query`` and ``form`` have no empty values."""

    site: Site
    request: Request
    caller: Caller
    patience: ClassVar[timedelta] = timedelta(milliseconds=60)
    """How long a page looks for messages, or counts them, before it shows what it has found."""

    query: Fields = field(default_factory=Fields)
    form: Fields = field(default_factory=Fields)
    files: Mapping[str, UploadFile] = field(default_factory=dict)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher. Pages that only read have connections of their own to the store."""
        is_read = self.request.method in _SAFE
        return for_pages(self.site.dispatcher) if is_read else self.site.dispatcher

    @property
    def parts(self) -> App:
        return app_of(self.dispatcher)

    @property
    def root(self) -> str:
        root: str = self.request.scope.get("root_path", "")
        return root.rstrip("/")

    @property
    def zone(self) -> str:
        return self.query.get("zone") or self.form.get("zone") or self.site.settings.zone

    def may(self, *rights: str) -> bool:
        return self.caller.rights.issuperset(map(Right, rights))

    @property
    def channels(self) -> list[str]:
        own = self.caller.channels
        return [channel for channel in self.site.settings.channels if own is None or channel in own]

    def url(self, path: str, /, **query: object) -> str:
        pairs = [(name, str(value)) for name, value in query.items() if value or value == 0]
        return f"{self.root}{path}" + (f"?{urlencode(pairs)}" if pairs else "")

    def here(self, **changed: object) -> str:
        return self.url(self.path, **{**self.query, **changed})

    @property
    def path(self) -> str:
        # Not request.url, of which the header Host is a part; and "//name" would be another host.
        path: str = self.request.scope["path"]
        return "/" + path.removeprefix(self.root).lstrip("/")

    def show(self, template: str, status: int = 200, /, **values: Any) -> Response:
        text = _TEMPLATES.get_template(template).render(visit=self, **values)
        return HTMLResponse(text, status)

    def fail(self, status: int, detail: str, headers: Mapping[str, str]) -> Response:
        response = self.show("error.html", status, status=status, detail=detail)
        response.headers.update(headers)
        return response

    def go(self, path: str, /, **query: object) -> RedirectResponse:
        """Answer an action: the browser shows another page. ``done`` says there what was done."""
        return RedirectResponse(self.url(path, **query), 303)

    def time_of(
        self, text: str, field: str, *, near: datetime | None = None, of_day: bool = False
    ) -> datetime:
        """Return the time that was typed: without a date the next one, or ``of_day``."""
        near = near or self.parts.clock.now()
        return read_time(text, self.zone, field=field, near=near, of_day=of_day)

    def message(self) -> Movable:
        return self.caller.movable(self.parts, self.request.path_params["message_id"])

    def selection(self, filters: Wanted) -> Selection:
        try:
            return selection_of(filters, self.site.settings)
        except InvalidDraft as error:
            raise named_as_here(error) from None

    @property
    def after(self) -> UUID | None:
        after = self.query.get("after")
        return None if after is None else id_of(after, "after")

    def scope_text(self, scope: str) -> str:
        """Return the text of a scope in words: ``channel.sms`` is the channel sms."""
        settings = self.site.settings
        kind, _, name = scope.partition(":")
        for channel in settings.channels:
            if scope == of_channel(channel):
                return f"the channel {channel}"
            if name and kind == of_scope_on(channel):
                return f"{name} on {channel}"
        return f"the {kind} {name}" if name and kind in settings.scopes else scope

    def recipient_of(self, recipient: str) -> str:
        if self.may(Right.RECIPIENTS_READ):
            return recipient
        digest = self.site.digest
        return "hidden" if digest is None else digest(recipient)

    def pause_name(self, pause: Pause) -> str:
        seen = self.caller.sees_pause_name(pause.kind)
        return pause.name if seen else self.recipient_of(pause.name)

    def error_text(self, error: DispatcherError) -> str:
        if isinstance(error, StoreUnavailable) and error.timed_out:
            return "That is too much to read or to count for a page: narrow the filter."
        if isinstance(error, Suppressed):
            return (
                f"The recipient has opted out of {error.channel}: no message goes to it there, "
                "at any time, until the opt-out is revoked under Suppressions."
            )
        text = str(problem_of(error, whole=self.caller.sees_conflicts)["detail"])
        return with_local_times(text, self.zone)

    def cached(self, key: Hashable, read: Callable[[], T]) -> T:
        figure: CachedRead[T] = self.site.kept.setdefault(key, CachedRead(self.site.figures))
        return figure.of(read)

    def note(self, action: str) -> None:
        """Write an action into the log, with who did it. It names no recipient."""
        log.info("page: %s by %s", action, self.caller.name)


class Site:
    """What all visits share. ``links`` are the pages of the navigation."""

    def __init__(
        self, dispatcher: Dispatcher, access: Access, pages: Sequence[PageRoute], *, rate: str
    ) -> None:
        self.pages = pages
        self.links = [page for page in pages if page.title]
        self.dispatcher = dispatcher
        self.settings = dispatcher.settings
        self.parts = app_of(dispatcher)
        self.access = access
        self.threads = Threads(dispatcher, _MOST_THREADS)
        self.shared = Threads(dispatcher, _SHARED_THREADS, most_of_one=_SHARED_THREADS_OF_ONE)
        self.figures = Threads(dispatcher, _FIGURE_THREADS)
        self._admission = Admission(self.parts, auth=self._find_caller, rate=rate)
        self.can_sign_in = isinstance(access, SignIn)
        self.digest = digest_with(self.settings.log_key)
        self.kept: dict[Hashable, Any] = {}
        """What a page keeps for all its visits."""
        self.streams = Streams()

    def application(self) -> Starlette:
        routes = [
            Mount("/static", StaticFiles(packages=[("dispatcher.web.pages", "static")])),
            *(Route(page.path, self._guard(page), methods=[page.method]) for page in self.pages),
        ]
        middleware = [Middleware(with_headers), Middleware(GZipMiddleware, minimum_size=1_000)]
        if self.settings.allowed_hosts:
            hosts = [*self.settings.allowed_hosts]
            trusted = Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
            middleware.append(trusted)
        application = Starlette(
            routes=routes,
            middleware=middleware,
            exception_handlers={HTTPException: self._refuse, Exception: self._answer_fault},
        )
        application.router.redirect_slashes = False  # it redirects to whatever Host says
        return application

    def enter(self, request: Request, page: PageRoute) -> Caller:
        caller = self._admission.admit(request)
        caller.check(*page.rights)
        if page.is_unbound:
            caller.check_unbound()
        return caller

    def _find_caller(self, request: Request) -> Caller:
        caller = self.access(request)
        if caller is None:
            raise forbidden("you have no access to this page")
        return caller

    def _guard(self, page: PageRoute) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            parameters, is_read = request.query_params, request.method in _SAFE
            values = {name: value.strip() for name, value in parameters.items()}
            query = Fields({name: value for name, value in values.items() if value})
            visit = Visit(site=self, request=request, caller=_NOBODY, query=query)
            try:
                check_is_utf8(request.scope)
                if not is_read:
                    _check_origin(request)
                if not page.is_public:
                    visit.caller = await self.threads.run(self.enter, request, page)
                names = page.names if is_read else ()
                _check_names(parameters.multi_items(), names, "parameter")
                if not is_read:
                    return await self._act(visit, page)
                send_time.check_zone(visit.zone)
                return await self.shared.run_for(visit.caller.name, page.answer, visit)
            except Refused as refused:
                is_unknown = refused.status == 401 and is_read  # noqa: PLR2004
                if is_unknown and self.can_sign_in:
                    here = visit.here().removeprefix(visit.root)
                    return visit.go(SIGN_IN, to=here if visit.path != "/" else None)
                return visit.fail(refused.status, refused.detail, refused.headers)
            except DispatcherError as error:
                return visit.fail(status_of(error), visit.error_text(error), headers_of(error))

        return answered

    async def _act(self, visit: Visit, page: PageRoute) -> Response:
        detail = f"a form has at most {page.most_bytes:,} bytes"
        receive = bounded(visit.request.receive, page.most_bytes, detail)
        request = Request(visit.request.scope, receive)
        held = ExitStack()
        if page.most_bytes > _MOST_FORM_BYTES:
            held.callback(self.streams.take("files", visit.caller.name))
        try:
            async with request.form(max_files=1, max_fields=1_000) as form:
                pairs = form.multi_items()
                _check_names(pairs, page.names, "field")
                texts = {name: value for name, value in pairs if isinstance(value, str)}
                if any("\ufffd" in text for text in chain(texts, texts.values())):
                    raise Refused(400, "unreadable", "the form is not UTF-8")
                visit.form = Fields({name: text for name, text in texts.items() if text})
                visit.files = {name: file for name, file in pairs if isinstance(file, UploadFile)}
                send_time.check_zone(visit.zone)
                return await self.shared.run_for(visit.caller.name, page.answer, visit)
        except ClientDisconnect:
            raise Refused(400, "unreadable", CUT_OFF) from None
        finally:
            held.close()

    async def _refuse(self, request: Request, error: Any) -> Response:
        visit = Visit(site=self, request=request, caller=_NOBODY)
        return visit.fail(error.status_code, str(error.detail), error.headers or {})

    async def _answer_fault(self, request: Request, _error: Exception) -> Response:
        visit = Visit(site=self, request=request, caller=_NOBODY)
        return visit.fail(500, "The page failed; the log of the server says why.", _HEADERS)


def with_headers(app: ASGIApp) -> ASGIApp:
    """Give every answer the headers that protect it. Only its files may a browser keep."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "etag" in headers:
                    headers.setdefault("Cache-Control", "no-cache")
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_more)

    return answer


def _check_origin(request: Request) -> None:
    """Refuse an action of another site: by ``Sec-Fetch-Site``, in older browsers by ``Origin``."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin is not None and origin.partition("://")[2] == request.headers.get("host")
    if not is_own:
        log.warning("page: a %s that comes from another site was refused", request.method)
        raise forbidden("the action comes from another site, or has no header Origin")


def _check_names(pairs: Sequence[tuple[str, object]], names: Sequence[str], what: str) -> None:
    """Refuse unknown names, and those given twice: ignored, they would widen an action."""
    for name, times in Counter(name for name, _ in pairs).items():
        if (SCOPE if name.startswith(_OF_SCOPES) else name) not in (*names, *_EVERYWHERE):
            known = dict.fromkeys((*names, "zone"))
            raise InvalidDraft(cut(name), f"there is no such {what}", like(name, known))
        if times > 1:
            raise InvalidDraft(name, "is given more than once", f"one {what} of that name")


def named_as_here(error: InvalidDraft) -> InvalidDraft:
    field, dot, kind = error.field.partition(".")
    field = f"{PAGE_NAMES.get(field, field)}{dot}{kind}"
    return InvalidDraft(field, with_names(error.problem, PAGE_NAMES), error.accepted)


def local_text(instant: datetime, zone: str, form: str = "") -> str:
    """Return an instant by the clocks of a zone, with its offset where they repeat that time."""
    local, form_shown = instant.astimezone(zones.rules(zone)), form or _FORM
    thousandths = f".{local.microsecond // 1_000:03}" if local.microsecond and not form else ""
    first, second = (local.replace(fold=fold).isoformat()[-6:] for fold in (0, 1))
    is_repeated = first != second  # a time that exists twice; no instant shows a skipped one
    is_whole = "%d" in form_shown and "%H" in form_shown
    offset = f" {local.isoformat()[-6:]}" if is_repeated and is_whole else ""
    return f"{local:{form_shown}}{thousandths}{offset}"


def with_local_times(text: str, zone: str) -> str:
    """Return an error's text with instants of a zone. What it quotes stays as typed."""

    def local(match: re.Match[str]) -> str:
        try:
            return local_text(datetime.fromisoformat(match[0]), zone)
        except (ValueError, OverflowError):
            return match[0]

    return _UTC.sub(local, text)


def in_words(name: str) -> str:
    """Return a reason that begins with a class of errors in words: ``quota exceeded 1/minute``."""
    kind, space, rest = name.partition(" ")
    return _CAPITAL.sub(r" \1", kind).lower() + space + rest


def read_time(
    text: str, zone: str, *, field: str, near: datetime, of_day: bool = False
) -> datetime:
    """Return the instant that a person typed: every form of :func:`local_text`, or ISO 8601.

    A time without a date is the next one from ``near`` on, with ``of_day`` that of its day. A date
    without a year is the one nearest to it, and a date without a time its beginning. Raises
    InvalidSendTime.
    """
    local = near.astimezone(send_time.check_zone(zone)).replace(tzinfo=None)
    if of_day:
        local = local.replace(hour=0, minute=0, second=0, microsecond=0)
    typed = _read(" ".join(text.split()), local)
    try:
        return send_time.parse_time_or_date(typed or text, zone=zone, field=field)
    except InvalidSendTime as error:
        if not error.accepted.startswith(send_time.ACCEPTED):
            raise
        raise InvalidSendTime(field, f"cannot read {quoted(text)}", _ACCEPTED) from None


def _read(text: str, near: datetime) -> datetime | None:
    text = text.replace(",", "")
    date = _WEEKDAY.sub("", text)
    days = [f"{near + timedelta(days=number):%Y-%m-%d} {text}" for number in (0, 1)]
    years = [f"{near.year + number} {date}" for number in (-1, 0, 1)]
    dated = (("%Y-%m-%d", [date.replace("T", " ")]), ("%d %b %Y", [date]), ("%Y %d %b", years))
    times = [time for form, texts in dated for time in _parsed(texts, form)]
    # The minute that is under way counts: people type no seconds.
    minute = near.replace(second=0, microsecond=0)
    times += [time for time in _parsed(days, "%Y-%m-%d") if time.replace(tzinfo=None) >= minute]
    return min(times, key=lambda time: abs(time.replace(tzinfo=None) - near), default=None)


def _parsed(texts: Iterable[str], form: str) -> Iterator[datetime]:
    for text, clock in product(texts, _CLOCKS):
        with suppress(ValueError):
            yield datetime.strptime(text, f"{form} {clock}")  # noqa: DTZ007 - local times


_TEMPLATES = Environment(
    loader=PackageLoader("dispatcher.web.pages"),
    autoescape=True,
    auto_reload=False,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "json": partial(json.dumps, ensure_ascii=False, indent=2),
    "number": "{:,}".format,
    "span": length_text,
    "words": in_words,
}
_TEMPLATES.globals["local"] = lambda visit, instant, form="": local_text(instant, visit.zone, form)
