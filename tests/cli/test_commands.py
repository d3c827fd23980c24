"""Every command: its help and examples, what it does and prints, and how it ends."""

from __future__ import annotations

import json
import re
import shlex
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dispatcher import Message, PermanentFailure, Status
from dispatcher.cli import app, every_command
from dispatcher.cli.app import COMMANDS
from dispatcher.times.send_time import as_text
from tests.cli.conftest import Run, house_with
from tests.support.house import House

MESSAGE_FIELDS = set(Message.__dataclass_fields__)
STORY_FIELDS = {"attempts", "reservations", "status_host", "notified_status", "next", "pauses"}
TO = ("--channel", "memory", "--recipient", "ada")
SOON = ("--send-in", "10 minutes")


def submit(run: Run, *more: str) -> dict[str, Any]:
    ran = run("submit", *TO, "--text", "hello", *(more or SOON), "--json")
    assert (ran.code, ran.err) == (0, "")
    data: dict[str, Any] = ran.data
    return data


def test_help_lists_every_command_and_the_exit_codes() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert CliRunner().invoke(app, ["-h"], env={"COLUMNS": "200"}).output == shown.output
    assert "Exit codes" in shown.output
    for command in COMMANDS:
        assert command in shown.output
        helped = CliRunner().invoke(app, [command, "--help"])
        assert helped.exit_code == 0
        is_group = command in ("windows", "keys", "quotas", "events", "series", "zones")
        assert f"$ dispatcher {command}" in helped.output or is_group
        assert "<bool>" not in helped.output, "a flag takes no value"


def test_submit_as_json_has_every_field_and_for_people_says_id_status_and_time(
    house: House, run: Run
) -> None:
    data = submit(run)
    assert set(data) == MESSAGE_FIELDS
    assert (list(data)[:2], data["scopes"]) == (["id", "status"], None)
    stored = house.dispatcher.get(data["id"])
    assert (stored.recipient, stored.body, stored.scope) == ("ada", {"text": "hello"}, "ada")
    assert data["send_at"] == as_text(stored.send_at)
    people = run("submit", "--channel", "memory", "--recipient", "ben", "--text", "hello", *SOON)
    [ben] = [*house.dispatcher.select(recipient="ben")]
    assert people.out.split() == [str(ben.id), "is", "scheduled", "for", as_text(ben.send_at)]


def test_times_are_said_by_the_clocks_of_the_zone_that_was_given(house: House, run: Run) -> None:
    nine, next_one = (f"2028-07-03T{at}:00.000+05:30" for at in ("09:00", "09:01"))
    zoned = ("--send-at", "2028-07-03T09:00", "--zone", "Asia/Kolkata")
    one = run("submit", *TO, "--text", "one", *zoned)
    assert one.out.endswith(f" is scheduled for {nine}\n")
    late = ("--send-at", "2028-07-03T23:00", "--zone", "Asia/Kolkata")
    quiet = ("--quiet-hours", "22:00-08:00")
    for command, local in (
        (("submit", *TO, "--text", "two", *zoned), next_one),
        (("reschedule", submit(run, "--send-in", "1 day")["id"], *zoned), next_one),
        (("submit", *TO, "--text", "two", *late, *quiet), "2028-07-04T08:00:00.000+05:30"),
    ):
        refused = run(*command)
        assert refused.code == 3
        assert refused.err.endswith(f"; by the clocks of Asia/Kolkata that is {local}\n")
    slot = ("next-slot", "--recipient", "ada", "--after", *zoned[1:])
    assert run(*slot).out == f"{next_one}\n"
    instant = datetime.fromisoformat(run(*slot, "--json").data["next_slot"])
    assert instant == datetime.fromisoformat(next_one)
    shifted = run("submit", *TO, "--text", "two", *zoned, "--on-conflict", "shift").out
    assert shifted.endswith(f" is scheduled for {next_one}; requested: {nine}\n")
    plain = run("submit", *TO, "--text", "three", "--send-at", "2028-07-03T03:30Z")
    assert (plain.code, "by the clocks" in plain.err) == (3, False)


