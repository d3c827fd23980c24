"""The code of README and of some pages runs, and prints what stands beside it."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from dispatcher import Dispatcher, QuotaExceeded, Settings, Status
from dispatcher.times.clock import SystemClock
from tests.docs.pages import blocks, page
from tests.support.callers import callers_engine
from tests.support.environment import ROOT, broker_on
from tests.support.examples import a_third_of
from tests.support.house_fixtures import Build
from tests.support.processes import pytest_in, ran
from tests.support.servers import RedisServer

_PRINTS = re.compile(r"^( *)print\((.+)\)  # (.+)$", re.MULTILINE)
_HERE = "redis.Redis()"
_HEAD_OF_TESTS = """
from datetime import UTC, datetime, timedelta
from dispatcher import QuotaExceeded, TemporaryFailure
"""


@pytest.fixture(autouse=True)
def place(
    redis_server: RedisServer, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give an empty folder in which ``Dispatcher()`` finds its servers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_server.url)
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("DISPATCHER_BROKER_URL", broker_on(redis_server.url))
    return tmp_path


class Told:
    """Compares what code prints with what the page says beside it."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, said: str, *values: object) -> None:
        self.lines += 1
        assert " ".join(map(str, values)) == said


def run(text: str, **names: Any) -> dict[str, Any]:
    """Run code of a page; return its names, with ``told`` among them."""
    names |= {"told": Told(), "__name__": "page"}
    for block in blocks(text, "python"):
        code = _PRINTS.sub(r"\1told('''\3''', \2)", block)
        exec(compile(code, "page", "exec", dont_inherit=True), names)  # noqa: S102 - our own page
    return names


def opened() -> Settings:
    with Dispatcher() as dispatcher:
        dispatcher._app.reconciler.reconcile(settle=timedelta(0))
        return dispatcher.settings


def test_the_readme_does_what_it_says() -> None:
    opened()
    names = run(page("README.md"))
    with names["dispatcher"] as dispatcher:
        assert names["told"].lines == 3
        assert dispatcher.get(names["shifted"].id).status is Status.CANCELLED
        assert dispatcher.count() == 2, "what was refused left nothing"


def test_the_apps_of_the_page_about_frameworks_submit(redis_server: RedisServer) -> None:
    opened()
    text = page("docs/existing-project.md").split("\n## FastAPI\n")[1]
    names = run(text.replace("redis://redis.example/0", redis_server.url))
    with TestClient(names["app"]) as client:
        answers = [client.post("/codes", params={"recipient": "ada"}) for _ in range(2)]
    assert [each.status_code for each in answers] == [200, 409]
    assert answers[0].headers["RateLimit"] == '"5/minute";r=4'
    with names["shop"].extensions["dispatcher"] as dispatcher:
        client = names["shop"].test_client()
        answers = [client.post("/codes", data={"recipient": "ben"}) for _ in range(2)]
        assert [each.status_code for each in answers] == [200, 409]
        assert dispatcher.count() == 2


def test_submitting_does_what_it_says(place: Path) -> None:
    text = page("docs/submitting.md")
    [settings] = blocks(text, "toml")
    (place / "dispatcher.toml").write_text(settings)
    assert opened().scopes.keys() == {"tenant"}
    names = run(text.split("\n## In your own transaction\n")[0])
    with names["dispatcher"] as dispatcher:
        assert names["told"].lines == 10
        assert [each.status for each in names["results"]] == [Status.SCHEDULED] * 2
        assert dispatcher.count(status=Status.CANCELLED) == 2
        assert dispatcher.submit_many(names["drafts"]) == names["results"], "safe to run again"


def test_coming_from_others_does_what_it_says(place: Path, redis_server: RedisServer) -> None:
    text = page("docs/comparison.md")
    [settings] = blocks(text, 'toml title="dispatcher.toml"')
    (place / "dispatcher.toml").write_text(settings)
    opened()
    assert _HERE in text
    text = text.replace(_HERE, f"redis.Redis.from_url({redis_server.url!r})")
    names = run(text)
    with names["dispatcher"] as dispatcher:
        assert names["told"].lines == 8
        assert dispatcher.count(status=Status.CANCELLED) == 2
        assert dispatcher.count(status=Status.SCHEDULED) == 2


def test_an_order_and_its_reminder_commit_together(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(clock=SystemClock(), channels={"email": {"transport": "memory"}})
    with callers_engine(house.database, table=False) as engine:
        monkeypatch.setattr("dispatcher.Dispatcher", lambda: house.dispatcher)
        monkeypatch.setattr("sqlalchemy.create_engine", lambda _: engine)
        text = page("docs/submitting.md").split("\n## In your own transaction\n")[1]
        names = run(text.split("\n## Templates\n")[0])
        order, take_order = names["Order"], names["take_order"]
        [message] = [*house.dispatcher.select()]
        rounded = message.send_at - (names["tomorrow"] - timedelta(hours=1))
        assert timedelta(0) <= rounded < timedelta(milliseconds=1)
        with suppress(QuotaExceeded), Session(engine) as session, session.begin():
            take_order(session, order(number=18, email="ben", pickup_at=names["tomorrow"]))
            take_order(session, order(number=19, email="ben", pickup_at=names["tomorrow"]))
            pytest.fail("both fit")
        with Session(engine) as session:
            assert list(session.scalars(select(order.number))) == [17]
    assert [*house.dispatcher.select()] == [message]
    assert house.reservations() == house.all_members()


@pytest.mark.parametrize("name", a_third_of(["testing", "who-goes-first", "series"]))
def test_the_tests_of_the_page_pass(name: str, tmp_path: Path) -> None:
    text = page(f"docs/{name}.md")
    shown = blocks(text, "python")
    conftest = [each for each in shown if "@pytest.fixture" in each]
    tests = [each for each in shown if "def test_" in each]
    assert len(conftest) + len(tests) == len(shown)
    (tmp_path / "conftest.py").write_text("\n".join(conftest))
    (tmp_path / "dispatcher.toml").write_text("\n".join(blocks(text, "toml")))
    (tmp_path / "test_page.py").write_text(_HEAD_OF_TESTS + "\n".join(tests))
    done, passed = pytest_in(tmp_path), f"{len(tests)} passed"
    assert (done.returncode, passed in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_tables_of_the_page_are_printed_by_the_script() -> None:
    printed = ran(sys.executable, "benchmarks/scaling.py", check=True, cwd=ROOT, timeout=60).stdout
    tables = printed.strip().split("\n\n")
    assert len(tables) == 2
    for table in tables:
        assert table in page("docs/operating.md")
