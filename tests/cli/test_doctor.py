"""``dispatcher doctor`` and ``windows``, and a worker that does not start."""

from __future__ import annotations

import importlib
from operator import itemgetter
from pathlib import Path

import pytest

from dispatcher.cli import services
from dispatcher.message import new_id
from dispatcher.operations import verification
from dispatcher.telemetry.liveness import Kind
from dispatcher.times.send_time import to_ms
from tests.cli.conftest import Run
from tests.support.examining import note_at_work
from tests.support.house import House
from tests.support.migrations import REVISIONS


@pytest.fixture(autouse=True)
def at_work(house: House) -> None:
    """Let a worker and a beat have been seen just now."""
    note_at_work(house)


def test_a_sound_deployment_ends_with_0_and_one_with_warnings_with_1_only_when_strict(
    house: House, run: Run
) -> None:
    ran = run("doctor", "--strict")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "49 ok"
    data = run("doctor", "--json").data
    assert (data["level"], len({finding["check"] for finding in data["findings"]})) == ("ok", 49)
    assert data["counts"] == {"ok": 49, "warning": 0, "error": 0, "skipped": 0}
    assert data["findings"][3] == {
        "check": "redis.eviction", "level": "ok", "found": "nothing is evicted", "remedy": None,
        "stops_worker": False,
    }  # fmt: skip
    house.parts.signs.forget(Kind.BEAT, "somebody")
    ran = run("doctor")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "48 ok, 1 warning")
    assert "no beat is alive" in ran.out
    strict = run("doctor", "--strict", "--json")
    assert (strict.code, strict.data["level"]) == (1, "warning")


def test_neither_bodies_nor_passwords_are_shown(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.submit("ada-secret", body={"text": "hunter2"}, send_at="2028-01-01T00:00Z")
    house.sql(
        "UPDATE dispatcher_messages SET channel = 'fax', enqueue_at = '2020-01-01 00:00:00.000'"
    )
    for name in ("REDIS", "BROKER"):
        monkeypatch.setenv(f"DISPATCHER_{name}_URL", "redis://:hunter2@127.0.0.1:1/0")
    for ran in (run("doctor"), run("doctor", "--json")):
        assert ran.code == 1
        assert "fax (1)" in ran.out
        assert "hunter2" not in ran.out + ran.err
        assert "ada-secret" not in ran.out + ran.err


def test_an_app_is_named_as_for_celery_and_an_installed_one_examined_with_its_own_settings(
    house: House, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = "from celery import Celery\napp = Celery('shop', broker={!r}, set_as_current=False)\n"
    installing = "import dispatcher\ndispatcher.install(app, dispatcher.Settings.load())\n"
    text = plain.format(house.settings.broker_url)
    (tmp_path / "users_shop.py").write_text(text)
    (tmp_path / "installed_shop.py").write_text(text + installing)
    monkeypatch.syspath_prepend(tmp_path)
    ran = run("doctor", "--app", "users_shop", "--json")
    assert ran.code == 1
    [attached] = [finding for finding in ran.data["findings"] if finding["check"] == "app.attached"]
    assert "dispatcher.deliver is not routed" in attached["found"]
    assert "enqueue_due, rescue, reconcile, prune" in attached["found"]
    for name in ("no_such_shop", "dispatcher.times.clock:SystemClock"):
        assert run("doctor", "-A", name).code == 2
    importlib.import_module("installed_shop")
    monkeypatch.setenv("DISPATCHER_QUEUE", "another")
    monkeypatch.setenv("DISPATCHER_BROKER_URL", "redis://127.0.0.1:1/0")
    ran = run("doctor", "--app", "installed_shop", "--json")
    levels = {finding["check"]: finding["level"] for finding in ran.data["findings"]}
    assert (levels["app.attached"], levels["broker.answers"]) == ("ok", "ok")


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


AT = "2028-01-01T11:11:11Z"


def test_equal_ends_with_0(house: House, run: Run) -> None:
    house.submit(send_at=AT)
    ran = run("windows", "verify")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split("\n")[0] == "1 messages and 1 reservations compared: equal"
    counts = {"missing": 0, "at another time": 0, "orphan": 0, "under way": 0, "foreign": 0}
    assert run("windows", "verify", "--json").data == {
        "equal": True, "messages": 1, "reservations": 1, "counts": counts, "closed_shards": [],
        "differences": [],
    }  # fmt: skip
    house.redis.delete(house.keys("ada").epoch)
    ran = run("windows", "verify")
    assert ran.code == 1
    assert f"not compared, because incomplete: shards {house.keys('ada').shard}" in ran.out


def test_differences_end_with_1_and_are_named_until_a_rebuild(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_BETWEEN_LOOKS_SECONDS", 0.01)
    monkeypatch.setenv("DISPATCHER_SETTLE", "0.05")
    message = house.submit(send_at=AT)
    house.submit("ben", send_at=AT)
    house.redis.zrem(house.keys("ada").window("ada"), message.id.bytes)
    unknown = {new_id().bytes: to_ms(message.send_at)}
    house.redis.zadd(house.keys("[red]x").window("[red]x"), unknown)
    before = house.snapshot()
    ran = run("windows", "verify")
    assert ran.code == 1
    for part in ("not equal", "1 missing", "1 orphan", "ada", "[red]x"):
        assert part in ran.out
    as_json = run("windows", "verify", "--json")
    assert as_json.code == 1
    missing, orphan = sorted(as_json.data["differences"], key=itemgetter("fault"))
    assert (missing["fault"], missing["scope"]) == ("missing", "ada")
    assert (missing["send_at"], missing["booked_at"]) == ("2028-01-01T11:11:11.000Z", None)
    assert (orphan["fault"], orphan["scope"]) == ("orphan", "[red]x")
    assert house.snapshot() == before, "looking changes nothing"
    ran = run("windows", "rebuild", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert "4 of 4 shards rebuilt" in ran.out
    assert run("windows", "verify").code == 0
    assert house.reservations() == house.all_members()


def test_rebuild_exits_with_1_where_another_process_rebuilds_a_shard(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_SETTLE", "0.05")
    assert house.parts.upkeep.close([2]) is not None
    ran = run("windows", "rebuild", "--yes")
    assert ran.code == 1
    assert "3 of 4 shards rebuilt" in ran.out
    assert "another process" in ran.out
    again = run("windows", "rebuild", "--yes", "--shard", "1", "--json")
    assert (again.code, again.data) == (0, {"wanted": 1, "rebuilt": [1]})
