"""A disk that takes half a line costs that line, not the next one."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatcher import Message, Status, TemporaryFailure
from dispatcher.message import new_id
from dispatcher.transports import FileTransport

TORN = 40


def message(recipient: str) -> Message:
    at = datetime(2100, 1, 1, 12, tzinfo=UTC)
    return Message(
        id=new_id(), channel="sms", recipient=recipient, scope="s", body={"text": "hé\n"},
        send_at=at, next_attempt_at=at, expires_at=None, status=Status.SENDING, attempt_count=1,
        max_attempts=5, idempotency_key=None, created_at=at, finished_at=None, last_error=None,
    )  # fmt: skip


def tear(transport: FileTransport, monkeypatch: pytest.MonkeyPatch, *, bytes_taken: int) -> None:
    """Send something to a disk that takes so many bytes and is full until that send has ended."""
    write, left = os.write, bytes_taken

    def short(target: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(target, bytes(data)[:left])
        left -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr("dispatcher.transports.file.os.write", short)
        with pytest.raises(TemporaryFailure):
            transport.send(message("torn"))


def whole_lines(path: Path) -> list[str]:
    """Recipients of the lines that can be read."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(json.loads(line)["recipient"])
        except ValueError:
            continue
    return found


def test_after_a_short_write_the_next_message_stands_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sms.jsonl"
    transport = FileTransport(path)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(
            "dispatcher.transports.file.os.write", lambda fd, data: write(fd, data[:TORN])
        )
        with pytest.raises(TemporaryFailure):
            transport.send(message("torn"))
    transport.send(message("next"))
    assert whole_lines(path) == ["next"]


@pytest.mark.parametrize("bytes_taken", [1, TORN])
def test_the_message_after_a_full_disk_stands_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_taken: int
) -> None:
    path = tmp_path / "sms.jsonl"
    transport = FileTransport(path)
    transport.send(message("before"))
    tear(transport, monkeypatch, bytes_taken=bytes_taken)
    for name in ("next", "and next"):
        transport.send(message(name))
    assert whole_lines(path) == ["before", "next", "and next"]
    assert path.read_bytes().endswith(b"}\n")


def test_a_line_torn_by_another_process_is_left_behind_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sms.jsonl"
    bystander = FileTransport(path)
    bystander.send(message("before"))
    tear(FileTransport(path), monkeypatch, bytes_taken=TORN)
    bystander.send(message("next"))
    assert whole_lines(path) == ["before", "next"]


def test_a_disk_that_stays_full_tears_once_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sms.jsonl"
    transport = FileTransport(path)
    for _ in range(3):
        tear(transport, monkeypatch, bytes_taken=TORN)
    transport.send(message("next"))
    assert whole_lines(path) == ["next"]


def test_without_a_torn_line_nothing_is_added(tmp_path: Path) -> None:
    path = tmp_path / "sms.jsonl"
    for name in ("ada", "ben"):
        FileTransport(path).send(message(name))
    text = path.read_text()
    assert text.count("\n") == 2
    assert "\n\n" not in text
    assert whole_lines(path) == ["ada", "ben"]
