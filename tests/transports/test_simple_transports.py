"""The transports that ship, and how a channel's settings become one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dispatcher import Channel, InvalidSettings, Message, Settings, Status, TemporaryFailure
from dispatcher.message import new_id
from dispatcher.times.send_time import as_text
from dispatcher.transports import (
    ConsoleTransport,
    FileTransport,
    MemoryTransport,
    Transport,
    load,
)
from tests.support.clock import NOON, MovableClock
from tests.support.doubles import at_once
from tests.support.processes import in_processes

LINES = 60


def message(body: dict[str, Any] | None = None, recipient: str = "ada") -> Message:
    at = datetime(2100, 1, 1, 12, tzinfo=UTC)
    return Message(
        id=new_id(), channel="sms", recipient=recipient, scope="s", body=body or {"text": "hé\n"},
        send_at=at, next_attempt_at=at, expires_at=None, status=Status.SENDING, attempt_count=2,
        max_attempts=5, idempotency_key=None, created_at=at, finished_at=None, last_error=None,
    )  # fmt: skip


def test_console_prints_one_line_with_recipient_and_body(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ConsoleTransport().send(message()) is None
    assert capsys.readouterr().out == '[sms] to ada: {"text":"hé\\n"}\n'


def test_no_terminal_obeys_what_the_console_prints(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x9b31m\x85\u202ekcatta\u2066"
    ConsoleTransport().send(replace(message(), body={"text": evil}))
    printed = capsys.readouterr().out
    assert printed[:-1].isprintable()
    assert r"\u009b31m\u0085\u202ekcatta\u2066" in printed


def test_file_writes_one_line_of_json_with_all_that_matters(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "sms.jsonl"
    transport = FileTransport(path, MovableClock())
    sent = message()
    assert transport.send(sent) is None
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "id": str(sent.id),
        "channel": "sms",
        "recipient": "ada",
        "body": {"text": "hé\n"},
        "send_at": "2100-01-01T12:00:00.000Z",
        "sent_at": as_text(NOON),
        "attempt": 2,
    }
    assert path.stat().st_mode & 0o077 == 0, "bodies are not for everybody's eyes"


def test_file_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "sms.jsonl"
    path.write_text("before\n")
    FileTransport(path).send(message())
    assert path.read_text().startswith("before\n{")


def _write_all(gate: Any, number: int, path: Path) -> None:
    transport = FileTransport(path)
    gate.wait(60)
    for n in range(LINES):
        transport.send(message({"text": "x" * 20_000}, f"{number}-{n}"))


def test_threads_and_processes_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "sms.jsonl"
    in_processes(4, _write_all, path)
    transport = FileTransport(path)
    at_once([lambda: transport.send(message(recipient="thread"))] * 16)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    recipients = {line["recipient"] for line in lines}
    assert recipients == {f"{p}-{n}" for p in range(4) for n in range(LINES)} | {"thread"}
    assert len(lines) == 4 * LINES + 16


def test_a_disk_that_takes_nothing_is_a_temporary_failure(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "sms.jsonl"
    gone = FileTransport(path)
    path.mkdir()
    with pytest.raises(TemporaryFailure, match="cannot write: Is a directory"):
        gone.send(message())


def test_a_file_whose_folder_is_gone_is_made_again_and_one_made_for_nothing_goes(
    tmp_path: Path,
) -> None:
    unused, used = tmp_path / "unused" / "sms.jsonl", tmp_path / "used" / "sms.jsonl"
    for path in (unused, used):
        transport = FileTransport(path)
        if path is used:
            path.parent.rmdir()
            transport.send(message())
        transport.close()
    assert not unused.parent.exists()
    assert used.parent.stat().st_mode & 0o077 == 0
    assert len(used.read_text().splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_temporary_failure() -> None:
    with pytest.raises(TemporaryFailure, match="No space left"):
        FileTransport(Path("/dev/full")).send(message())


def test_memory_remembers_and_fails_on_demand() -> None:
    transport = MemoryTransport()
    first, second = message(), message()
    assert transport.send(first) == "memory-1"

    def fail(_: Message) -> None:
        raise TemporaryFailure("busy", timedelta(seconds=1))

    transport.before = fail
    with pytest.raises(TemporaryFailure):
        transport.send(second)
    transport.before = None
    assert transport.send(second) == "memory-2"
    assert transport.sent == [first, second]


class Configured:
    """A transport of a user's own."""

    def __init__(self, *, address: str = "nowhere") -> None:
        if not address:
            raise ValueError("address: must not be empty")
        self.address = address

    def send(self, message: Message) -> str | None:
        return f"{self.address} {message.recipient}"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ModuleType]:
    """Give an importable module with things that are, and are not, transports."""
    module = ModuleType("own_transports")
    module.__dict__.update(
        function=lambda message: f"function {message.recipient}",
        Class=Configured,
        instance=Configured(address="made before"),
        NoSend=type("NoSend", (), {}),
        number=4711,
    )
    sys.modules["own_transports"] = module
    yield module
    del sys.modules["own_transports"]


