"""When a command cannot do what is asked: one sentence, the right exit code, no secrets."""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from dispatcher.cli import services
from dispatcher.message import new_id
from dispatcher.times.send_time import as_text
from tests.cli.conftest import Run
from tests.support.house import House
from tests.support.processes import ran

TO = ("--channel", "memory", "--recipient", "ada", "--text", "hello")
AT = ("--send-at", "2028-01-01T11:11:11Z")
SECRET = "hunter2"  # noqa: S105 - looked for where it must not be
ADA = "submit --channel memory --recipient ada"
SUBMIT = f"{ADA} --text hello"
NOON = f"{SUBMIT} {' '.join(AT)}"

# One message is booked for ada at AT under the key k; another one was sent.
MISTAKES = {
    "fly": "dispatcher: no such command 'fly'; accepted: what `dispatcher --help` shows",
    "submit": "dispatcher submit: missing option '--channel'; accepted: ",
    "show": "dispatcher show: missing argument 'ID'; accepted: ",
    "list --chanel sms": "no such option: --chanel",
    "list --status lost": "'--status': 'lost' is not one of 'scheduled', ",
    "list --limit": "option '--limit' requires an argument",
    "submit --channel fax --recipient ada --text x": "there is no channel 'fax'",
    "submit --channel memory --recipient '' --text x --send-in 5": "--recipient: ",
    ADA: "neither or both of --text and --body",
    f"{ADA} --body {{{{": "--body: is not JSON",
    f"{ADA} --body []": "--body: a list",
    SUBMIT: "--send-at: neither of --send-at and --send-in",
    f"{SUBMIT} --send-at 1999-01-01T00:00Z": "is past",
    f"{SUBMIT} --send-at 2028-01-01T11:11": "--send-at: has neither an offset nor a zone",
    f"{SUBMIT} --send-in soon": "--send-in: cannot read 'soon'",
    f"{NOON} --expire-after '-1 hour'": "--expire-after: cannot read '-1 hour'",
    f"{NOON} --latest 2028-01-02T00:00Z": "--latest: given without --on-conflict",
    f"{NOON} --count tenant=acme": "--count: there is no kind 'tenant'",
    f"{NOON} --priority 101": "--priority: 101; accepted: a whole number from -100 to 100",
    f"{NOON} --priority high": "--priority",
    "list --priority-from 101": "--priority-from: 101",
    "update {booked} --priority 101": "--priority: 101",
    "update {booked}": "neither or both of --text and --body",
    "update --campaign summer --text x": "ID: not exactly one is given",
    "update --priority 5": "no message is named",
    "update {booked} {booked} --priority 5 --text ''": "ID: not exactly one is given",
    "reschedule --all --later soon": "--later: cannot read 'soon'",
    "reschedule {booked} --send-at 1999-01-01T00:00Z": "--send-at: 1999-01-01T00:00:00+00:00 is p",
    "reschedule {booked} --later '1 hour' --send-in 5": "--send-at: not exactly one time",
    "cancel --yes": "no message is named",
    "cancel --status sent": "--status: this command does not apply to sent",
    "drop {booked} --channel memory": "given together with a filter",
    "status --since x": "--since: cannot read 'x'",
    "status --since 0": "accepted",
    "status --every 0.01": "--every",
    f"status --campaign {'c' * 65}": "--campaign",
    "load --within '30 days'": "--within",
    "top --limit 0": "--limit",
    "top --within x": "--within: cannot read 'x'",
    "refusals --quota 3": "--quota",
    "show 4711": "is no message id",
    "next-slot": "neither recipient nor scope",
    "list --limit 0": "--limit: ",
    "list --after 4711": "--after: ",
    "list --from tomorrow": "or a date (2026-12-24)\n",
    "list --from 2026-02-02 --to 2026-02-01": "--to: is not later than --from",
    "list --key ''": "--key: 0 characters",
    "list --count tenant": "--count: cannot read 'tenant'",
    "list --count tenant=acme --count tenant=b": "--count: 'tenant' is given more than once",
    "list --count tenant=acme": "--count: there is no kind 'tenant'",
    "pause customer acme": "customer",
    "quotas set customer acme 1/hour": "KIND: ",
    "quotas set recipient ada 1/fortnight": "QUOTA...: ",
    "quotas unset customer acme": "customer",
    "suppress ada --channel fax": "fax",
    "windows rebuild --yes --shard 99": "shards: there is no shard 99; accepted: 0 to 3",
    "timeline ada --hours 3 --days 3": "hours: given together with days",
    "timeline ada --channel fax": "there is no channel 'fax'",
    "timeline ada --days 400": "length: ",
    "timeline": "SCOPE: not given",
    "timeline --channel memory": "'memory' as a whole has no quotas (channels.memory.quotas)",
    "keys add shop --right everything": "messages:read",
    "keys add shop --channel fax": "memory",
    "keys add shop --count tenant=acme": "the settings have no kinds",
    "keys add shop --count acme": "KIND=NAME",
    "keys add shop --rate fast": "N/unit",
    "keys add shop --expires-in '0 days'": "90 days",
}
REFUSALS = {
    f"{SUBMIT} --send-at 2028-01-01T11:11:12Z": (3, "next free slot is 2028-01-01T11:12:11+00:00"),
    **{f"{verb} {{nobody}}": (4, "there is no message") for verb in ("show", "cancel", "retry")},
    "cancel {sent}": (5, "is already sent"),
    "retry {sent}": (5, "is already sent"),
    "reschedule {sent} --send-in '1 hour'": (5, "already sent"),
    "update {sent} --text 'too late'": (5, "already sent"),
    "update {sent} --priority 7": (5, "already sent"),
    f"{SUBMIT} --send-in 5 --key k": (5, "which has other content"),
}
CASES = [*((line, 2, says) for line, says in MISTAKES.items()),
         *((line, *said) for line, said in REFUSALS.items())]  # fmt: skip