def test_submit_takes_every_option(house: House, run: Run) -> None:
    options = [
        *("submit", *TO, "--body", '{"a": [1, null]}', "--send-at", "2028-10-29T02:30"),
        *("--zone", "Europe/Berlin", "--fold", "1", "--scope", "family", "--key", "k"),
        *("--expires-at", "2028-10-30T00:00Z", "--on-conflict", "shift", "--on-unknown", "hold"),
        *("--latest", "2028-10-29T12:00Z", "--json"),
    ]
    first, again = run(*options).data, run(*options).data
    assert first == again
    stored = house.dispatcher.get(first["id"])
    assert stored.send_at == datetime(2028, 10, 29, 1, 30, tzinfo=UTC)
    assert stored.expires_at == datetime(2028, 10, 30, tzinfo=UTC)
    assert (stored.scope, stored.idempotency_key, stored.body) == ("family", "k", {"a": [1, None]})
    assert stored.on_unknown == "hold"
    data = submit(run, *SOON, "--expire-after", "10 minutes")
    again = run("reschedule", data["id"], "--send-in", "1 hour", "--expire-after", "5 minutes")
    assert again.code == 0
    moved = house.dispatcher.get(data["id"])
    assert (data["expire_after"], moved.expire_after) == (600.0, timedelta(minutes=5))


@pytest.mark.parametrize("outcome", ["sent", "failed"])
def test_control_characters_of_bodies_and_receipts_reach_no_terminal(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    evil = "\x1b]0;renamed\x07\x1b[2J\r\n\x9b31m\u202ekcatta"

    def answer(*_: object) -> str:
        if outcome == "failed":
            raise PermanentFailure(evil)
        return evil

    monkeypatch.setattr(type(house.memory), "send", answer)
    message = house.submit(body={"text": evil})
    house.deliver(message)
    data = json.loads(run("show", str(message.id), "--json").out)
    [attempt] = data["attempts"]
    assert evil in (attempt["receipt"] or attempt["error"])
    assert data["body"] == {"text": evil}
    commands = (("show", str(message.id)), ("show", str(message.id), "--json"),
                ("list", "--json"), ("export", "--bodies"))  # fmt: skip
    for command in commands:
        out = run(*command).out
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out), command
        assert "renamed" in out
    assert r"\u001b]0;renamed\u0007" in run("show", str(message.id)).out.split("what happened")[1]


def test_list_filters_and_limits(house: House, run: Run) -> None:
    first = submit(run)
    second = house.submit("ben", channel="file", send_in=timedelta(minutes=10))
    house.dispatcher.cancel(second.id)
    assert [line["id"] for line in run("list", "--json").lines] == [str(second.id), first["id"]]
    assert [line["id"] for line in run("list", "--limit", "1", "--json").lines] == [str(second.id)]
    [only] = run("list", "--recipient", "ada", "--json").lines
    assert (only["id"], set(only)) == (first["id"], MESSAGE_FIELDS)
    table = run("list")
    assert first["id"] in table.out
    assert "hello" not in table.out, "a list shows no bodies"
    page = run("list", "--limit", "1")
    assert f"there are more: --after {second.id}" in page.out
    rest = run("list", "--limit", "1", "--after", str(second.id))
    assert (first["id"] in rest.out, "there are more" in rest.out) == (True, False)
    assert run("list", "--recipient", "nobody", "--json").lines == []
    assert run("list", "--recipient", "nobody").out == "no messages\n"


