"""The page in programs of others, under a prefix: three lines each."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher.web import Loopback, api, page
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.soak import a_third_of
from tests.web.conftest import ON_SQLITE
from tests.web.test_mounting import in_django, in_fastapi, in_flask

pytestmark = ON_SQLITE

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
