"""The dispatcher and its limiters in FastAPI. Extra ``fastapi``.

::

    app = FastAPI(lifespan=lifespan())
    app.add_exception_handler(DispatcherError, answer_error)

    @app.post("/reminders", dependencies=[Depends(permit(per_address, address))])
    async def remind(ours: Annotated[Dispatcher, Depends(dispatcher())]) -> None:
        await ours.asubmit(...)

docs/existing-project.md shows all.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, cast

from dispatcher.client import Dispatcher
from dispatcher.errors import DispatcherError, InvalidSettings, needs
from dispatcher.limiters import AsyncLimiter
from dispatcher.problems import KeyOf, answer_to, check_limited, keeping_policy, limit_headers
from dispatcher.settings import Settings

with needs("fastapi", "dispatcher.fastapi"):
    from fastapi import Depends, Request, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

P = ParamSpec("P")
T = TypeVar("T")
Key = KeyOf[Request]

_STATE = "dispatcher"


def lifespan(
    settings: Settings | None = None,
) -> Callable[[object], AbstractAsyncContextManager[dict[str, Dispatcher]]]:
    """Return a lifespan for FastAPI that opens a dispatcher, and closes it at the end.

    ``settings`` are by default those of the environment and ``dispatcher.toml``. A lifespan of
    your own enters it, and yields what it yields.
    """

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[dict[str, Dispatcher]]:
        async with Dispatcher(settings) as ours:
            yield {_STATE: ours}

    return opened


def dispatcher() -> Callable[[Request], Dispatcher]:
    """Return the dependency that gives the dispatcher which :func:`lifespan` opened.

    Always the same, for ``app.dependency_overrides``. It raises InvalidSettings without a lifespan.
    """
    return _opened


def _opened(request: Request) -> Dispatcher:
    ours = getattr(request.state, _STATE, None)
    if not isinstance(ours, Dispatcher):
        accepted = "FastAPI(lifespan=lifespan()); in a test: with TestClient(app) as client"
        raise InvalidSettings("lifespan", "no dispatcher was opened", accepted)
    return ours


def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error of the dispatcher or of a limiter with a problem of RFC 9457.

    It is for ``app.add_exception_handler(DispatcherError, answer_error)``. The status is that of
    the HTTP API, with ``Retry-After`` where a later try may succeed. The problem names no
    recipient and no messages of others.
    """
    del request
    if not isinstance(error, DispatcherError):
        raise error
    return Response(*answer_to(error))


def permit(
    limiter: AsyncLimiter, key: Key, n: int = 1
) -> Callable[[Request, Response], AsyncIterator[None]]:
    """Return a dependency that takes ``n`` permits for each request; holds last until its end.

    ``key`` is the key, or a function that returns it for a request; None: it is not limited. A
    refusal is LimitReached, which :func:`answer_error` answers by 429. The answer has the headers
    ``RateLimit`` and ``RateLimit-Policy``, unless the endpoint returns a Response of its own: the
    middleware sets them there, too. Where Redis does not answer, LimitersUnavailable is raised;
    with ``on_error="unknown"`` the request goes on. Raises InvalidValue for a limiter on a client
    that is not asynchronous, a function that must be awaited, and an ``n`` that is never given.
    """
    check_limited(limiter, AsyncLimiter, key, n)

    async def take(request: Request, response: Response) -> AsyncIterator[None]:
        async with AsyncExitStack() as held:
            for name, value in (await _taken(limiter, key, n, held, request)).items():
                response.headers.append(name, value)  # beside those of other limits
            yield

    return take


def limited(
    limiter: AsyncLimiter, key: Key, n: int = 1
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate an endpoint: each request takes permits, as by the dependency :func:`permit`.

    It stands below ``@app.get(…)``. Of several the first takes its permits first.
    """
    taken = Annotated[None, Depends(permit(limiter, key, n))]

    def decorate(endpoint: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(endpoint)
        name = f"dispatcher_permit_{len(signature.parameters)}"  # further limits have other names

        @wraps(endpoint)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            del kwargs[name]
            return endpoint(*args, **kwargs)

        @wraps(endpoint)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            del kwargs[name]
            return await cast("Any", endpoint(*args, **kwargs))

        wrapper: Any = awaited if inspect.iscoroutinefunction(endpoint) else called
        needed = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=taken)
        asked = sorted(
            [needed, *signature.parameters.values()], key=lambda parameter: parameter.kind
        )
        wrapper.__signature__ = signature.replace(parameters=asked)
        return cast("Callable[P, T]", wrapper)

    return decorate


class LimiterMiddleware:
    """Takes permits for each request of an application, before anything else of it runs.

    ``app.add_middleware(LimiterMiddleware, limiter=…, key=…)``; the parameters are those of
    :func:`permit`. Every answer has the headers. Holds last until the answer is sent.
    """

    def __init__(self, app: ASGIApp, limiter: AsyncLimiter, key: Key, n: int = 1) -> None:
        check_limited(limiter, AsyncLimiter, key, n)
        self._app = app
        self._taken = partial(_taken, limiter, key, n)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on with permits."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        async with AsyncExitStack() as held:
            try:
                taken = await self._taken(held, request)
            except DispatcherError as error:
                await answer_error(request, error)(scope, receive, send)
                return
            headers = [(name.lower().encode(), value.encode()) for name, value in taken.items()]

            async def send_more(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", ()), *headers]
                await send(message)

            await self._app(scope, receive, send_more)


async def _taken(
    limiter: AsyncLimiter, key: Key, n: int, held: AsyncExitStack, request: Request
) -> dict[str, str]:
    keys = key(request) if callable(key) else key
    if keys is not None:
        with keeping_policy(limiter):
            decision = await held.enter_async_context(limiter.permit(keys, n))
            return limit_headers(limiter.limits, decision)
    return {}
