"""The page in programs of others, under a prefix: three lines each."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher import Dispatcher
from dispatcher.web import Loopback, api, page
from tests.support.django_project import shop
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.soak import a_third_of

_LINK = re.compile(r'(?:href|action|src|data-live)="([^"#]*)"')


def in_fastapi(dispatcher: Dispatcher) -> Any:
    from fastapi import FastAPI  # noqa: PLC0415 - as a program does

    app = FastAPI()
    app.mount("/ops/later", page(dispatcher, access=Loopback()))
    return app


def in_django(dispatcher: Dispatcher) -> Any:
    from django.core.asgi import get_asgi_application  # noqa: PLC0415 - as a program does
    from starlette.applications import Starlette  # noqa: PLC0415 - as a program does
    from starlette.routing import Mount  # noqa: PLC0415 - as a program does

    shop()
    django: Any = get_asgi_application()
    return Starlette(
        routes=[Mount("/ops/later", page(dispatcher, access=Loopback())), Mount("/", django)]
    )


def in_flask(dispatcher: Dispatcher) -> Any:
    from a2wsgi import ASGIMiddleware, WSGIMiddleware  # noqa: PLC0415 - as a program does
    from flask import Flask  # noqa: PLC0415 - as a program does
    from werkzeug.middleware.dispatcher import DispatcherMiddleware  # noqa: PLC0415 - as a program does

    app = Flask(__name__)
    ours: Any = page(dispatcher, access=Loopback())
    later: Any = ASGIMiddleware(ours)
    mounted: Any = DispatcherMiddleware(app.wsgi_app, {"/ops/later": later})
    return WSGIMiddleware(mounted)


@pytest.mark.parametrize("mounted", a_third_of([in_fastapi, in_django, in_flask]))
def test_every_link_leads_to_a_page_under_the_prefix(house: House, mounted: Any) -> None:
    message = house.submit()
    app = mounted(house.dispatcher)
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50_000)) as client:
        seen: set[str] = set()
        left = ["/ops/later/", "/ops/later/calendar?recipient=ada&channel=memory"]
        while left:
            path = left.pop()
            seen.add(path)
            if path.endswith("/live"):
                continue
            answer = client.get(path)
            assert answer.status_code == 200, path
            if "html" in answer.headers["content-type"] and len(seen) < 25:
                found = [each.replace("&amp;", "&") for each in _LINK.findall(answer.text)]
                assert all(each.startswith("/ops/later/") for each in found), path
                left += set(found) - seen - set(left)
    assert f"/ops/later/messages/{message.id}" in seen
    assert any("page.css" in each for each in seen)


@pytest.mark.parametrize("make", [api, partial(page, access=Loopback())])
def test_other_hosts_than_those_of_the_settings_are_refused(build: Build, make: Any) -> None:
    house = build(allowed_hosts="shop.example,*.shop.example")
    client = TestClient(make(house.dispatcher), client=("127.0.0.1", 5))
    path = "/v1/openapi.json" if make is api else "/"
    hosts = {"shop.example": False, "a.shop.example:8000": False, "evil.test": True}
    for host, refused in hosts.items():
        assert (client.get(path, headers={"Host": host}).status_code == 400) is refused, host
