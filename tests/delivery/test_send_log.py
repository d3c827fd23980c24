"""The send logs of a machine: what is left by whom proves which sends had not begun."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest

from dispatcher.delivery import send_log
from dispatcher.delivery.send_log import LeftLog, SendLogs
from tests.support.processes import forking

IDS = tuple(UUID(int=number) for number in range(1, 4))
pytestmark = pytest.mark.skipif(
    not send_log._BOOT_ID.exists(), reason="without a boot id nothing is noted"
)


def left_in(folder: Path) -> list[LeftLog]:
    logs: list[LeftLog] = []
    assert SendLogs(folder).consume(logs.append, limit=100)
    return logs


def _killed(folder: Path, begun: tuple[UUID, ...], mark: str) -> None:
    log = SendLogs(folder).open(IDS)
    (folder / mark).write_text(str(log.mark))
    for id_ in begun:
        assert log.begin(id_)
    os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, *begun: UUID) -> UUID:
    """Let a process die that has claimed all and begun some; return the mark of its claim."""
    name = f"{uuid4()}.mark"
    folder.mkdir(exist_ok=True)
    process = forking().Process(target=_killed, args=(folder, begun, name))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    mark = UUID((folder / name).read_text())
    (folder / name).unlink()
    return mark


def test_a_claim_that_is_over_leaves_no_file(tmp_path: Path) -> None:
    logs = SendLogs(tmp_path)
    for _ in range(3):
        log = logs.open(IDS)
        assert log.begin(IDS[0])
        assert left_in(tmp_path) == [], "a send is under way: nobody may take this process for dead"
        log.close()
    assert list(tmp_path.iterdir()) == []
    first, second = logs.open(IDS), logs.open(IDS)
    assert len([*tmp_path.iterdir()]) == 2
    first.is_kept = True
    for opened in (first, second):
        opened.close()
    assert left_in(tmp_path) == [LeftLog(first.mark, IDS, died=False)]
    assert list(tmp_path.iterdir()) == []


def test_the_folders_of_send_logs_are_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        SendLogs(tmp_path / "data" / "sends").open(IDS)
    finally:
        os.umask(before)
    made = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_left_log_that_could_not_be_settled_is_read_again(tmp_path: Path) -> None:
    killed(tmp_path)
    with pytest.raises(OSError, match="away"):
        SendLogs(tmp_path).consume(Mock(side_effect=OSError("away")), limit=100)
    assert [log.unbegun for log in left_in(tmp_path)] == [IDS]


def test_a_copy_of_the_files_of_a_process_that_is_alive_proves_nothing(tmp_path: Path) -> None:
    """A release is copied to become the next one, whose worker begins while this one goes on."""
    log = SendLogs(tmp_path / "one").open(IDS)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert left_in(tmp_path / "two") == []
    assert log.begin(IDS[0])


def test_a_log_that_its_worker_leaves_is_read_although_a_child_process_has_it_open(
    tmp_path: Path,
) -> None:
    log = SendLogs(tmp_path).open(IDS)
    assert log.descriptor is not None
    of_child = os.dup(log.descriptor)
    assert left_in(tmp_path) == []
    log.is_kept = True
    log.close()
    assert left_in(tmp_path) == [LeftLog(log.mark, IDS, died=False)]
    os.close(of_child)


@pytest.mark.parametrize(
    ("begun", "damage", "unbegun"),
    [
        *((IDS[:number], str, IDS[number:]) for number in range(len(IDS) + 1)),
        (IDS[:1], lambda text: text.splitlines()[0], ()),
        (IDS[:1], lambda _: "", ()),
        (IDS[:1], lambda text: text.split()[0] + " no ids\n", ()),
        (IDS[:1], lambda text: text + IDS[1].hex, IDS[1:]),
        (IDS[:1], lambda text: text + IDS[2].hex[:3] + IDS[1].hex + "\n", IDS[2:]),
        (IDS[:1], lambda text: "of another boot" + text, ()),
        (IDS[:1], lambda text: text.partition(" ")[2], ()),
    ],
    ids=[
        "none begun", "one", "two", "all", "first line cut", "empty", "no ids", "note cut",
        "behind a cut one", "boot", "no seal",
    ],
)  # fmt: skip
def test_the_file_of_a_killed_process_proves_what_was_written_down_whole_and_in_this_boot(
    tmp_path: Path, begun: tuple[UUID, ...], damage: Callable[[str], str], unbegun: tuple[UUID, ...]
) -> None:
    mark = killed(tmp_path, *begun)
    path = tmp_path / mark.hex
    path.write_text(damage(path.read_text()))
    assert left_in(tmp_path) == ([LeftLog(mark, unbegun)] if unbegun else [])
    assert list(tmp_path.iterdir()) == [], "it is read once"


def test_without_a_folder_for_them_all_goes_on_with_one_warning_and_it_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    logs = SendLogs(in_the_way)
    for _ in range(3):
        log = logs.open(IDS)
        assert log.begin(IDS[0])
        log.is_kept = True
        log.close()
    assert logs.consume(lambda _: pytest.fail("there is nothing"), limit=100)
    in_the_way.unlink()
    log = logs.open(IDS)
    assert log.begin(IDS[0])
    log.is_kept = True
    log.close()
    assert left_in(in_the_way) == [LeftLog(log.mark, IDS[1:], died=False)]
    [line] = [record.getMessage() for record in caplog.records]
    assert "data_dir" in line


@pytest.mark.parametrize("call", ["os.open", "fcntl.flock"])
def test_a_file_that_is_tried_again_for_each_claim_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    logs = SendLogs(tmp_path)
    monkeypatch.setattr(call, Mock(side_effect=OSError(28, "No space left on device")))
    for _ in range(2):
        logs.open(IDS).close()
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_settle_reads_at_most_so_many_logs_and_the_next_call_the_rest(tmp_path: Path) -> None:
    """Three logs of killed processes and two that a living process left."""
    marks = {killed(tmp_path) for _ in range(3)}
    logs = SendLogs(tmp_path)
    for _ in range(2):
        log = logs.open(IDS)
        log.is_kept = True
        log.close()
        marks.add(log.mark)
    found: list[LeftLog] = []
    for count, are_all_read in ((2, False), (4, False), (5, True), (5, True)):
        assert SendLogs(tmp_path).consume(found.append, limit=2) is are_all_read
        assert len(found) == count
    assert {log.mark for log in found} == marks
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_note_that_the_disk_has_no_room_for_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = SendLogs(tmp_path).open(IDS)
    full = os.open("/dev/full", os.O_WRONLY)
    assert log.descriptor is not None
    os.dup2(full, log.descriptor)
    os.close(full)
    assert log.begin(IDS[0])
    assert f"could not write to the send log {log.path}: No space left on device" in caplog.text
    assert list(tmp_path.iterdir()) == []
    log.close()


def test_nothing_is_sent_where_neither_a_note_nor_a_deletion_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SendLogs(tmp_path).open(IDS)
    monkeypatch.setattr("os.write", lambda *_: 3)
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError(30, "Read-only file system")))
    assert not log.begin(IDS[0])
