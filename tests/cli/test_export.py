"""Messages are written a row each, whole or without their bodies, and read back the same."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from dispatcher import Message, client
from dispatcher.times.send_time import as_text
from tests.cli.conftest import Run
from tests.cli.test_commands import STORY_FIELDS
from tests.support.house import House

HOUR = timedelta(hours=1)
BODY = {"text": 'See "you" at nine,\nor ten', "n": [1, None]}


@pytest.fixture
def stored(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Give five messages; they are read two at a time."""
    monkeypatch.setattr(client, "_PAGE", 2)
    return [house.submit(f"r{n}", body=BODY, send_in=(n + 1) * HOUR) for n in range(5)]


def test_lines_come_oldest_first_and_without_bodies(run: Run, stored: list[Message]) -> None:
    ran = run("export")
    assert (ran.code, ran.err) == (0, "")
    assert [each["id"] for each in ran.lines] == [str(each.id) for each in stored]
    assert all("body" not in each for each in ran.lines)
    assert "nine" not in ran.out
    [one] = run("export", "--recipient", "r3", "--bodies").lines
    assert (one["id"], one["body"]) == (str(stored[3].id), BODY)


def test_a_table_is_read_back_the_same(run: Run, stored: list[Message], tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    ran = run("export", "--bodies", "--to-file", str(path))
    assert (ran.code, ran.out) == (0, "")
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [each["id"] for each in found] == [str(each.id) for each in stored]
    assert [json.loads(each["body"]) for each in found] == [BODY] * 5
    assert [each["send_at"] for each in found] == [as_text(each.send_at) for each in stored]
    shown = run("show", found[0]["id"], "--json").data
    assert set(found[0]) == set(shown) - STORY_FIELDS
    plain = run("export", "--format", "csv", "--status", "sent")
    assert plain.out.startswith("id,channel,")
    assert len(plain.out.splitlines()) == 1, "the names of the columns, and no row"


def test_the_format_is_the_one_asked_for_else_that_of_the_name(
    run: Run, stored: list[Message], tmp_path: Path
) -> None:
    for name, options, is_table in (
        ("a.CSV", [], True),
        ("b.jsonl", [], False),
        ("c.txt", [], False),
        ("d.csv", ["--format", "jsonl"], False),
        ("e.jsonl", ["--format", "csv"], True),
    ):
        path = tmp_path / name
        assert run("export", "--to-file", str(path), *options).code == 0
        assert path.read_text(encoding="utf-8").startswith("id,channel,") is is_table


def test_a_file_that_is_there_is_left_alone(
    run: Run, stored: list[Message], tmp_path: Path
) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("mine", encoding="utf-8")
    ran = run("export", "--to-file", str(path))
    assert ran.code == 2
    assert "the name of a new file" in ran.err
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_reader_that_stops_is_no_error(house: House, stored: list[Message]) -> None:
    house.store_copy(stored[0], rows=2_000)
    command = [sys.executable, "-m", "dispatcher", "export", "--bodies"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert b"Traceback" not in child.stderr.read()


def test_no_spreadsheet_computes_what_a_stranger_wrote(run: Run, house: House) -> None:
    names = ["=1+1", "+4915112345678", "-1", "@SUM(A1)", "ada=1"]
    behind = ["\t=1+1", "\r=1+1", "\n=1+1"]
    for number, name in enumerate(names):
        message = house.submit(name, send_in=HOUR)
        house.change([message], last_error=(behind * 2)[number])
    assert run("export", "--to-file", "all.csv").code == 0
    with Path("all.csv").open(encoding="utf-8", newline="") as file:
        errors = {each["last_error"] for each in csv.DictReader(file)}
    assert errors == {f"'{each}" for each in behind}, "what stands behind a blank, too"
    found = csv.DictReader(run("export", "--format", "csv").out.splitlines())
    assert [each["recipient"] for each in found] == [*(f"'{name}" for name in names[:4]), "ada=1"]
    plain = csv.DictReader(run("export", "--format", "csv", "--formulas").out.splitlines())
    assert [each["recipient"] for each in plain] == names
    assert [each["recipient"] for each in run("export").lines] == names


def test_a_table_that_is_shown_is_obeyed_by_no_terminal(
    run: Run, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.submit(body={"text": "\x9b31m\u202e"}, send_in=HOUR)
    to_file = run("export", "--format", "csv", "--bodies").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = run("export", "--format", "csv", "--bodies").out
    assert "\x9b" in to_file
    assert r"\u009b31m\u202e" in shown
    assert not {"\x9b", "\u202e"} & set(shown)
