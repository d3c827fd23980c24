"""When a command cannot do what is asked: one sentence, the right exit code, no secrets."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli import services
from dispatcher.message import new_id
from dispatcher.times.send_time import as_text
from tests.cli.conftest import Run
from tests.support.house import House

TO = ("--channel", "memory", "--recipient", "ada", "--text", "hello")
AT = ("--send-at", "2028-01-01T11:11:11Z")
SECRET = "hunter2"  # noqa: S105 - looked for where it must not be


def submitted(house: House, **asked: Any) -> str:
    return str(house.submit(send_at="2028-01-01T11:11:11Z", **asked).id)


def sent(house: House) -> str:
    message = house.submit("ben")
    house.deliver(message)
    return str(message.id)


TIMES = (
    "a time with an offset (2026-12-24T08:30+01:00), "
    "or a local time (2026-12-24T08:30) together with --zone"
)
Case = tuple[int, str, Callable[[House], list[str]]]

CASES: dict[str, Case] = {
    "unknown channel": (2, "there is no channel 'fax'", lambda _: [
        "submit", "--channel", "fax", "--recipient", "ada", "--text", "x", *AT]),
    "bad recipient": (2, "--recipient: ", lambda _: [
        "submit", "--channel", "memory", "--recipient", "", "--text", "x", *AT]),
    "no body": (2, "neither or both of --text and --body", lambda _: [
        "submit", "--channel", "memory", "--recipient", "ada", *AT]),
    "body no JSON": (2, "--body: is not JSON", lambda _: [
        "submit", "--channel", "memory", "--recipient", "ada", "--body", "{", *AT]),
    "body no object": (2, "--body: a list", lambda _: [
        "submit", "--channel", "memory", "--recipient", "ada", "--body", "[]", *AT]),
    "body far too deep": (2, "--body: is nested too deeply", lambda _: [
        "submit", "--channel", "memory", "--recipient", "ada", "--body", "[" * 50_000, *AT]),
    "no time": (2, "--send-at: neither of --send-at and --send-in", lambda _: ["submit", *TO]),
    "past": (2, "is past", lambda _: ["submit", *TO, "--send-at", "1999-01-01T00:00Z"]),
    "local without zone": (
        2,
        f"neither an offset nor a zone; accepted: {TIMES}\n",
        lambda _: ["submit", *TO, "--send-at", "2028-01-01T11:11"],
    ),
    "time or date": (2, "together with --zone, or a date (2026-12-24)\n", lambda _: [
        "list", "--from", "tomorrow"]),
    "unreadable length": (2, "--send-in: cannot read 'soon'", lambda _: [
        "submit", *TO, "--send-in", "soon"]),
    "unreadable expiry": (2, "--expire-after: cannot read '-1 hour'", lambda _: [
        "submit", *TO, *AT, "--expire-after", "-1 hour"]),
    "unreadable move": (2, "--later: cannot read 'soon'", lambda _: [
        "reschedule", "--all", "--later", "soon"]),
    "unreadable since": (2, "--since: cannot read 'x'", lambda _: ["status", "--since", "x"]),
    "status since now": (2, "accepted", lambda _: ["status", "--since", "0"]),
    "status since for ever": (2, "accepted", lambda _: ["status", "--since", "1000 days"]),
    "watch all the time": (2, "--every", lambda _: ["status", "--every", "0.01"]),
    "status of a long name": (2, "--campaign", lambda _: ["status", "--campaign", "c" * 65]),
    "load of a month": (2, "--within", lambda _: ["load", "--within", "30 days"]),
    "top none": (2, "--limit", lambda _: ["top", "--limit", "0"]),
    "refusals of no quota": (2, "--quota", lambda _: ["refusals", "--quota", "3"]),
    "unreadable every": (2, "--every: cannot read 'x'", lambda _: ["status", "--every", "x"]),
    "unreadable within": (2, "--within: cannot read 'x'", lambda _: ["top", "--within", "x"]),
    "bad id": (2, "is no message id", lambda _: ["show", "4711"]),
    "next slot of nobody": (2, "neither recipient nor scope", lambda _: ["next-slot"]),
    "list too many": (2, "--limit: ", lambda _: ["list", "--limit", "0"]),
    "list behind nothing": (2, "--after: ", lambda _: ["list", "--after", "4711"]),
    "list no time": (2, "--from: ", lambda _: ["list", "--from", "tomorrow"]),
    "list no date": (2, "--to: there is no date 2026-02-30", lambda _: [
        "list", "--to", "2026-02-30"]),
    "list backwards": (2, "--to: is not later than --from", lambda _: [
        "list", "--from", "2026-02-02", "--to", "2026-02-01"]),
    "list no key": (2, "--key: 0 characters", lambda _: ["list", "--key", ""]),
    "list no prefix": (2, "--key-prefix: 0 characters", lambda _: ["list", "--key-prefix", ""]),
    "list of no scope": (2, "--count: cannot read 'tenant'", lambda _: [
        "list", "--count", "tenant"]),
    "list of two scopes": (2, "--count: 'tenant' is given more than once", lambda _: [
        "list", "--count", "tenant=acme", "--count", "tenant=other"]),
    "list of an unknown kind": (2, "--count: there is no kind 'tenant'", lambda _: [
        "list", "--count", "tenant=acme"]),
    "text too long": (2, "--text: ", lambda _: [
        "submit", *TO[:4], "--text", "x" * 70_000, *AT]),
    "move of one to the past": (2, "--send-at: 1999-01-01T00:00:00+00:00 is past", lambda house: [
        "reschedule", submitted(house), "--send-at", "1999-01-01T00:00Z"]),
    "latest without a shift": (2, "--latest: given without --on-conflict", lambda _: [
        "submit", *TO, *AT, "--latest", "2028-01-02T00:00Z"]),
    "submit for an unknown kind": (2, "--count: there is no kind 'tenant'", lambda _: [
        "submit", *TO, *AT, "--count", "tenant=acme"]),
    "pause of an unknown kind": (2, "customer", lambda _: ["pause", "customer", "acme"]),
    "pause of an unknown channel": (2, "fax", lambda _: ["pause", "channel", "fax"]),
    "opt-out of an unknown channel": (2, "fax", lambda _: [
        "suppress", "ada", "--channel", "fax"]),
    "reschedule too late": (5, "already sent", lambda house: [
        "reschedule", sent(house), "--send-in", "1 hour"]),
    "update too late": (5, "already sent", lambda house: [
        "update", sent(house), "--text", "too late"]),
    "change nothing": (2, "no message is named", lambda _: ["cancel", "--yes"]),
    "change by both": (2, "given together with a filter", lambda _: [
        "drop", str(new_id()), "--channel", "memory"]),
    "change of another status": (2, "--status: this command does not apply to sent", lambda _: [
        "cancel", "--status", "sent"]),
    "later and a time": (2, "--send-at: not exactly one time", lambda _: [
        "reschedule", str(new_id()), "--later", "1 hour", "--send-in", "5"]),
    "rebuild of no shard": (2, "--shard: there is no shard 99; accepted: 0 to 3", lambda _: [
        "windows", "rebuild", "--yes", "--shard", "99"]),
    "retry nothing": (4, "there is no message", lambda _: ["retry", str(new_id())]),
    "retry what was sent": (5, "is already sent", lambda house: ["retry", sent(house)]),
    "quota": (3, "the next free slot is 2028-01-01T11:12:11+00:00", lambda house: (
        [submitted(house), "submit", *TO, "--send-at", "2028-01-01T11:11:12Z"][1:])),
    "show nothing": (4, "there is no message", lambda _: ["show", str(new_id())]),
    "cancel nothing": (4, "there is no message", lambda _: ["cancel", str(new_id())]),
    "too late": (5, "is already sent", lambda house: ["cancel", sent(house)]),
    "key in use": (5, "which has other content", lambda house: (
        [submitted(house, idempotency_key="k"), "submit", *TO, *AT, "--key", "k"][1:])),
    "redis empty": (6, "reservations unavailable", lambda house: (
        [str(house.redis.flushall()), "submit", *TO, *AT][1:])),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_an_error_is_one_sentence_with_its_exit_code(house: House, run: Run, case: Case) -> None:
    code, says, prepare = case
    arguments = prepare(house)
    before = house.snapshot()
    ran = run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert house.snapshot() == before


def test_an_error_is_json_too_where_that_is_asked_for(house: House, run: Run) -> None:
    wanted = ("submit", "--channel", "memory", "--recipient", "ada", "--text", "hello")
    at = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    booked = run(*wanted, "--send-at", at.isoformat(), "--json")
    refused = run(*wanted, "--send-at", at.isoformat(), "--json")
    assert refused.code == 3
    assert refused.data == {
        "error": "QuotaExceeded",
        "text": refused.err.removeprefix("error: ").strip(),
        "quota": "1/minute",
        "scope": "ada",
        "send_at": as_text(at),
        "conflicting": [booked.data["id"]],
        "next_slot": as_text(at + timedelta(minutes=1)),
    }
    strange = run("show", str(new_id()), "--json")
    assert (strange.code, strange.data["error"]) == (4, "MessageNotFound")


@pytest.mark.parametrize("name", ["show nothing", "cancel nothing", "retry nothing", "too late"])
def test_a_change_that_is_refused_is_json_too(house: House, run: Run, name: str) -> None:
    code, says, prepare = CASES[name]
    ran = run(*prepare(house), "--json")
    assert (ran.code, ran.data["text"]) == (code, ran.err.removeprefix("error: ").strip())
    assert says in ran.data["text"]
    assert len(ran.err.splitlines()) == 1


def test_of_several_changes_those_that_are_done_are_json(house: House, run: Run) -> None:
    done = submitted(house)
    ran = run("cancel", str(new_id()), done, "--json")
    assert (ran.code, [each["id"] for each in ran.data]) == (4, [done])
    moved = run("reschedule", str(new_id()), "--later", "1 hour", "--json")
    assert (moved.code, moved.data["error"]) == (4, "MessageNotFound")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fly"], "dispatcher: no such command 'fly'"),
        (["submit"], "--channel: missing option; accepted: "),
        (["show"], "ID: missing argument; accepted: what `dispatcher show --help` shows"),
        (["list", "--chanel", "sms"], "--chanel: no such option; accepted: "),
        (
            ["list", "--status", "lost"],
            "--status: there is no 'lost'; accepted: one of 'scheduled'",
        ),
        (["list", "--limit"], "--limit: option '--limit' requires an argument"),
        (["submit", *TO, *AT, "--fold", "x"], "--fold: "),
        (["submit", *TO, *AT, "--on-conflict", "replace"], "--on-conflict: there is no 'replace'"),
    ],
    ids=str,
)
def test_errors_of_typer_are_one_sentence_and_json_too(
    house: House, run: Run, arguments: list[str], says: str
) -> None:
    before = house.snapshot()
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    [line] = ran.err.splitlines()
    assert line.startswith(f"error: {says}")
    assert "Value error" not in line
    if arguments[-1] != "--limit":
        told = run(*arguments, "--json")
        assert (told.code, told.data["text"]) == (2, line.removeprefix("error: "))
    assert house.snapshot() == before


@pytest.mark.parametrize("arguments", [[], ["keys"]])
def test_without_a_command_there_is_help(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert "error" not in ran.err
    assert "Usage: dispatcher" in ran.out + ran.err


@pytest.mark.parametrize(
    ("name", "value", "code", "says"),
    [
        ("DATABASE_URL", "sqlite:////nowhere/here/x.db", 6, "there is no folder /nowhere/here; "),
        ("DATABASE_URL", "sqlite:////", 6, "or run the command as its owner"),
        ("DATABASE_URL", f"oracle://ada:{SECRET}@host/x", 2, "database_url: "),
        ("DATABASE_URL", f"postgresql+nothing://ada:{SECRET}@host/x", 2, ", postgresql://…, "),
        (
            "REDIS_URL",
            f"redis://:{SECRET}@127.0.0.1:1/0",
            6,
            "Redis at 127.0.0.1:1 cannot be reached; start it, let this machine reach it, or corr",
        ),
        ("REDIS_URL", "unix:///nowhere/redis.sock", 6, "`dispatcher up` runs one here"),
        ("REDIS_URL", f"http://:{SECRET}@host", 2, "redis_url: "),
        ("HORIZON", "2 hours", 2, "horizon: "),
        ("HORIZON", "soon", 2, "horizon: "),
        ("QUOTAS", "1/fortnight", 2, "quotas"),
        ("SHARDS", "0", 2, "shards: "),
    ],
)
def test_a_wrong_configuration_is_said_without_its_secrets(  # noqa: PLR0917 - one table, one test
    house: House,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    code: int,
    says: str,
) -> None:
    monkeypatch.setenv(f"DISPATCHER_{name}", value)
    ran = run("submit", *TO, *AT)
    assert ran.code == code
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert SECRET not in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("url", "extra"),
    [("postgresql://ada@host/x", "postgres"), ("mariadb://ada@host/x", "mysql")],
)
def test_a_missing_driver_is_named_with_the_extra_that_brings_it(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, url: str, extra: str
) -> None:
    for driver in ("psycopg", "pymysql"):
        monkeypatch.setitem(sys.modules, driver, None)
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", url)
    ran = run("list")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(f"; accepted: pip install 'quota-dispatcher[{extra}]'\n")


@pytest.mark.parametrize("folder", ["a file/below", "a file"])
def test_a_folder_that_cannot_be_made_is_named(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("DISPATCHER_DATA_DIR", str(tmp_path / folder))
    ran = run("up")
    assert (ran.code, ran.out) == (6, "")
    assert ran.err.startswith(f"error: embedded environment unavailable: {tmp_path / folder} ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("command", ["worker", "up"])
@pytest.mark.parametrize("transport", ["no_such_module:send", "smpt"])
def test_worker_and_up_refuse_a_channel_that_cannot_work(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, command: str, transport: str
) -> None:
    monkeypatch.setenv("DISPATCHER_CHANNELS", f'{{"sms": {{"transport": "{transport}"}}}}')
    ran = run(command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: channels.sms.transport: ")
    assert ran.err.count("\n") == 1
    assert transport in ran.err


@pytest.mark.parametrize(
    "words", [("-P", "gevent"), ("-Peventlet",), ("--pool", "eventlet"), ("--pool=gevent",)]
)
def test_a_worker_refuses_pools_of_greenlets(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """They would replace parts of Python after the imports, deliver nothing and ignore SIGTERM."""
    started: list[str] = []
    monkeypatch.setattr(services, "_celery", lambda *arguments: started.extend(arguments))
    ran = run("worker", "-c", "2", *words)
    assert (ran.code, ran.out, started) == (2, "", [])
    assert re.match(r"error: --pool: (gevent|eventlet) would deliver nothing", ran.err)
    assert "`dispatcher worker -c 32`" in ran.err
    assert run("worker", "-P", "solo").code == 0
    assert "--pool=solo" in started


@pytest.mark.parametrize("command", ["worker", "beat"])
@pytest.mark.parametrize("url", ["pigeon://ada:{}@host", "redis://:{}@127.0.0.1/0?loft=7"])
def test_a_broker_that_cannot_be_read_is_said_before_the_start(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, url: str, command: str
) -> None:
    monkeypatch.setenv("DISPATCHER_BROKER_URL", url.format(SECRET))
    ran = run(command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: broker_url: cannot be read; accepted: redis://…")
    assert ran.err.count("\n") == 1
    assert SECRET not in ran.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "command", [["list"], ["list", "--json"], ["export"], ["version", "--json"]]
)
def test_an_output_that_takes_no_more_is_one_sentence(house: House, command: list[str]) -> None:
    submitted(house)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dispatcher", *command],
            stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    said = done.stderr.decode()
    assert (done.returncode, said.count("\n")) == (1, 1), said
    assert said.startswith("error: standard output took no more (No space left on device)")


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&- <&-"])
def test_a_closed_output_stops_no_command(house: House, streams: str) -> None:
    command = f"exec {sys.executable} -m dispatcher keys add shop {streams}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert house.sql("SELECT name FROM dispatcher_api_keys") == [("shop",)]


def test_modules_of_the_working_directory_are_found(tmp_path: Path) -> None:
    """As by celery, and by ``python -m dispatcher``: settings name transports and types there."""
    tmp_path.joinpath("shapes.py").write_text(
        "from pydantic import BaseModel\n\nclass Body(BaseModel):\n    words: str\n"
    )
    tmp_path.joinpath("dispatcher.toml").write_text(
        '[channels.sms]\ntransport = "memory"\nbody = "shapes:Body"\n'
    )
    script = Path(sys.executable).with_name("dispatcher")
    wrong = ["submit", "--channel=sms", "--recipient=ada", "--text=hello", "--send-in=1 day"]
    ran = subprocess.run(
        [script, *wrong], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr.partition("words: is missing")[1] != "") == (2, True), (
        ran.stderr
    )