def test_list_shows_times_in_the_zone_of_the_settings_as_timeline_does(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.submit("ada", send_at="2028-07-03T12:00Z")
    monkeypatch.setenv("DISPATCHER_ZONE", "Asia/Kolkata")
    timeline = run("timeline", "ada", "--start", "2028-07-03T12:00Z").out
    assert timeline.startswith("ada  Mon 03 Jul 2028 17:30")
    for zone, hour in (("Asia/Kolkata", "17:30"), ("UTC", "12:00")):
        shown = run("list", *(("--zone", zone) if zone == "UTC" else ())).out
        assert f"send at ({zone})" in shown
        assert f"2028-07-03 {hour}:00" in shown


def test_next_slot_says_that_a_recipient_has_opted_out(house: House, run: Run) -> None:
    slot = ("next-slot", "--recipient", "ada")
    of_channel = (*slot, "--channel", "memory")
    assert run(*of_channel).err == ""
    house.dispatcher.suppress("ada", channel="memory")
    ran = run(*of_channel)
    assert (ran.code, len(ran.out.splitlines())) == (0, 1)
    assert ran.err.startswith("warning: the recipient has opted out of memory")
    assert run(*of_channel, "--json").data["suppressed"] is True
    assert run(*slot, "--json").data["suppressed"] is False
    house.dispatcher.suppress("ada")
    assert "has opted out of every channel" in run(*slot).err
    assert "suppressed" not in run("next-slot", "--scope", "ada", "--json").data


def test_a_shell_completes_commands_and_channels(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(words: str) -> str:
        monkeypatch.setenv("_DISPATCHER_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        return CliRunner().invoke(app, [], prog_name="dispatcher").output

    assert "reschedule" in completed("dispatcher re")
    assert completed("dispatcher list --channel m").strip() == "memory"
    monkeypatch.setenv("DISPATCHER_CONFIG", "/nowhere.toml")
    assert completed("dispatcher list --channel m").strip() == ""


@pytest.mark.parametrize("command", [["list"], ["status"], ["submit", *TO, "--text=x", *SOON]])
def test_a_command_makes_no_sqlite_file_and_names_the_missing_one(
    house: House, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    path = tmp_path / "new.db"
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", f"sqlite:///{path}")
    run(*command).is_refused(6, f"there is no file {path}; run `dispatcher migrate`")
    assert not path.exists()
    assert run("migrate").code == 0
    assert run(*command).code == 0


def test_migrate_in_a_fresh_folder_makes_the_private_data_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "DATA_DIR"):
        monkeypatch.delenv(f"DISPATCHER_{name}", raising=False)
    ran = run("migrate")
    assert (ran.code, ran.err) == (0, "")
    folder = tmp_path / ".dispatcher"
    assert (folder / "dispatcher.db").exists()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("kind", "name", "typed"),
    [("channel", "memory", "memory"), ("campaign", "summer sale", "'summer sale'")],
)
def test_a_pause_is_shown_until_it_is_resumed(
    kind: str, name: str, typed: str, house: House, run: Run
) -> None:
    message = house.submit("ada", campaign="summer sale")
    ran = run("pause", kind, name)
    assert (ran.code, ran.err) == (0, "")
    assert kind in ran.out
    assert name in ran.out
    assert f"{kind} {name}: dispatcher resume" in run("status").out
    assert f"it is paused: dispatcher resume {kind} {typed}" in run("show", str(message.id)).out
    [pause] = run("status", "--json").data["pauses"]
    assert (pause["kind"], pause["name"]) == (kind, name)
    assert run("resume", kind, name).out == "nothing is paused\n"
    assert run("show", str(message.id), "--json").data["pauses"] == []


def test_show_tells_what_delays_a_message_and_until_when(house: House, run: Run) -> None:
    message = house.submit("ada")
    due_at = datetime(2100, 1, 1, 13, tzinfo=UTC)
    house.change([message], delayed_by="channel memory: 1/hour", next_attempt_at=due_at)
    shown = run("show", str(message.id)).out
    assert "next: delayed by channel memory: 1/hour; it is due at 2100-01-01 13:00:00" in shown
    data = run("show", str(message.id), "--json").data
    assert data["delayed_by"] == "channel memory: 1/hour"


def test_an_event_is_set_moved_with_its_messages_and_cancelled(house: House, run: Run) -> None:
    local, zone = "2028-06-02T09:00:00.000", "Europe/Berlin"
    ran = run("events", "set", "a:17", "2028-06-02T09:00", "--zone", zone)
    assert ran.out == f"a:17 is at 2028-06-02T07:00:00.000Z ({local} {zone})\n"
    submit(run, "--event", "a:17", "--offset=-1 day")
    run("events", "move", "a:17", "2028-10-30T09:00")
    [listed] = house.dispatcher.list(event="a:17").messages
    assert listed.send_at == datetime(2028, 10, 29, 8, tzinfo=UTC)
    assert run("list", "--event", "a:17", "--json").data["wish"] == "-1 day"
    assert run("events", "show", "a:17", "--json").data["zone"] == zone
    assert run("events", "cancel", "a:17").out.startswith("a:17 was cancelled")
    assert house.again(listed).status is Status.CANCELLED
    refused = run("events", "move", "a:17", "2028-10-31T09:00")
    assert (refused.code, "was cancelled" in refused.err) == (2, True)


@house_with(
    quotas="1000/hour",
    channels={"memory": {"transport": "memory", "templates": {"hi": {"text": "Hi {{ who }}"}}}},
)
def test_a_series_is_added_changed_paused_and_removed(
    house: House, run: Run, tmp_path: Path
) -> None:
    members = tmp_path / "members.csv"
    members.write_text("recipient,zone,who\nada,Asia/Tokyo,Ada\nben,,Ben\n", encoding="utf-8")
    ran = run("series", "add", "news", "0 9 * * *", "--start", "2028-06-02T00:00",
              "--zone", "local", "--channel", "memory", "--recipients", str(members),
              "--template", "hi", "--data", '{"who": "you"}', "--to", "cyd",
              "--missed", "none")  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "news: FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0 from 2028-06-02T00:00:00 local "
        "on memory to cyd and 2 more\n"
    )
    assert run("series", "preview", "news", "--count", "2", "--zone", "Asia/Tokyo").out == (
        "2028-06-02T09:00:00.000+09:00\n2028-06-03T09:00:00.000+09:00\n"
    )
    shown = run("series", "show", "news", "--json").data
    assert shown["recipients"] == [
        ["cyd", None, None], ["ada", "Asia/Tokyo", {"who": "Ada"}], ["ben", None, {"who": "Ben"}]
    ]  # fmt: skip
    run("series", "change", "news", "--rule", "0 18 * * *", "--times", "2", "--recipient", "ada")
    assert run("series", "preview", "news", "--json").lines == [
        "2028-06-02T18:00:00.000Z", "2028-06-03T18:00:00.000Z"
    ]  # fmt: skip
    assert house.dispatcher.series.get("news").missed == "none"
    assert [row["name"] for row in run("series", "list", "--json").lines] == ["news"]
    assert run("series", "list").out.split()[-5:-2] == ["news", "memory", "local"]
    assert run("series", "pause", "news").out == "news is paused\n"
    assert house.dispatcher.pauses()
    assert run("series", "resume", "news", "--json").data == {"name": "news", "cancelled": 0}
    assert run("series", "remove", "news").out == "news was removed\n"
    assert run("series", "list").out == "no series\n"


UNREADABLE: list[tuple[tuple[str, ...], str]] = [
    ((), "--recipients: is missing; accepted: one, several"),
    (("--to", "ada"), "body: "),
    (("--to", "ada", "--text", "x", "--body", "{}"), "--body: "),
    (("--to", "ada", "--text", "x", "--times", "0"), "--times: 0"),
    (("--to", "ada", "--text", "x", "--until", "soon"), "--until: "),
    (("--to", "ada", "--text", "x", "--spread", "wide"), "--spread: "),
    (("--to", "ada", "--text", "x", "--recipients", "members"), "--recipients: a list"),
    (("--recipients", "members", "--text", "x"), "no 'members' in series_recipients"),
    (("--recipients", "none.csv", "--text", "x"), "cannot read the file"),
    (("--recipients", "bad.csv", "--text", "x"), "row 3 of the file"),
    (("--recipients", "long.csv", "--text", "x"), "row 2 of the file"),
    (("--recipients", "latin.csv", "--text", "x"), "cannot read the file"),
]


def test_a_series_that_cannot_be_read_is_refused(house: House, run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("recipient,zone\nada,\n,UTC\n")
    (tmp_path / "long.csv").write_text("recipient\nada,UTC\n")
    (tmp_path / "latin.csv").write_bytes("recipient\nÄda\n".encode("latin-1"))
    for more, says in UNREADABLE:
        run("series", "add", "daily", "0 9 * * *", "--channel", "memory", *more).is_refused(2, says)
        assert house.dispatcher.series.list() == []


def test_quotas_of_one_scope_are_set_listed_and_unset(house: House, run: Run) -> None:
    for minutes in range(3):
        house.submit("ada", send_in=timedelta(hours=1, minutes=minutes))
    ran = run("quotas", "set", "recipient", "ada", "2/hour", "9/day in UTC")
    assert ran.out == (
        "recipient ada has 2/hour; 9/day in UTC\n"
        "bookings to come that are more than that: 1; they stay\n"
    )
    assert "2/hour; 9/day in UTC" in run("quotas", "list").out
    assert run("quotas", "list", "recipient", "--json").data["quotas"] == ["2/hour", "9/day in UTC"]
    unset = run("quotas", "unset", "recipient", "ada", "--json").data
    assert (unset["own"], unset["over"]) == (False, 0)
    assert run("quotas", "list").out == "no scope has quotas or limits of its own\n"


@house_with(scopes={"tenant": {"quotas": "100/hour"}})
@pytest.mark.usefixtures("house")
def test_limits_of_one_scope_are_set_listed_and_unset(run: Run) -> None:
    ran = run("quotas", "set", "tenant", "acme", "10/second", "9/day in UTC", "--limits")
    assert ran.out.endswith(", and limits of 10/second; 9/day in UTC\n")
    assert "10/second; 9/day in UTC" in run("quotas", "list").out
    [listed] = [run("quotas", "list", "tenant", "--json").data]
    assert (listed["own"], listed["limits"]) == (False, ["10/second", "9/day in UTC"])
    assert run("quotas", "unset", "tenant", "acme", "--limits", "--json").data["limits"] == []


SHELL = re.compile(r"\s+[|<>]\s+")


def commands(group: Any = None) -> Iterator[Any]:
    group = group or every_command()
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from commands(command)
        else:
            yield command


EXAMPLES = [line for command in commands() for line in re.findall(r"\$ (.+)", command.epilog)]


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_can_be_typed(line: str) -> None:
    program, *words = shlex.split(SHELL.split(line)[0])
    assert program == "dispatcher"
    group: Any = every_command()
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    with group.make_context(group.name, words) as context:
        assert context.args == [] or context.allow_extra_args


def test_a_suppressed_recipient_gets_nothing_until_unsuppressed(house: House, run: Run) -> None:
    message = submit(run)
    ran = run("suppress", "ada", "--json")
    assert (ran.code, ran.data) == (0, {"recipient": "ada", "channel": None, "cancelled": 1})
    assert run("show", message["id"], "--json").data["status"] == "cancelled"
    refused = run("submit", *TO, "--text", "hello", *SOON)
    refused.is_refused(2, "error: --recipient: has opted out of 'memory'")
    assert "cancelled: 0" in run("suppress", "ada", "--channel", "memory").out
    table = run("suppressed").out
    assert re.findall(r"^(ada) +(\w+)", table, re.MULTILINE) == [("ada", "all"), ("ada", "memory")]
    channels = [line["channel"] for line in run("suppressed", "ada", "--json").lines]
    assert channels == [None, "memory"]
    assert run("suppressed", "ben", "--json").lines == []
    assert "still gets nothing on channel memory" in run("unsuppress", "ada").out
    assert run("unsuppress", "ada", "--channel", "memory").out == "ada is not suppressed\n"
    assert run("submit", *TO, "--text", "hello", *SOON).code == 0
    assert len(house.members()) == 1


def test_an_erasure_says_what_it_did(house: House, run: Run) -> None:
    message = submit(run)
    erased = run("erase", "ada", "--yes", "--json").data
    assert erased == {"cancelled": 1, "blanked": 1, "under_way": 0}
    shown = run("show", message["id"], "--json").data
    assert (shown["recipient"], shown["body"], shown["status"]) == ("", {}, "cancelled")
    assert "blanked: 0" in run("erase", "ada", "--yes").out
    assert house.members() == {}


def test_a_key_is_made_listed_rotated_and_revoked(house: House, run: Run) -> None:
    made = run("keys", "add", "shop", "--right", "messages:read", "--channel", "memory")
    assert made.code == 0
    token, told = made.out.splitlines()
    assert token.startswith("dsp_")
    key_id = token.split("_")[1]
    assert key_id in told
    [listed] = run("keys", "list", "--json").lines
    assert (listed["id"], listed["rights"]) == (key_id, ["messages:read"])
    assert listed["channels"] == ["memory"]
    assert "secret" not in str(listed)
    assert run("keys", "add", "shop").code == 2
    second = run("keys", "rotate", "shop", "--overlap", "1 hour", "--json").data
    assert second["rights"] == ["messages:read"]
    assert second["key"] != token
    assert run("keys", "revoke", key_id, "--json").data == [key_id]
    first, other = run("keys", "list", "--json").lines
    assert [bool(key["revoked_at"]) for key in (first, other)] == [True, False]
    table = run("keys", "list").out
    assert key_id in table
    assert run("keys", "revoke", "nobody").code == 2
