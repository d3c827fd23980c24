"""The dispatcher and its limiters in Flask. Extra ``flask``.

::

    app = Flask(__name__)
    init_app(app)

    @app.post("/reminders")
    @limited(per_address, address)
    def remind() -> dict[str, str]:
        message = dispatcher().submit(...)

docs/existing-project.md shows all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dispatcher.client import Dispatcher
from dispatcher.errors import DispatcherError, InvalidSettings, needs
from dispatcher.limiters import Limiter
from dispatcher.problems import KeyOf, answer_to, check_limited, keeping_policy, limit_headers
from dispatcher.settings import Settings

with needs("flask", "dispatcher.flask"):
    from flask import Flask, Request, Response, after_this_request, current_app, request
    from werkzeug.wsgi import ClosingIterator

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

P = ParamSpec("P")
T = TypeVar("T")
Key = KeyOf[Request]

_EXTENSION = "dispatcher"


def init_app(app: Flask, settings: Settings | None = None) -> Dispatcher:
    """Give an app a dispatcher, and answer its errors with problems. Return the dispatcher.

    ``settings`` are by default those of the environment and ``dispatcher.toml``. Nothing connects
    before the first request, so a server may load the app and then fork.
    """
    ours = app.extensions[_EXTENSION] = Dispatcher(settings)
    app.register_error_handler(DispatcherError, answer_error)
    return ours


def dispatcher() -> Dispatcher:
    """Return the dispatcher of the current app. Raises InvalidSettings where it has none."""
    ours = current_app.extensions.get(_EXTENSION)
    if not isinstance(ours, Dispatcher):
        raise InvalidSettings("init_app", "the app has no dispatcher", "init_app(app)")
    return ours


def answer_error(error: DispatcherError) -> Response:
    """Answer an error of the dispatcher or of a limiter with a problem of RFC 9457.

    :func:`init_app` registers it. The status is that of the HTTP API, with ``Retry-After`` where
    a later try may succeed. The problem names no recipient and no messages of others.
    """
    return Response(*answer_to(error))


def limited(limiter: Limiter, key: Key, n: int = 1) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a view: each request takes ``n`` permits, and holds last for the view.

    ``key`` is the key, or a function that returns it for a request; None: it is not limited. The
    request is refused with LimitReached, which :func:`answer_error` answers by 429. The answer has
    the headers ``RateLimit`` and ``RateLimit-Policy``. Where Redis does not answer,
    LimitersUnavailable is raised; with ``on_error="unknown"`` the request goes on. Raises
    InvalidValue for a limiter on an asynchronous client, a function that must be awaited, and an
    ``n`` that no request can ask for. It stands below ``@app.get(…)``.
    """
    check_limited(limiter, Limiter, key, n)

    def decorate(view: Callable[P, T]) -> Callable[P, T]:
        @wraps(view)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            with ExitStack() as held:
                headers = _taken(limiter, key, n, held, request)

                @after_this_request
                def tell(response: Response) -> Response:
                    for name, value in headers.items():
                        response.headers.add(name, value)  # beside those of other limits
                    return response

                answer: T = current_app.ensure_sync(view)(*args, **kwargs)
                return answer

        return called

    return decorate


class LimiterMiddleware:
    """Takes permits for each request of an application, before anything else of it runs.

    ``app.wsgi_app = LimiterMiddleware(app.wsgi_app, limiter=…, key=…)``; the parameters are those
    of :func:`limited`. Every answer has the headers. Holds last until the answer is sent.
    """

    def __init__(self, app: WSGIApplication, limiter: Limiter, key: Key, n: int = 1) -> None:
        check_limited(limiter, Limiter, key, n)
        self._app = app
        self._taken = partial(_taken, limiter, key, n)

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request, or pass it on with permits."""
        held = ExitStack()
        try:
            taken = self._taken(held, Request(environ))
        except DispatcherError as error:
            return answer_error(error)(environ, start)

        def start_with(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start(status, [*headers, *taken.items()], *error)

        try:
            return ClosingIterator(self._app(environ, start_with), held.close)
        except BaseException:
            held.close()
            raise


def _taken(limiter: Limiter, key: Key, n: int, held: ExitStack, asking: Request) -> dict[str, str]:
    keys = key(asking) if callable(key) else key
    if keys is not None:
        with keeping_policy(limiter):
            return limit_headers(limiter.limits, held.enter_context(limiter.permit(keys, n)))
    return {}
