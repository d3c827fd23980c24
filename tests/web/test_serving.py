"""The API and the page in a server of their own, which ends well, and in programs of others."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatcher import Dispatcher, InvalidValue
from dispatcher.faults import arm
from dispatcher.web import Loopback, api, page
from dispatcher.web.pages import SERVER_OPTIONS, beside
from tests.support.django_project import shop
from tests.support.examples import a_third_of
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.waiting import wait_until
from tests.web.conftest import ON_SQLITE, bearer
from tests.web.test_messages import key, new

pytestmark = ON_SQLITE


def test_a_rate_that_cannot_be_read_is_refused_at_once(house: House) -> None:
    with pytest.raises(InvalidValue):
        api(house.dispatcher, rate="fast")


def test_headers_without_end_are_refused_also_where_httptools_is_installed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn takes httptools where it is installed, and then keeps all headers in memory."""
    monkeypatch.setitem(sys.modules, "httptools", ModuleType("httptools"))
    monkeypatch.delitem(sys.modules, "uvicorn.protocols.http.auto", raising=False)
    monkeypatch.delitem(sys.modules, "uvicorn.protocols.http.httptools_impl", raising=False)
    with beside(api(house.dispatcher)) as address:
        port = urlsplit(address).port or 80
        with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
            line.sendall(b"GET /v1/status HTTP/1.1\r\n" + b"x-header: value\r\n" * 10_000)
            assert b" 400 " in line.recv(1_000).partition(b"\r\n")[0]


class HaltedSubmit(NamedTuple):
    """A submit that stands still between its commit and its answer, until ``gate`` is a file."""

    client: httpx2.Client
    server: ExitStack
    gate: Path

    def submit(self) -> httpx2.Response:
        return self.client.post("v1/messages", json=new(), headers=key("k"))


@contextmanager
def halted_submit(house: House, folder: Path, *, mounted: bool = False) -> Iterator[HaltedSubmit]:
    gate = folder / "gate"
    arm(f"submit.after_commit=wait:{gate}")
    try:
        with ExitStack() as server:
            app = api(house.dispatcher)
            if mounted:
                host = FastAPI()
                host.mount("/", app)
                app = host
            address = server.enter_context(beside(app))
            with httpx2.Client(base_url=address, headers=bearer(house), timeout=60) as client:
                yield HaltedSubmit(client, server, gate)
    finally:
        gate.touch()
        arm(None)


def test_a_server_that_is_told_to_end_answers_the_calls_under_way(
    house: House, tmp_path: Path
) -> None:
    with halted_submit(house, tmp_path) as halted, ThreadPoolExecutor(2) as threads:
        answer = threads.submit(halted.submit)
        wait_until(tmp_path.joinpath("gate.reached").exists)
        end = threads.submit(halted.server.close)
        with pytest.raises(TimeoutError):
            end.result(0.2)
        halted.gate.touch()
        assert answer.result(60).status_code == 201
        end.result(60)


@pytest.mark.parametrize("mounted", [False, True])
def test_closing_the_dispatcher_waits_for_calls_that_the_server_gave_up(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    monkeypatch.setitem(SERVER_OPTIONS, "timeout_graceful_shutdown", 0.1)
    with (
        halted_submit(house, tmp_path, mounted=mounted) as halted,
        ThreadPoolExecutor(2) as threads,
    ):
        answer = threads.submit(halted.submit)
        wait_until(tmp_path.joinpath("gate.reached").exists)
        halted.server.close()
        assert answer.result(60).status_code == 500
        closed = threads.submit(house.dispatcher.close)
        with pytest.raises(TimeoutError):
            closed.result(0.3)
        halted.gate.touch()
        closed.result(60)
        with Dispatcher(house.settings) as other:
            assert len(other.list()) == 1


def test_a_submit_is_done_though_its_caller_has_gone(house: House, tmp_path: Path) -> None:
    with halted_submit(house, tmp_path) as halted:
        url, headers = halted.client.base_url, {**halted.client.headers, **key("k")}
        with closing(http.client.HTTPConnection(url.host, url.port)) as gone:
            headers["Content-Type"] = "application/json"
            gone.request("POST", "/v1/messages", json.dumps(new()), headers)
            wait_until(tmp_path.joinpath("gate.reached").exists)
        halted.gate.touch()
        again = halted.submit()
        assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")
        (message,) = house.dispatcher.list()
        assert str(message.id) == again.json()["id"]


FIRST, ALL = 1_000, 4_000
TEXT = "x" * 4_000


def test_verdicts_come_while_lines_are_sent_and_memory_does_not_grow(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "dispatcher")  # pytest keeps what is logged
    stream = {"Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"}
    headers = bearer(house) | stream

    def chunk(first: int, count: int) -> bytes:
        numbers = range(first, first + count)
        lines = [json.dumps(new(f"r{number}", body={"text": TEXT})) for number in numbers]
        text = "\n".join(lines).encode() + b"\n"
        return b"%x\r\n%s\r\n" % (len(text), text)

    with (
        beside(api(house.dispatcher)) as address,
        closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)) as caller,
    ):
        caller.putrequest("POST", "/v1/messages/batch")
        for name, value in headers.items():
            caller.putheader(name, value)
        caller.endheaders(chunk(0, FIRST))
        answer = caller.getresponse()
        read = [json.loads(answer.readline())["status"]]
        # The rest of the call is not sent yet.
        assert read == [201]

        def send() -> None:
            for first in range(FIRST, ALL, 100):
                caller.send(chunk(first, 100))
            caller.send(b"0\r\n\r\n")

        tracemalloc.start()
        try:
            sender = Thread(target=send)
            sender.start()
            read += [json.loads(line)["status"] for line in answer]
            sender.join()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert read == [201] * ALL
    assert most < 10_000_000, "of the 12 MB of the rest, and of the answers to them"


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
    with TestClient(mounted(api(house.dispatcher)), base_url="http://localhost") as client:
        base = f"{PREFIX}/v1/messages"
        assert client.get(base).status_code == 401
        client.headers.update(bearer(house))
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
        assert [json.loads(line)["status"] for line in verdicts] == [201, 409, 201]
        listed, url = [], f"{base}?limit=1"
        while url:
            page = client.get(url)
            listed += [message["id"] for message in page.json()["messages"]]
            url = page.links.get("next", {}).get("url", "")
        assert sorted(listed) == sorted(str(row[0]) for row in house.rows())
        assert len(listed) == 3
        assert client.get(f"{PREFIX}/v1/openapi.json").status_code == 200
        assert client.get("/v1/messages").status_code == 404


_LINK = re.compile(r'(?:href|action|src)="([^"#]*)"')


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
