"""``dispatcher import`` and ``export``: files of rows, what is refused of them, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dispatcher import Message, Progress, StoreUnavailable, client
from dispatcher.cli import files
from dispatcher.submission.rows import COLUMNS, Source
from dispatcher.times.send_time import as_text
from tests.cli.conftest import Ran, Run
from tests.cli.test_commands import STORY_FIELDS
from tests.support.house import House

AT = "2028-01-01T11:11:11Z"
ROW = {"channel": "memory", "recipient": "ada", "text": "hello", "send_at": AT}


def row(**more: Any) -> dict[str, Any]:
    return ROW | more


def people(count: int, **more: Any) -> list[dict[str, Any]]:
    return [row(recipient=f"person {number}", **more) for number in range(count)]


def as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    for row in rows:
        texts = {name: json.dumps(cell) for name, cell in row.items() if isinstance(cell, dict)}
        writer.writerow(row | texts)
    return text.getvalue()


def as_jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refused_rows(path: str = "rows.rejected.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def run_import(run: Run, text: str | bytes, *options: str, name: str = "rows.csv") -> Ran:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return run("import", name, *options)


EVERY = {
    "body": {"a": [1, "ü"]}, "send_at": "2028-10-29T02:30", "zone": "Europe/Berlin", "fold": "1",
    "scope": "family", "idempotency_key": "k", "expires_at": "2028-10-30T00:00Z",
    "on_conflict": "shift", "latest": "2028-10-29T12:00Z", "quiet_hours": "03:00-04:00",
    "scopes": {}, "channel": "memory", "recipient": "ada", "on_unknown": "hold",
    "campaign": "summer", "priority": -7,
}  # fmt: skip


@pytest.mark.parametrize(("name", "write"), [("rows.csv", as_csv), ("rows.jsonl", as_jsonl)])
def test_every_column_is_taken(house: House, run: Run, name: str, write: Any) -> None:
    later = {"channel": "memory", "recipient": "ben", "text": "hi", "send_in": "10 minutes",
             "expire_after": "1 hour"}  # fmt: skip
    third = row(recipient="cleo", send_window="11:00-12:00")
    fourth = {"channel": "memory", "recipient": "dan", "text": "hi", "event": "appointment:17",
              "offset": "-1 day", "event_at": "2028-06-02T09:00Z"}  # fmt: skip
    # test_templates.py, submission/test_without_quotas.py
    elsewhere = {"template", "data", "status_url", "quotas"}
    assert {*EVERY, *later, *third, *fourth} | elsewhere == set(COLUMNS), (
        "a new one belongs in EVERY"
    )
    ran = run_import(run, write([EVERY, later, third, fourth]), "--json", name=name)
    assert (ran.code, ran.err) == (0, "")
    assert ran.data == {
        "accepted": 4, "known": 0, "shifted": 0, "refused": 0, "reasons": {},
        "rejected_file": None, "complete": True,
    }  # fmt: skip
    [dan] = [*house.dispatcher.select(event="appointment:17")]
    assert dan.wish == "-1 day"
    [ada] = [*house.dispatcher.select(recipient="ada")]
    assert (ada.body, ada.scope, ada.idempotency_key) == ({"a": [1, "ü"]}, "family", "k")
    assert ada.send_at.isoformat() == "2028-10-29T01:30:00+00:00"
    assert ada.quiet_hours is not None
    assert (ada.campaign, ada.priority) == ("summer", -7)
    [ben] = [*house.dispatcher.select(recipient="ben")]
    assert ben.body == {"text": "hi"}
    assert not Path("rows.rejected.jsonl").exists()


@pytest.mark.parametrize(("name", "write"), [("rows.csv", as_csv), ("rows.jsonl", as_jsonl)])
def test_a_priority_is_of_rows_that_name_none(
    house: House, run: Run, name: str, write: Any
) -> None:
    given = ("", "0", "+7", "-100", "101", "high", "1.5")
    rows = [row(recipient=f"r{n}", priority=text) for n, text in enumerate(given)]
    if name.endswith("l"):
        rows[0]["priority"] = None
    run_import(run, write(rows), "--priority", "101", name=name).is_refused(2, "--priority: 101")
    ran = run_import(run, write(rows), "--priority", "50", name=name)
    assert ran.code == 2
    stored = {message.recipient: message.priority for message in house.dispatcher.select()}
    assert stored == {"r0": 50, "r1": 0, "r2": 7, "r3": -100}
    errors = [refused["error"] for refused in refused_rows()]
    assert [error.partition(";")[0] for error in errors] == [
        "priority: 101", "priority: 'high'", "priority: '1.5'",
    ]  # fmt: skip


def test_people_see_counts_and_reasons(house: House, run: Run) -> None:
    rows = [
        row(idempotency_key="k"), row(idempotency_key="k"), row(), row(),
        row(on_conflict="shift"), row(recipient="ben", quiet_hours="11:00-12:00"),
    ]  # fmt: skip
    ran = run_import(run, as_csv(rows))
    assert (ran.code, ran.err) == (3, "")
    assert "3 accepted (1 known before, 1 shifted), 3 refused" in ran.out
    counted = [line.split() for line in ran.out.splitlines()]
    assert ["QuotaExceeded", "1/minute", "2"] in counted
    assert ["QuietHours", "1"] in counted
    assert "the refused rows are in rows.rejected.jsonl" in ran.out
    assert len(house.rows()) == 2


def test_refused_rows_are_written_with_their_lines_and_can_be_imported_again(
    house: House, run: Run
) -> None:
    text = (
        "recipient,text,send_at,fold,send_in\n"
        f"ada,hello,{AT},,\n"
        f'ben,"two\r\nlines",{AT},,\n'
        "\n"
        f"cleo,x,{AT},2,\n"
        f"cleo,x,{AT}\n"
        "cleo,x,,,soon\n"
        f'cleo,"x"y,{AT},,\n'
        f"ada,again,{AT},,\n"
        f"dora,hello,{AT},,\n"
    )
    ran = run_import(run, text, "--channel", "memory", "--json")
    assert ran.code == 2
    assert (ran.data["accepted"], ran.data["refused"]) == (3, 5)
    assert ran.data["reasons"] == {"InvalidDraft": 4, "QuotaExceeded 1/minute": 1}
    assert next(iter(house.dispatcher.select(recipient="ben"))).body == {"text": "two\r\nlines"}
    refused = refused_rows()
    assert [(row["line"], row["error"].split(":")[0]) for row in refused] == [
        (6, "fold"), (7, "row"), (8, "send_in"), (9, "row"), (10, "2028-01-01T11"),
    ]  # fmt: skip
    assert refused[4]["next_slot"] == "2028-01-01T11:12:11.000Z"
    assert refused[4]["row"] == {"recipient": "ada", "text": "again", "send_at": AT}
    assert refused[1]["row"] == ["cleo", "x", AT]
    assert refused[3]["row"] == f'cleo,"x"y,{AT},,\n'

    refused[0]["row"]["fold"] = 0
    refused[4]["row"]["send_at"] = refused[4]["next_slot"]
    mended = as_jsonl([refused[0], refused[4], refused[1]])
    ran = run_import(run, mended, "--channel", "memory", "--json", name="mended.jsonl")
    assert (ran.data["accepted"], ran.data["refused"]) == (2, 1)
    assert [row["row"] for row in refused_rows("mended.rejected.jsonl")] == [refused[1]["row"]]


MOST = 4 * 64 * 1024 + 65_536
"""The bytes of a row, where a body has at most 64 KiB."""
HEADER, GOOD = "channel,recipient,text,send_at\n", f"memory,{{}},x,{AT}\n"
LONG = f"row: is too long{{}}; accepted: at most {MOST:,} bytes"
BAD_JSON: tuple[dict[str, Any], ...] = (
    {"text": 5}, {"colour": "red"}, {"body": {}}, {"fold": []}, {"send_in": True},
    {"recipient": None}, {"recipient": ""}, {"scopes": "{"}, {"send_window": 5}, {"zone": 1},
    {"text": "\ud800"}, {"body": {"a": [[]] * MOST}},
)  # fmt: skip
NO_ROWS = ["{", "[1]", '"x"', "[" * 50_000, '{"a": 1', "1" * 5_000]
BAD: dict[str, tuple[str, str, dict[int, str]]] = {
    "no rows": ("rows.jsonl", "\n".join(NO_ROWS), dict.fromkeys(range(1, 7), "row: ")),
    "wrong fields": ("rows.jsonl", as_jsonl([row(**bad) for bad in BAD_JSON]),
                     dict.fromkeys(range(1, 12), "") | {12: LONG.format("")}),
    "no end": ("rows.jsonl", "\n" + "[" * 3 * MOST, {2: LONG.format("")}),
    "an open quote": ("rows.csv", HEADER + f'memory,ada,"open,{AT}\n\n', {2: "row: .*s 2 to 3"}),
    "below a line break": ("rows.csv", f'sep=,\r\n{HEADER}"memory\r\n",,x,{AT}\r\n',
                           {3: "recipient"}),
    "a long line": ("rows.csv", HEADER + f"memory,ada,{'ü' * MOST},{AT}\n", {2: LONG.format("")}),
    "long fields": ("rows.csv", HEADER + "," * MOST + "\n", {2: LONG.format("")}),
    "long lines": ("rows.csv", HEADER + '"a\n",' * (MOST // 5 + 9), {2: LONG.format(".*")}),
    # No line within the quotes of a row that is too long is a row.
    **{f"long quotes {number}": (
        "rows.csv", f'{HEADER}memory,ada,"{filler}{GOOD.format("injected")}",{AT}\n',
        {2: LONG.format(rf" \(lines 2 to {filler.count(chr(10)) + 3}\)")},
    ) for number, filler in enumerate(
        ["x\n" * (MOST // 2), "x" * MOST + "\n", "ü" * MOST + '\n""\n']
    )},
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_refused_alone_and_named(house: House, run: Run, kind: str) -> None:
    name, text, wrong = BAD[kind]
    is_open = kind in ("an open quote", "long lines")  # it takes what follows
    if not is_open:
        text += f"\n{json.dumps(row())}\n" if name == "rows.jsonl" else GOOD.format("ada")
    ran = run_import(run, text, "--json", name=name)
    assert (ran.code, ran.data["accepted"]) == (2, 0 if is_open else 1)
    stored = [message.recipient for message in house.dispatcher.select()]
    assert stored == ([] if is_open else ["ada"])
    refused = sorted(refused_rows(), key=itemgetter("line"))
    assert [row["line"] for row in refused] == [*wrong]
    for refusal, says in zip(refused, wrong.values(), strict=True):
        assert re.match(says, refusal["error"])
        assert len(refusal["row"]) <= 2 * MOST, "its beginning"


SAVED = {
    "semicolons": "channel;recipient;text;send_at\n{}\n".format("memory;ada;a, b;AT"),
    "tabs": "channel\trecipient\ttext\tsend_at\nmemory\tada\ta, b\tAT\n",
    "sep": '\r\nsep=;;;\r\nchannel;recipient;text;send_at\r\nmemory;ada;"a, b";AT\r\n',
    "marks": '\ufeff\ufeffchannel,recipient,text,send_at\nmemory,ada,"a, b",AT\n',
    "headers": ' Channel ,RECIPIENT,Text,Send At\nmemory,ada,"a, b",AT\n',
    "blanks": 'channel,recipient,text,send_at\n memory , ada ,"a, b", AT \n',
    "a blank before quotes": 'channel; recipient; text;send_at\nmemory; ada; "a, b"; AT\n',
    "trailing": 'channel,recipient,text,send_at,,\nmemory,ada,"a, b",AT,,\n',
    "blank rows": ',,,\n\nchannel,recipient,text,send_at\n,,,\n  \n\nmemory,ada,"a, b",AT\n,,,\n',
}
"""Files as spreadsheets save them, each with the same message."""


@pytest.mark.parametrize("kind", SAVED)
def test_a_file_of_a_spreadsheet_is_read(house: House, run: Run, kind: str) -> None:
    ran = run_import(run, SAVED[kind].replace("AT", AT), "--json")
    assert ran.err == ""
    [message] = house.dispatcher.select()
    assert (message.recipient, message.body) == ("ada", {"text": "a, b"})


UNUSABLE: dict[str, tuple[bytes, str, list[str]]] = {
    "unknown column": (b"channel,colour\n", "there is no column 'colour'", []),
    "known columns": (b"channel,colour\n", ", recipient, body, template, data, send_at,", []),
    "column of an option": (b"channel,colour\n", ", expires_at, on_conflict, latest,", []),
    "unknown field": (json.dumps(row(colour=1)).encode(), "there is no column 'colour'",
                      ["--format", "jsonl"]),
    "unknown column below": (b"sep=,\n\n,,\nchannel,colour\n", "columns: line 4: there is no", []),
    "unknown field below": (b'\n\n{"colour": 1}\n', "columns: line 3: there is no column",
                            ["--format", "jsonl"]),
    "column twice": (b"text,text\n", "two are named 'text'", []),
    "no recipient": (b"channel,text,send_at\n", "recipient is missing", []),
    "no time": (b"channel,text,recipient\n", "send_at or send_in is missing", []),
    "no channel": (b"recipient,text,send_at\n", "--channel", []),
    "empty": (b"", "rows.csv: is empty", []),
    "only a mark": (b"\xef\xbb\xbf", "is empty", []),
    "UTF-16": ("channel".encode("utf-16"), "written in UTF-16", []),
    "Latin-1": (f"channel,recipient,text,send_at\nmemory,ada,x,{AT}\nmemory,ben,\xfc,{AT}"
                .encode("latin-1"), "line 3 is no UTF-8", []),
    "cut off": ("channel,recipient,text,send_at\nmemory,ü".encode()[:-1], "line 2 is no UTF-8", []),
    "ends in CR alone": (as_csv([row()]).replace("\r\n", "\r").encode(),
                         "row: line 1: a carriage return outside quotes; accepted: lines", []),
    "plan and atomic": (b"", "given with --plan", ["--plan", "--atomic"]),
}  # fmt: skip


def test_a_file_that_cannot_be_used_is_one_sentence(house: House, run: Run) -> None:
    before = house.snapshot()
    for data, says, options in UNUSABLE.values():
        run_import(run, data, *options).is_refused(2, says)
        assert house.snapshot() == before
        assert not Path("rows.rejected.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [("missing.csv", "no such file"), ("missing.txt", "no such file"),
     ("folder.csv", "is a directory"), ("rows.txt", "--format"),
     ("-", "--format")],
)  # fmt: skip
def test_a_name_that_cannot_be_used_is_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.csv").mkdir()
    Path("rows.txt").write_text("channel", encoding="utf-8")
    run("import", name).is_refused(2, says)


def test_it_overwrites_nothing(house: House, run: Run) -> None:
    Path("rows.rejected.jsonl").write_text("{}\n", encoding="utf-8")
    before = house.snapshot()
    run_import(run, as_csv([row(), row()])).is_refused(2, "rows.rejected.jsonl: exists")
    assert house.snapshot() == before
    Path("empty").touch()
    assert run_import(run, as_csv([row(), row()]), "--rejected", "empty").code == 3
    assert len(refused_rows("empty")) == 1
    assert run_import(run, as_csv([row()]), "--rejected", "no/folder").code == 2
    assert run_import(run, as_csv([row()]), "--rejected", "rows.csv").code == 2
    assert run_import(run, as_csv([row()]), "--rejected", ".").code == 2


def test_plan_says_what_would_come_and_changes_nothing(house: House, run: Run) -> None:
    house.submit("ada", send_at=AT)
    text = as_csv([row(), row(fold="x"), row(recipient="ben"), row(on_conflict="shift")])
    before = house.snapshot()
    ran = run_import(run, text, "--plan", "--json")
    assert ran.code == 2
    [bad, refused] = sorted(ran.data.pop("rejections"), key=itemgetter("reason"))
    assert (bad["line"], bad["reason"]) == (3, "InvalidDraft")
    assert (refused["line"], refused["next_slot"]) == (2, "2028-01-01T11:12:11.000Z")
    assert ran.data == {
        "accepted": 2, "known": 0, "shifted": 1, "refused": 2, "rejected_file": None,
        "reasons": {"InvalidDraft": 1, "QuotaExceeded 1/minute": 1}, "complete": True,
        "first_send_at": "2028-01-01T11:11:11.000Z", "last_send_at": "2028-01-01T11:12:11.000Z",
    } | {"rejections": ran.data["rejections"]}  # fmt: skip
    shown = run_import(run, text, "--plan", "--rejected", "refused.jsonl")
    assert "2 would be accepted" in shown.out
    assert "nothing was booked" in shown.out
    assert "line 2: " in shown.out
    assert [row["line"] for row in refused_rows("refused.jsonl")] == [3, 2]
    assert house.snapshot() == before
    assert not Path("rows.rejected.jsonl").exists()
    assert run_import(run, as_csv([row()]), "--plan").code == 3
    assert run_import(run, as_csv([row()]), "--plan", "--on-conflict", "shift").code == 0


def test_a_plan_shows_the_first_refused_rows_and_how_many_more(house: House, run: Run) -> None:
    shown = run_import(run, as_csv([row(), *[row(fold="x")] * 1_009]), "--plan")
    assert shown.out.count("line ") == 10
    assert "and 999 more" in shown.out


def test_atomic_accepts_all_or_none(house: House, run: Run) -> None:
    before = house.snapshot()
    ran = run_import(run, as_csv([row(), row(recipient="ben"), row()]), "--atomic", "--json")
    assert (ran.code, ran.data["accepted"], ran.data["refused"]) == (3, 0, 3)
    assert [row["reason"] for row in refused_rows()] == [
        "BatchRefused", "BatchRefused", "QuotaExceeded 1/minute",
    ]  # fmt: skip
    assert "because line 4 was refused" in refused_rows()[0]["error"]
    ran = run_import(run, as_csv([row(), row(fold="x")]), "--atomic", "--rejected", "b", "--json")
    assert (ran.code, ran.data["accepted"], ran.data["refused"]) == (2, 0, 2)
    assert {row["line"] for row in refused_rows("b")} == {2, 3}
    assert len(house.rows()) == 0
    assert house.snapshot().messages == before.messages
    ran = run_import(run, as_csv([row(), row(recipient="ben")]), "--atomic", "--rejected", "c")
    assert ran.code == 0
    assert len(house.rows()) == 2


def test_standard_input_is_read_and_a_row_that_is_no_utf_8_refused(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    given(as_jsonl([row()]).encode() + b'{"text": "\xff"}\n' + as_jsonl(people(3)).encode())
    ran = run("import", "-", "--format", "jsonl", "--json")
    assert (ran.code, ran.err) == (2, "")
    assert (ran.data["accepted"], ran.data["refused"]) == (4, 1)
    [refused] = refused_rows("stdin.rejected.jsonl")
    assert (refused["line"], refused["error"].split(";")[0]) == (2, "row: is no UTF-8")
    given(as_csv([row(recipient="zoe"), row(text="X")]).encode().replace(b"X", b"\xff"))
    ran = run("import", "-", "--format", "csv", "--json", "--rejected", "b")
    assert (ran.code, ran.data["accepted"], refused_rows("b")[0]["line"]) == (2, 1, 3)
    given(b"")
    ran = run("import", "-", "--format", "csv", "--rejected", "c")
    assert "standard input: is empty" in ran.err


def test_a_field_may_be_as_long_as_a_body(house: House, run: Run) -> None:
    body = {"text": "ü" * 30_000}
    text = as_csv([{"channel": "memory", "recipient": "ada", "send_at": AT, "body": body}])
    csv.field_size_limit(100_000)
    assert len(text) > 100_000
    assert run_import(run, text).code == 0
    assert next(iter(house.dispatcher.select())).body == body


@pytest.mark.parametrize("why", ["unavailable", "terminated"])
def test_it_says_how_to_go_on_and_the_same_command_again_ends_as_if_run_once(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("dispatcher.submission.pipeline.BATCH", 100)
    rows = people(250)
    for number, person in enumerate(rows):
        person["idempotency_key"] = f"key {number}" if number != 7 else ""
    rows.insert(3, row(fold="x"))
    show = files.ImportJob._show

    def stop(self: files.ImportJob, counted: Progress) -> None:
        if counted.done > 100:
            if why == "terminated":
                os.kill(os.getpid(), signal.SIGTERM)
            raise StoreUnavailable("gone")
        show(self, counted)

    with patch.object(files.ImportJob, "_show", stop):
        ran = run_import(run, as_csv(rows), "--json")
    assert ran.code == (6 if why == "unavailable" else 130)
    assert "The rows up to line 102 were answered" in ran.err
    assert "of the rows up to line 202 some may be accepted" in ran.err
    assert "1 accepted rows have none" in ran.err
    assert (ran.data["accepted"], ran.data["complete"]) == (100, False)
    assert ran.data["rejected_file"] == "rows.rejected.jsonl.part"
    assert len(refused_rows("rows.rejected.jsonl.part")) == 1
    assert not Path("rows.rejected.jsonl").exists()
    del rows[8]
    again = run_import(run, as_csv(rows), "--json")
    assert (again.code, again.data["accepted"], again.data["known"]) == (2, 249, 199)
    assert again.data["rejected_file"] == "rows.rejected.jsonl"
    assert not Path("rows.rejected.jsonl.part").exists()
    assert len(refused_rows()) == 1
    assert len(house.rows()) == 250


@pytest.mark.parametrize("case", [(250, "x", 150), (60, "x" * 50_000, 25)], ids=["short", "long"])
def test_it_holds_a_batch_and_not_the_file(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, case: tuple[int, str, int]
) -> None:
    """However long the rows are: of long ones a batch has few."""
    monkeypatch.setattr("dispatcher.submission.pipeline.BATCH", 100)
    (count, text, most), ahead = case, list[int]()
    lines = Source.lines

    def counted(self: Source, longest: int) -> Iterator[str]:
        for number, line in enumerate(lines(self, longest)):
            ahead.append(number - len(house.rows()) if number % (count // 5) == 0 else 0)
            yield line

    monkeypatch.setattr(Source, "lines", counted)
    assert run_import(run, as_csv(people(count, text=text))).code == 0
    assert len(ahead) == count + 1
    assert max(ahead) <= most


def test_the_bar_is_drawn_on_a_terminal_only(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_import(run, as_csv([row()])).err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = run_import(run, as_csv([row(), row(recipient="ben")]), "--rejected", "b")
    assert "1 accepted, 1 refused" in ran.err


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
    assert [line["id"] for line in ran.lines] == [str(message.id) for message in stored]
    assert all("body" not in line for line in ran.lines)
    assert "nine" not in ran.out
    [one] = run("export", "--recipient", "r3", "--bodies").lines
    assert (one["id"], one["body"]) == (str(stored[3].id), BODY)


def test_a_table_is_read_back_the_same(run: Run, stored: list[Message], tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    ran = run("export", "--bodies", "--to-file", str(path))
    assert (ran.code, ran.out) == (0, "")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [str(message.id) for message in stored]
    assert [json.loads(row["body"]) for row in rows] == [BODY] * 5
    assert [row["send_at"] for row in rows] == [as_text(message.send_at) for message in stored]
    shown = run("show", rows[0]["id"], "--json").data
    assert set(rows[0]) == set(shown) - STORY_FIELDS
    plain = run("export", "--format", "csv", "--status", "sent")
    assert plain.out.startswith("id,channel,")
    assert len(plain.out.splitlines()) == 1, "the names of the columns, and no row"


def test_the_format_is_the_one_asked_for_else_that_of_the_name(house: House, run: Run) -> None:
    lines = {"a.CSV": True, "b.jsonl": False, "c.txt": False, "d.csv --format jsonl": False,
             "e.jsonl --format csv": True}  # fmt: skip
    for line, is_table in lines.items():
        path = Path(line.split(maxsplit=1)[0])
        assert run("export", "--to-file", *line.split()).code == 0
        assert path.read_text(encoding="utf-8").startswith("id,channel,") is is_table


def test_a_file_that_is_there_is_left_alone(
    run: Run, stored: list[Message], tmp_path: Path
) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("mine", encoding="utf-8")
    run("export", "--to-file", str(path)).is_refused(2, "the name of a new file")
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.long
def test_a_reader_that_stops_is_no_error(house: House, stored: list[Message]) -> None:
    house.store_copy(stored[0], rows=400)
    command = [sys.executable, "-m", "dispatcher", "export", "--bodies"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""


def test_no_spreadsheet_computes_what_a_stranger_wrote(run: Run, house: House) -> None:
    names = ["=1+1", "+4915112345678", "-1", "@SUM(A1)", "ada=1"]
    behind = ["\t=1+1", "\r=1+1", "\n=1+1"]
    for number, name in enumerate(names):
        message = house.submit(name, send_in=HOUR)
        house.change([message], last_error=(behind * 2)[number])
    assert run("export", "--to-file", "all.csv").code == 0
    with Path("all.csv").open(encoding="utf-8", newline="") as file:
        errors = {row["last_error"] for row in csv.DictReader(file)}
    assert errors == {f"'{name}" for name in behind}, "what stands behind a blank, too"
    rows = csv.DictReader(run("export", "--format", "csv").out.splitlines())
    assert [row["recipient"] for row in rows] == [*(f"'{name}" for name in names[:4]), "ada=1"]
    plain = csv.DictReader(run("export", "--format", "csv", "--formulas").out.splitlines())
    assert [row["recipient"] for row in plain] == names
    assert [line["recipient"] for line in run("export").lines] == names


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
