"""Transports without a provider: the console, a file, which no torn line spoils, and memory."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Message, TemporaryFailure
from dispatcher.testing import a_message
from dispatcher.times.send_time import as_text
from dispatcher.transports import ConsoleTransport, FileTransport
from tests.support.clock import NOON, MovableClock
from tests.support.doubles import at_once
from tests.support.processes import in_processes

LINES = 60


def message(body: dict[str, Any] | None = None, recipient: str = "ada") -> Message:
    body = body or {"text": "hé\n"}
    return a_message(channel="sms", recipient=recipient, body=body, attempt_count=2)


def test_console_prints_one_line_with_recipient_and_body(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ConsoleTransport().send(message()) is None
    assert capsys.readouterr().out == '[sms] to ada: {"text":"hé\\n"}\n'


def test_no_terminal_obeys_what_the_console_prints(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x9b31m\x85\u202ekcatta\u2066"
    ConsoleTransport().send(message({"text": evil}))
    printed = capsys.readouterr().out
    assert printed[:-1].isprintable()
    assert r"\u009b31m\u0085\u202ekcatta\u2066" in printed


def test_file_writes_one_line_of_json_with_all_that_matters(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "sms.jsonl"
    transport = FileTransport(path, MovableClock())
    assert not path.parent.exists(), "nothing was sent"
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_temporary_failure() -> None:
    with pytest.raises(TemporaryFailure, match="No space left"):
        FileTransport(Path("/dev/full")).send(message())


@pytest.mark.parametrize(
    "taken", [[None, None], [None, 1, None, None], [None, 40, None, None], [40, 1, 40, None]]
)
@pytest.mark.parametrize("by_others", [False, True])
def test_a_line_that_a_full_disk_tore_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int | None], by_others: bool
) -> None:
    """``taken`` are the bytes that the disk takes of each line, None for all."""
    path = tmp_path / "sms.jsonl"
    transport, write = FileTransport(path), os.write
    for number, most in enumerate(taken):
        writer = FileTransport(path) if by_others else transport
        torn = pytest.raises(TemporaryFailure, match="only part of the line")
        with monkeypatch.context() as patch, nullcontext() if most is None else torn:
            patch.setattr(os, "write", lambda fd, data, most=most: write(fd, data[:most]))
            writer.send(message(recipient=f"{number}"))
    written = path.read_bytes()
    whole = [line for line in written.split(b"\n")[:-1] if line.endswith(b"}")]
    expected = [f"{number}" for number, most in enumerate(taken) if most is None]
    assert [json.loads(line)["recipient"] for line in whole] == expected
    assert written.endswith(b"}\n")
    assert b"\n\n" not in written
