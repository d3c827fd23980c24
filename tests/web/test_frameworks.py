"""FastAPI and Flask: a dispatcher for each app, errors as problems, limiters of requests."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import pytest
import redis
import redis.asyncio
from a2wsgi import WSGIMiddleware
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from flask import Flask, abort, jsonify
from flask import Request as FlaskRequest
from httpx2 import Response

import dispatcher.fastapi as ours_in_fastapi
import dispatcher.flask as ours_in_flask
from dispatcher import Dispatcher, DispatcherError, InvalidSettings, InvalidValue
from dispatcher.limiters import Concurrency, CoolDown, Limits, parse
from dispatcher.limiters.algorithms import Bindable
from dispatcher.times.clock import SystemClock
from tests.support.canaries import BODY
from tests.support.house import House
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.servers import RedisServer

TOMORROW = SystemClock().now().replace(microsecond=0) + timedelta(days=1)
WAYS = {
    "fastapi dependency": ("dependency",),
    "fastapi decorator": ("decorator",),
    "fastapi decorator of a function": ("decorator",),
    "fastapi middleware": ("middleware",),
    "flask decorator": ("decorator",),
    "flask decorator of a coroutine": ("decorator",),
    "flask middleware": ("middleware",),
}
TWICE = {
    "fastapi decorators": ("decorator", "decorator"),
    "fastapi dependency and decorator": ("dependency", "decorator"),
    "fastapi decorator and middleware": ("middleware", "decorator"),
    "flask decorators": ("decorator", "decorator"),
    "flask decorator and middleware": ("middleware", "decorator"),
}
PLACES = WAYS | TWICE
"""Where the limiters of a request are, the outermost first."""
Ours = Annotated[Dispatcher, Depends(ours_in_fastapi.dispatcher())]
each_way = pytest.mark.parametrize("way", WAYS)


Ask = Callable[..., Response]
Inside = Callable[[], None]
"""What a view does."""


@contextmanager
def asked_of(app: Any) -> Iterator[Ask]:
    served: Any = app if isinstance(app, FastAPI) else WSGIMiddleware(app)
    with TestClient(served) as client:
        yield lambda path="/", **headers: client.get(path, headers=headers)


def submit(to: Dispatcher) -> dict[str, str]:
    message = to.submit(
        channel="memory", recipient="ada@example.org", body={"text": BODY}, send_at=TOMORROW
    )
    return {"id": str(message.id)}


@contextmanager
def fastapi_shop(house: House) -> Iterator[Ask]:
    app = FastAPI(lifespan=ours_in_fastapi.lifespan(house.settings))
    app.add_exception_handler(DispatcherError, ours_in_fastapi.answer_error)
    inner = FastAPI()

    @app.get("/")
    def remind(to: Ours) -> dict[str, str]:
        return submit(to)

    @inner.get("/count")
    async def count(to: Ours) -> int:
        return await to.acount()

    app.mount("/inner", inner)
    with asked_of(app) as ask:
        yield ask


@contextmanager
def flask_shop(house: House) -> Iterator[Ask]:
    app = Flask(__name__)
    opened = ours_in_flask.init_app(app, house.settings)

    @app.get("/")
    def remind() -> dict[str, str]:
        return submit(ours_in_flask.dispatcher())

    @app.get("/inner/count")
    def count() -> Any:
        return jsonify(ours_in_flask.dispatcher().count())

    with opened, asked_of(app) as ask:
        yield ask


@on_sqlite
@pytest.mark.parametrize("shop", [fastapi_shop, flask_shop])
def test_errors_are_problems_that_name_no_recipient(
    build: Build, shop: Callable[[House], Any], caplog: pytest.LogCaptureFixture
) -> None:
    house = build(clock=SystemClock())
    with shop(house) as ask:
        assert ask().status_code == 200
        assert ask("/inner/count").json() == 1
        refused = ask()
        assert (refused.status_code, refused.json()["title"]) == (409, "quota exceeded")
        assert refused.headers["Content-Type"] == "application/problem+json"
        slot = datetime.fromisoformat(refused.json()["next_slot"])
        assert slot == TOMORROW + timedelta(minutes=1)
        assert "ada@" not in str(refused)
        house.redis.flushall()
        caplog.set_level(logging.ERROR, "dispatcher.problems")
        away = ask()
        assert (away.status_code, away.json()["title"]) == (503, "reservations unavailable")
        assert int(away.headers["Retry-After"]) >= 1
        told = [record for record in caplog.records if record.name == "dispatcher.problems"]
        assert [record.levelname for record in told] == ["ERROR"]


def test_an_app_without_a_dispatcher_is_told_how_to_open_one() -> None:
    app = FastAPI()

    @app.get("/")
    def remind(to: Ours) -> str:
        return type(to).__name__

    with TestClient(app) as client:
        with pytest.raises(InvalidSettings, match=r"FastAPI\(lifespan=lifespan\(\)\)"):
            client.get("/")
        app.dependency_overrides[ours_in_fastapi.dispatcher()] = object
        assert client.get("/").json() == "object"
    with Flask(__name__).app_context(), pytest.raises(InvalidSettings, match=r"init_app\(app\)"):
        ours_in_flask.dispatcher()


def name_of(request: Request | FlaskRequest) -> str | None:
    return request.headers.get("X-Name")


def limited(
    way: str, *limits: Bindable, server: RedisServer, inside: Inside = lambda: None, **how: Any
) -> AbstractContextManager[Ask]:
    """Give an app whose requests at ``/`` are limited, and at ``/missing`` are not found."""

    def answer(page: int = 1) -> dict[str, int]:
        inside()
        return {"page": page}

    async def awaited(page: int = 1) -> dict[str, int]:
        return answer(page)

    if way.startswith("flask"):
        view = awaited if way.endswith("coroutine") else answer
        return limited_flask(way, limits, server, view, **how)
    view = answer if way.endswith("function") else awaited
    return limited_fastapi(way, limits, server, view, **how)


@contextmanager
def limited_fastapi(
    way: str, limits: Sequence[Bindable], server: RedisServer, view: Any, **how: Any
) -> Iterator[Ask]:
    client = redis.asyncio.Redis.from_url(server.url)

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=closing)
    app.add_exception_handler(DispatcherError, ours_in_fastapi.answer_error)

    async def missing() -> None:
        raise HTTPException(404)

    needs: list[Any] = []
    for number, place in reversed([*enumerate(PLACES[way])]):
        limiter = limits[number].on(client, prefix=f"limit-{number}", **how)
        if place == "dependency":
            needs.append(Depends(ours_in_fastapi.permit(limiter, name_of)))
        elif place == "decorator":
            view = ours_in_fastapi.limited(limiter, name_of)(view)
        else:
            app.add_middleware(ours_in_fastapi.LimiterMiddleware, limiter=limiter, key=name_of)
    app.get("/", dependencies=needs)(view)
    app.get("/missing")(missing)
    with asked_of(app) as ask:
        yield ask


@contextmanager
def limited_flask(
    way: str, limits: Sequence[Bindable], server: RedisServer, view: Any, **how: Any
) -> Iterator[Ask]:
    app = Flask(__name__)
    app.register_error_handler(DispatcherError, ours_in_flask.answer_error)

    with redis.Redis.from_url(server.url) as client:
        for number, place in reversed([*enumerate(PLACES[way])]):
            limiter = limits[number].on(client, prefix=f"limit-{number}", **how)
            if place == "decorator":
                view = ours_in_flask.limited(limiter, name_of)(view)
            else:
                within = app.wsgi_app
                app.wsgi_app = ours_in_flask.LimiterMiddleware(within, limiter, name_of)  # type: ignore[assignment,method-assign]  # as Flask documents
        app.add_url_rule("/", "answer", view)
        app.add_url_rule("/missing", "missing", lambda: abort(404))
        with asked_of(app) as ask:
            yield ask


@each_way
def test_requests_are_limited_and_told_of_it(redis_server: RedisServer, way: str) -> None:
    limit = parse("2/minute; 3/hour in UTC")
    policy = '"2/minute";q=2;w=60, "3/hour in UTC";q=3;w=3600'
    with limited(way, limit, server=redis_server) as ask:
        for name in ("", "x" * 1_025):  # no keys: a problem of the request, which takes no permit
            wrong = ask(**{"X-Name": name})
            assert (wrong.status_code, wrong.json()["field"]) == (422, "key")
            assert wrong.json()["problem"] == f"{len(name)} characters"
        answers = [ask(**{"X-Name": "ada"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [answer.json() for answer in answers[:2]] == [{"page": 1}] * 2
        assert [answer.headers["RateLimit-Policy"] for answer in answers] == [policy] * 3
        left = [answer.headers["RateLimit"].split(";t=")[0] for answer in answers]
        assert left == ['"2/minute";r=1', '"2/minute";r=0', '"2/minute";r=0']
        refused = answers[2]
        assert (refused.json()["title"], refused.json()["limit"]) == ("limit reached", "2/minute")
        seconds = refused.headers["Retry-After"]
        assert 0 < int(seconds) <= 60
        assert refused.headers["RateLimit"] == f'"2/minute";r=0;t={seconds}'
        assert ask(**{"X-Name": "ben"}).status_code == 200
        free = [ask() for _ in range(3)]
        assert [answer.status_code for answer in free] == [200] * 3
        assert all("RateLimit" not in answer.headers for answer in free)
        if way.endswith("middleware"):
            missing = ask("/missing", **{"X-Name": "cyd"})
            assert (missing.status_code, missing.headers["RateLimit"]) == (404, '"2/minute";r=1')


@each_way
def test_holds_last_as_long_as_the_request(redis_server: RedisServer, way: str) -> None:
    limit = Limits([Concurrency(1), CoolDown()])
    nested: list[int] = []
    with ExitStack() as opened:
        other = opened.enter_context(limited(way, limit, server=redis_server))

        def inside() -> None:
            nested.append(other(**{"X-Name": "ada"}).status_code)
            if len(nested) > 1:
                raise ZeroDivisionError

        ask = opened.enter_context(limited(way, limit, server=redis_server, inside=inside))
        first = ask(**{"X-Name": "ada"})
        assert first.headers["RateLimit-Policy"] == '"1 at once";q=1'
        assert first.headers["RateLimit"] == '"1 at once";r=0'
        with suppress(ZeroDivisionError):  # Starlette's client raises what the application raises
            assert ask(**{"X-Name": "ada"}).status_code == 500
        assert nested == [429, 429]
        assert other(**{"X-Name": "ada"}).status_code == 200


def told(answer: Response, name: str) -> set[str]:
    """Return the members of a header, which may have several lines."""
    return {limit.split(";t=")[0] for limit in answer.headers[name].split(", ")}


@pytest.mark.parametrize("way", TWICE)
def test_two_limits_of_a_request_are_told_side_by_side(redis_server: RedisServer, way: str) -> None:
    with limited(way, parse("5/minute"), parse("1/hour"), server=redis_server) as ask:
        ada = partial(ask, **{"X-Name": "ada"})
        first, second = ada(), ada()
        assert (first.status_code, first.json()) == (200, {"page": 1})
        assert told(first, "RateLimit") == {'"5/minute";r=4', '"1/hour";r=0'}
        assert told(first, "RateLimit-Policy") == {'"5/minute";q=5;w=60', '"1/hour";q=1;w=3600'}
        assert (second.status_code, second.json()["limit"]) == (429, "1/hour")
        is_error = way in ("fastapi decorators", "fastapi dependency and decorator")
        others = set() if is_error else {'"5/minute";r=3'}
        assert told(second, "RateLimit") == {'"1/hour";r=0'} | others
        for _ in range(3):
            ada()
        assert ada().json()["limit"] == "5/minute", "the outer limit is asked first"


@pytest.mark.parametrize("way", [*WAYS][::3])
def test_a_redis_that_does_not_answer(own_redis: RedisServer, way: str) -> None:
    limit = parse("2/minute")
    with (
        limited(way, limit, server=own_redis) as ask,
        limited(way, limit, server=own_redis, on_error="unknown") as ask_open,
    ):
        own_redis.stop()
        away = ask(**{"X-Name": "ada"})
        assert (away.status_code, away.json()["title"]) == (503, "limiters unavailable")
        assert away.headers["Retry-After"] == "1"
        goes_on = ask_open(**{"X-Name": "ada"})
        assert (goes_on.status_code, "RateLimit" in goes_on.headers) == (200, False)


async def awaited_name_of(_: object) -> str:
    return "ada"


def test_what_no_request_can_take_is_refused_where_it_is_defined(redis_client: redis.Redis) -> None:
    limit = parse("5000/s")
    awaited, waiting = limit.on(redis.asyncio.Redis()), limit.on(redis_client)
    app: Any = Flask(__name__)
    of_fastapi: list[Callable[..., object]] = [
        ours_in_fastapi.permit, ours_in_fastapi.limited,
        partial(ours_in_fastapi.LimiterMiddleware, FastAPI()),
    ]  # fmt: skip
    of_flask: list[Callable[..., object]] = [
        ours_in_flask.limited, partial(ours_in_flask.LimiterMiddleware, app.wsgi_app),
    ]  # fmt: skip
    ways = [(define, awaited) for define in of_fastapi] + [(define, waiting) for define in of_flask]
    for define, limiter in ways:
        for key, n, text in (
            ("all", -1, "n: -1 permits; accepted: a whole number"),
            ("all", True, "n: True permits"),
            ("all", 1.5, "n: 1.5 permits"),
            ("all", 2_000, "n: 2000 permits; accepted: at most 1000"),
            (5, 1, "key: an int; accepted: a text, or a function"),
            (None, 1, "key: nothing; accepted"),
            ("", 1, "key: 0 characters; accepted: a text of 1 to 1024 bytes"),
            (awaited_name_of, 1, "key: an async function; accepted: .* without async"),
            (partial(awaited_name_of), 1, "key: an async function"),
        ):
            with pytest.raises(InvalidValue, match=text):
                define(limiter, key, n)
    for define in of_fastapi:
        with pytest.raises(InvalidValue, match=r"limiter: a Limiter.*redis\.asyncio"):
            define(waiting, "all")
    for define in of_flask:
        with pytest.raises(InvalidValue, match="limiter: an AsyncLimiter"):
            define(awaited, "all")