def made(transport: str, tmp_path: Path, **options: Any) -> Transport:
    settings = Settings.load(data_dir=tmp_path)
    return load("sms", Channel(transport=transport, options=options), settings)


@pytest.mark.parametrize(
    ("transport", "options", "receipt"),
    [
        ("own_transports:function", {}, "function ada"),
        ("own_transports:Class", {}, "nowhere ada"),
        ("own_transports:Class", {"address": "there"}, "there ada"),
        ("own_transports:instance", {}, "made before ada"),
        ("memory", {}, "memory-1"),
    ],
)
def test_a_callable_a_class_and_an_instance_are_transports(
    own: ModuleType, tmp_path: Path, transport: str, options: dict[str, Any], receipt: str
) -> None:
    assert made(transport, tmp_path, **options).send(message()) == receipt


def test_the_file_transport_writes_into_the_data_folder_or_where_it_is_told(tmp_path: Path) -> None:
    made("file", tmp_path).send(message())
    assert (tmp_path / "sent" / "sms.jsonl").is_file()
    made("file", tmp_path, path=str(tmp_path / "other.jsonl")).send(message())
    assert (tmp_path / "other.jsonl").is_file()


@pytest.mark.parametrize(
    ("transport", "options", "field", "says"),
    [
        ("fax", {}, "transport", "there is no transport 'fax'"),
        (":function", {}, "transport", "there is no transport"),
        ("own_transports:", {}, "transport", "there is no transport"),
        ("no_such_module_here:send", {}, "transport", "cannot load"),
        ("own_transports:missing", {}, "transport", "cannot load"),
        ("own_transports:number", {}, "transport", "can not be called"),
        ("own_transports:NoSend", {}, "transport", "can not be called"),
        ("own_transports:function", {"a": 1}, "options", "no class"),
        ("own_transports:instance", {"a": 1}, "options", "no class"),
        ("own_transports:Class", {"port": 1}, "options", "port"),
        ("own_transports:Class", {"address": ""}, "options", "must not be empty"),
        ("console", {"colour": "red"}, "options", "colour"),
        ("memory", {"size": 1}, "options", "size"),
        ("file", {"mode": "w"}, "options", "mode"),
        ("file", {"path": "/proc/nowhere/x.jsonl"}, "options", "nowhere"),
        ("file", {"path": 4711}, "options", ""),
    ],
)  # fmt: skip
def test_a_misconfigured_transport_names_its_field(  # noqa: PLR0917 - one table, one test
    own: ModuleType, tmp_path: Path, transport: str, options: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        made(transport, tmp_path, **options)
    assert caught.value.field == f"channels.sms.{field}"
    assert says in caught.value.problem
    assert caught.value.accepted


def test_an_option_that_a_transport_needs_is_named_where_it_is_missing() -> None:
    channel = Channel(transport="smtp", options={"from": "mail@shop.example"})
    with pytest.raises(InvalidSettings, match="is missing") as refused:
        load("email", channel, Settings.load())
    assert refused.value.field == "channels.email.options.url"


def test_a_channel_without_a_transport_is_refused_by_the_settings() -> None:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(channels={"sms": {"transport": ""}})
    assert caught.value.field == "channels.sms.transport"
