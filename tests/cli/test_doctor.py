"""``dispatcher doctor``, and a worker that does not start."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dispatcher.cli import services
from dispatcher.telemetry.liveness import Kind
from tests.cli.conftest import Run
from tests.support.examining import doctor_for, note_at_work
from tests.support.house import House
from tests.support.migrations import REVISIONS
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def at_work(house: House) -> None:
    """Let a worker and a beat have been seen just now."""
    note_at_work(house)


def test_a_sound_deployment_ends_with_0(house: House, run: Run) -> None:
    ran = run("doctor", "--strict")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "48 ok"
    data = run("doctor", "--json").data
    assert data["level"] == "ok"
    assert data["counts"] == {"ok": 48, "warning": 0, "error": 0, "skipped": 0}
    assert len({each["check"] for each in data["findings"]}) == 48
    assert data["findings"][3] == {
        "check": "redis.eviction",
        "level": "ok",
        "found": "nothing is evicted",
        "remedy": None,
        "stops_worker": False,
    }


def test_warnings_end_with_1_only_when_strict(house: House, run: Run) -> None:
    house.parts.signs.forget(Kind.BEAT, "somebody")
    ran = run("doctor")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "47 ok, 1 warning"
    assert "no beat is alive" in ran.out
    assert run("doctor", "--strict").code == 1
    assert run("doctor", "--json").data["level"] == "warning"


def test_checks_that_are_skipped_for_one_reason_share_a_line(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", "redis://127.0.0.1:1/0")
    ran = run("doctor")
    assert ran.code == 1
    assert ran.out.count("not examined: Redis at 127.0.0.1:1 cannot be reached") == 1
    skipped = [each for each in run("doctor", "--json").data["findings"]
               if each["level"] == "skipped"]  # fmt: skip
    assert all(each["check"] in ran.out for each in skipped)
    assert {"redis.version", "clock.redis"} <= {each["check"] for each in skipped}


def test_neither_bodies_nor_passwords_are_shown(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.submit("ada-secret", body={"text": "hunter2"}, send_at="2028-01-01T00:00Z")
    house.sql(
        "UPDATE dispatcher_messages SET channel = 'fax', enqueue_at = '2020-01-01 00:00:00.000'"
    )
    for name, url in (
        ("REDIS", "redis://:hunter2@127.0.0.1:1/0"),
        ("BROKER", "redis://:hunter2@127.0.0.1:1/1"),
    ):
        monkeypatch.setenv(f"DISPATCHER_{name}_URL", url)
    for ran in (run("doctor"), run("doctor", "--json")):
        assert ran.code == 1
        assert "fax (1)" in ran.out
        assert "hunter2" not in ran.out + ran.err
        assert "ada-secret" not in ran.out + ran.err


def test_an_app_of_the_users_is_named_as_for_celery(
    house: House, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_shop.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('shop', broker={house.settings.broker_url!r}, set_as_current=False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ran = run("doctor", "--app", "users_shop", "--json")
    assert ran.code == 1
    [attached] = [each for each in ran.data["findings"] if each["check"] == "app.attached"]
    assert "dispatcher.deliver is not routed" in attached["found"]
    assert "enqueue_due, rescue, reconcile, prune" in attached["found"]
    for name in ("no_such_shop", "dispatcher.times.clock:SystemClock"):
        assert run("doctor", "-A", name).code == 2


def test_an_app_that_was_installed_is_examined_with_its_own_settings(
    house: House, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed_shop.py").write_text(
        "from celery import Celery\n"
        "import dispatcher\n"
        "app = Celery('shop', set_as_current=False)\n"
        "dispatcher.install(app, dispatcher.Settings.load())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("installed_shop")
    monkeypatch.setenv("DISPATCHER_QUEUE", "another")
    monkeypatch.setenv("DISPATCHER_BROKER_URL", "redis://127.0.0.1:1/0")
    ran = run("doctor", "--app", "installed_shop", "--json")
    found = {each["check"]: each["level"] for each in ran.data["findings"]}
    assert (found["app.attached"], found["broker.answers"]) == ("ok", "ok")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the first word of what would be started as Celery."""
    words: list[str] = []
    monkeypatch.setattr(services, "_celery", lambda *arguments: words.append(arguments[0]))
    return words


def test_on_a_database_that_is_behind_a_worker_starts_without_the_doctor_only(
    house: House, run: Run, started: list[str]
) -> None:
    house.sql("DELETE FROM dispatcher_alembic_version")
    examined = run("doctor")
    assert examined.code == run("doctor", "--json").code == 1
    assert "remedy: run `dispatcher migrate` first" in examined.out
    ran = run("worker")
    assert (ran.code, ran.out, started) == (1, "", [])
    first, second = ran.err.splitlines()
    assert first == (
        "error: store.migrations: the database is without tables; "
        f"missing: {', '.join(REVISIONS)}. Remedy: run `dispatcher migrate` first"
    )
    assert second.startswith("error: the worker was not started; with --no-doctor")
    assert run("worker", "--no-doctor").code == 0
    assert started == ["worker"]


def test_a_worker_starts_while_its_servers_are_away(
    house: House, run: Run, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    assert run("doctor").code == 1
    assert run("worker").code == 0
    assert started == ["worker"]


def test_a_doctor_closes_its_connections(house: House) -> None:
    before = house.redis.info("clients")["connected_clients"]
    seen = []
    for _ in range(3):
        with doctor_for(house.settings) as doctor:
            doctor.examine()
        seen.append(doctor)  # nothing is closed for want of a reference
    wait_until(lambda: house.redis.info("clients")["connected_clients"] <= before)