def test_an_error_is_one_sentence_with_its_exit_code(house: House, run: Run) -> None:
    booked = house.submit(send_at=AT[1], idempotency_key="k").id
    sent = house.submit("ben")
    house.deliver(sent)
    before = house.snapshot()
    for line, code, says in CASES:
        words = line.format(booked=booked, sent=sent.id, nobody=new_id())
        run(*shlex.split(words)).is_refused(code, says)
        assert house.snapshot() == before, line


def test_an_error_is_json_too_where_that_is_asked_for(house: House, run: Run) -> None:
    at = datetime.fromisoformat(AT[1])
    booked = run("submit", *TO, *AT, "--json")
    refused = run("submit", *TO, *AT, "--json")
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
    unknown = run("list", "--chanel", "sms", "--json")
    assert (unknown.code, unknown.data["text"] in unknown.err) == (2, True)
    house.redis.flushall()
    lost = run("submit", *TO, *AT, "--json")
    assert (lost.code, lost.data["error"]) == (6, "ReservationsUnavailable")


SUBMITTED = " ".join((*("submit", *TO), *AT))
CHANNEL = "error: channels.sms.transport: "
PIGEON, LOFT = f"pigeon://ada:{SECRET}@host", f"redis://:{SECRET}@127.0.0.1/0?loft=7"
UNREADABLE = "error: broker_url: cannot be read; accepted: redis://…"


@pytest.mark.parametrize(
    ("line", "name", "value", "code", "says"),
    [
        *((SUBMITTED, *case) for case in (
            ("DATABASE_URL", "sqlite:////nowhere/here/x.db", 6,
             "there is no folder /nowhere/here; "),
            ("DATABASE_URL", "sqlite:////", 6, "or run the command as its owner"),
            ("DATABASE_URL", f"oracle://ada:{SECRET}@host/x", 2, "database_url: "),
            ("DATABASE_URL", f"postgresql+nothing://ada:{SECRET}@host/x", 2, ", postgresql://…, "),
            ("REDIS_URL", f"redis://:{SECRET}@127.0.0.1:1/0", 6,
             "Redis at 127.0.0.1:1 cannot be reached; start it, let this machine reach it, or co"),
            ("REDIS_URL", "unix:///nowhere/redis.sock", 6, "`dispatcher up` runs one here"),
            ("REDIS_URL", f"http://:{SECRET}@host", 2, "redis_url: "),
            ("HORIZON", "2 hours", 2, "horizon: "),
            ("QUOTAS", "1/fortnight", 2, "quotas"),
            ("ZONE", "Mars", 2, "error: zone: "),  # not --zone
        )),
        *((command, "CHANNELS", f'{{"sms": {{"transport": "{transport}"}}}}', 2, CHANNEL + says)
          for command in ("worker", "up") for transport, says in (
            ("no_such_module:send", "cannot load 'no_such_module:send' ("),
            ("smpt", "there is no transport 'smpt'; accepted: console, "),
        )),
        *((command, "BROKER_URL", url, 2, UNREADABLE)
          for command in ("worker", "beat") for url in (PIGEON, LOFT)),
        ("up", "DATA_DIR", "a file/below", 6,
         "/a file/below cannot be written to ("),
        ("up", "DATA_DIR", "a file", 6, "/a file cannot be written to ("),
        ("list", "DATABASE_URL", "postgresql://ada@host/x", 2,
         "; accepted: pip install 'quota-dispatcher[postgres]'\n"),
        ("list", "DATABASE_URL", "mariadb://ada@host/x", 2,
         "; accepted: pip install 'quota-dispatcher[mysql]'\n"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_said_without_its_secrets(  # noqa: PLR0917 - one table, one test
    house: House,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    name: str,
    value: str,
    code: int,
    says: str,
) -> None:
    Path("a file").touch()
    if line == "list":
        for driver in ("psycopg", "pymysql"):
            monkeypatch.setitem(sys.modules, driver, None)
    monkeypatch.setenv(f"DISPATCHER_{name}", value)
    ran = run(*line.split())
    ran.is_refused(code, says)
    assert SECRET not in ran.err


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
    ran.is_refused(2, "error: --pool: ", " would deliver nothing", "`dispatcher worker -c 32`")
    assert started == []
    assert run("worker", "-P", "solo").code == 0
    assert "--pool=solo" in started


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_takes_no_more_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dispatcher", "version", "--json"],
            stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    said = done.stderr.decode()
    assert (done.returncode, said.count("\n")) == (1, 1), said
    assert said.startswith("error: cannot write to standard output (No space left on device)")


@pytest.mark.long
def test_closed_streams_stop_no_command(house: House) -> None:
    command = f"exec {sys.executable} -m dispatcher keys add shop >&- 2>&- <&-"
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
    done = ran(script, *wrong, cwd=tmp_path, timeout=60)
    assert (done.returncode, "words: is missing" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("arguments", [[], ["keys"]])
def test_without_a_command_there_is_help(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert "error" not in ran.err
    assert "Usage: dispatcher" in ran.out + ran.err
