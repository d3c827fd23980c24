"""The HTTP API and the page in programs of others, under a prefix, and their names of hosts."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatcher.web import Loopback, api, page
from dispatcher.web.access import add_key
from tests.support.django_project import shop
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.soak import a_third_of
from tests.web.conftest import ON_SQLITE
from tests.web.test_messages import new

pytestmark = ON_SQLITE

PREFIX = "/ops/later"


def in_fastapi(ours: Any) -> Any:
    app = FastAPI()
    app.mount(PREFIX, ours)
    return app


def in_django(ours: Any) -> Any:
    from django.core.asgi import get_asgi_application  # noqa: PLC0415 - as a program does

    shop()
    django: Any = get_asgi_application()
    return Starlette(routes=[Mount(PREFIX, ours), Mount("/", django)])


def in_flask(ours: Any) -> Any:
    from a2wsgi import ASGIMiddleware, WSGIMiddleware  # noqa: PLC0415 - as a program does
    from flask import Flask  # noqa: PLC0415 - as a program does
    from werkzeug.middleware.dispatcher import DispatcherMiddleware  # noqa: PLC0415 - as a program does

    later: Any = ASGIMiddleware(ours)
    mounted: Any = DispatcherMiddleware(Flask(__name__).wsgi_app, {PREFIX: later})
    return WSGIMiddleware(mounted)


@pytest.mark.parametrize("mounted", [in_fastapi, in_django, in_flask])
def test_a_mounted_api_answers_as_one_at_the_root(house: House, mounted: Any) -> None:
    _, token = add_key(house.parts.api_keys, "shop")
    with TestClient(mounted(api(house.dispatcher)), base_url="http://localhost") as client:
        base = f"{PREFIX}/v1/messages"
        assert client.get(base).status_code == 401
        client.headers["Authorization"] = f"Bearer {token}"
        key = {"Idempotency-Key": "k-1"}
        made = client.post(base, json=new(), headers=key)
        assert made.status_code == 201, made.text
        path = made.headers["Location"]
        assert path == f"{base}/{made.json()['id']}"
        assert client.post(base, json=new(), headers=key).content == made.content
        assert client.put(base).headers["Allow"] == "GET, POST"
        read = client.get(path)
        match = {"If-Match": read.headers["ETag"]}
        assert client.patch(path, json={"body": {"n": 1}}, headers=match).status_code == 200
        assert client.patch(path, json={"body": {"n": 2}}, headers=match).status_code == 412
        lines = "\n".join(json.dumps(new(name)) for name in ("ben", "ben", "eve"))
        ndjson = {"Content-Type": "application/x-ndjson"}
        verdicts = client.post(f"{base}/batch", content=lines, headers=ndjson).text.splitlines()
        assert [json.loads(each)["status"] for each in verdicts] == [201, 409, 201]
        listed, url = [], f"{base}?limit=1"
        while url:
            page = client.get(url)
            listed += [each["id"] for each in page.json()["messages"]]
            url = page.links.get("next", {}).get("url", "")
        assert sorted(listed) == sorted(str(row[0]) for row in house.rows())
        assert len(listed) == 3
        assert client.get(f"{PREFIX}/v1/openapi.json").status_code == 200
        assert client.get("/v1/messages").status_code == 404


_LINK = re.compile(r'(?:href|action|src|data-live)="([^"#]*)"')


@pytest.mark.parametrize("mounted", a_third_of([in_fastapi, in_django, in_flask]))
def test_every_link_leads_to_a_page_under_the_prefix(house: House, mounted: Any) -> None:
    message = house.submit()
    app = mounted(page(house.dispatcher, access=Loopback()))
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50_000)) as client:
        links = set[str]()
        for path in ("", "messages", f"messages/{message.id}", "calendar?recipient=ada"):
            answer = client.get(f"/ops/later/{path}")
            assert answer.status_code == 200, path
            links |= {link.replace("&amp;", "&") for link in _LINK.findall(answer.text)}
        assert all(link.startswith("/ops/later/") for link in links)
        assert f"/ops/later/messages/{message.id}" in links
        files = [link for link in links if "/static/" in link]
        assert len(files) > 1
        assert {client.get(link).status_code for link in files} == {200}


@pytest.mark.parametrize("make", [api, partial(page, access=Loopback())])
def test_other_hosts_than_those_of_the_settings_are_refused(build: Build, make: Any) -> None:
    house = build(allowed_hosts="shop.example,*.shop.example")
    client = TestClient(make(house.dispatcher), client=("127.0.0.1", 5))
    path = "/v1/openapi.json" if make is api else "/"
    hosts = {"shop.example": False, "a.shop.example:8000": False, "evil.test": True}
    for host, refused in hosts.items():
        assert (client.get(path, headers={"Host": host}).status_code == 400) is refused, host
