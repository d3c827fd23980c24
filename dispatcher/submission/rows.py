"""Rows of a file as drafts: lines of text, CSV and JSONL rows, drafts; the file of refused rows."""

from __future__ import annotations

import codecs
import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from dispatcher.errors import InvalidDraft, InvalidValue, kind_of, quoted
from dispatcher.message import Draft, read_json
from dispatcher.quota import parse_length
from dispatcher.selection import check_priority, read_number

STANDARD_INPUT = "-"
_CHUNK = 1024 * 1024
_AS_IT_IS = ("text", "body", "data")
_QUOTED = 4
"""A body's CSV field may have so many times the size of the body: quotes are doubled."""
_BESIDE_BYTES = 65_536
"""A row may have so many bytes beside the field of the body."""
_CARRIAGE_RETURN = "new-line character seen in unquoted field"
_MARKS = re.compile(rb"^(?:%b){1,2}" % codecs.BOM_UTF8)
"""One or two byte order marks: some programs add one before an existing one."""
_SEP = re.compile(r'"?sep=([,;\t])"?[,;\s]*', re.IGNORECASE)
"""The first line by which a spreadsheet tells another one the separator."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TEXT = "text"
COLUMNS = (*(field.name for field in fields(Draft)), _TEXT)
"""The columns of a row: the fields of a draft, and ``text``, short for a body with one text."""
_NEEDED = (("channel",), ("recipient",), ("body", _TEXT, "template"), ("send_at", "send_in"))
_JSON_FIELDS = ("body", "data", "scopes")
_LENGTHS = ("send_in", "expire_after")
_REFUSED = frozenset({"line", "error", "reason", "next_slot", "row"})


class _Cut(str):
    """The beginning of a line that is too long; the rest is left out, ``quotes`` count in all."""

    __slots__ = ("quotes",)
    quotes: int


class Source(AbstractContextManager["Source"]):
    """Lines of text from a file or standard input, one in memory at a time.

    ``total`` is the number of lines, None for standard input. A file is checked before its first
    line is read. In standard input, bytes that are no UTF-8 become lone surrogates. Errors call it
    ``label``, by default its name.
    """

    def __init__(self, name: str, *, label: str | None = None) -> None:
        self.total: int | None = None
        self._label = label or ("standard input" if name == STANDARD_INPUT else name)
        self._stream: IO[bytes] = sys.stdin.buffer
        if name != STANDARD_INPUT:
            self._stream = self._opened(Path(name))

    def lines(self, longest: int) -> Iterator[str]:
        """Yield the lines with their ends, of one with more bytes its beginning."""
        line = self._stream.readline(longest + 1)
        self._check_start(line)
        line = _MARKS.sub(b"", line)
        while line:
            is_short = len(line) <= longest
            yield line.decode(errors="surrogateescape") if is_short else self._cut(line)
            line = self._stream.readline(longest + 1)

    def _cut(self, line: bytes) -> _Cut:
        cut = _Cut(line.decode(errors="replace"))
        cut.quotes = 0
        while line:
            cut.quotes += line.count(b'"')
            line = b"" if line.endswith(b"\n") else self._stream.readline(_CHUNK)
        return cut

    def __exit__(self, *_: object) -> None:
        if self._stream is not sys.stdin.buffer:
            self._stream.close()

    def _opened(self, path: Path) -> IO[bytes]:
        try:
            stream = path.open("rb")
            if path.is_file():
                with stream:
                    self.total = self._checked_lines(stream)
                stream = path.open("rb")
        except OSError as error:
            problem = error.strerror or type(error).__name__
            raise self._refused(
                problem[0].lower() + problem[1:], "a file that can be read"
            ) from None
        return stream

    def _checked_lines(self, stream: IO[bytes]) -> int:
        self._check_start(stream.read(_CHUNK))
        stream.seek(0)
        lines, text = 0, ""
        try:
            for text in codecs.iterdecode(iter(partial(stream.read, _CHUNK), b""), "utf-8"):
                lines += text.count("\n")
        except UnicodeDecodeError as error:
            line = lines + error.object[: error.start].count(b"\n") + 1
            raise self._refused(f"line {line} is no UTF-8", "UTF-8") from None
        return lines + (not text.endswith("\n"))

    def _check_start(self, start: bytes) -> None:
        if not _MARKS.sub(b"", start):
            raise self._refused("is empty", "rows")
        if start.startswith(_UTF_16):
            raise self._refused("is written in UTF-16", "UTF-8")

    def _refused(self, problem: str, accepted: str) -> InvalidValue:
        return InvalidValue(self._label, problem, accepted)


class Format(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"

    @classmethod
    def of(cls, name: str) -> Format | None:
        return next((form for form in cls if name.lower().endswith(f".{form}")), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow(Draft):
    """A draft, the line on which its row begins, the characters it has, and the row itself."""

    line: int
    size: int
    row: Any = field(repr=False)


class BadRow(NamedTuple):
    line: int
    row: Any
    error: InvalidValue


def read(
    source: Source,
    form: Format,
    *,
    channel: str | None,
    campaign: str | None = None,
    priority: int | None = None,
    longest: int,
) -> Iterator[DraftRow | BadRow]:
    """Yield the rows; ``channel``, ``campaign`` and ``priority`` are for those that name none.

    ``longest`` is the most bytes of a body: a field of CSV, where quotes are doubled, may be four
    times as long, and a row 64 KiB more. One that is longer is refused. Raises InvalidDraft if the
    columns, in JSONL those of the first row, are not those of a draft.
    """
    named = {"channel": channel, "campaign": campaign, "priority": priority}
    if priority is not None:
        check_priority(priority)
    defaults = {name: value for name, value in named.items() if value is not None}
    most = _QUOTED * longest + _BESIDE_BYTES
    csv.field_size_limit(max(most, csv.field_size_limit()))
    read_rows = _read_csv if form is Format.CSV else _read_jsonl
    return read_rows(source.lines(most), defaults, most)


def _read_csv(
    lines: Iterator[str], defaults: Mapping[str, object], most: int
) -> Iterator[DraftRow | BadRow]:
    rows = _csv_rows(lines, most)
    header = next(rows, None)
    if header is None:
        return
    line, names = header[:2]
    if isinstance(header, BadRow):
        raise _in_line(line, header.error)
    columns = ["_".join(name.lower().split()) for name in names]
    while columns and not columns[-1]:
        columns.pop()
    try:
        _check_columns(columns)
        _check_needed(columns, defaults)
    except InvalidDraft as error:
        raise _in_line(line, error) from None
    for row in rows:
        if isinstance(row, BadRow):
            yield row
            continue
        line, values, size = row
        while len(values) > len(columns) and not values[-1].strip():
            values.pop()
        if len(values) != len(columns):
            accepted = f"{len(columns)} fields, as the columns"
            yield BadRow(line, values, InvalidDraft("row", f"{len(values)} fields", accepted))
            continue
        fields = {
            name: value if name in _AS_IT_IS else value.strip()
            for name, value in zip(columns, values, strict=True)
            if value.strip()
        }
        yield _row(line, size, fields, fields, defaults)


def _in_line(line: int, error: InvalidValue) -> InvalidDraft:
    return InvalidDraft(error.field, f"line {line}: {error.problem}", error.accepted)


def _beginning(lines: Iterator[str]) -> tuple[str, str, int]:
    """Return the first line that is not blank, what parts its fields, and the lines above it.

    The fields are parted by what a line ``sep=`` says, which is above, else by what parts most.
    """
    first, above = next(lines, ""), 0
    while first and not first.strip(",;\t\r\n "):
        first, above = next(lines, ""), above + 1
    if (told := _SEP.fullmatch(first)) is not None:
        return "", told[1], above + 1
    unquoted = re.sub(r'"[^"]*"', "", first)
    return first, max(",;\t", key=unquoted.count), above  # the comma where there are none


class _RowLines:
    """Lines, handed out row by row. ``last`` is the number of the last one read.

    ``kept`` are those of the row, as long as it is not too long.
    """

    def __init__(self, lines: Iterator[str], most: int, last: int) -> None:
        self._lines, self._most = lines, most
        self.last = last
        self.kept = list[str]()

    def of_row(self) -> Iterator[str]:
        """Yield lines until no more are asked for.

        Of a row that is too long the rest is left out, as far as quotes are open: what follows
        within them is no row of its own. Raises InvalidDraft then.
        """
        self.kept.clear()
        size, quotes, is_long = 0, 0, False
        for text in self._lines:
            self.last += 1
            size += len(text)
            quotes += text.quotes if isinstance(text, _Cut) else text.count('"')
            is_long = is_long or size > self._most or isinstance(text, _Cut)
            if not is_long:
                self.kept.append(text)
                yield text
            elif quotes % 2 == 0:
                break
        if is_long:
            raise _too_long(self._most)


def _csv_rows(lines: Iterator[str], most: int) -> Iterator[tuple[int, list[str], int] | BadRow]:
    """Yield the fields of each row with the line it begins on, and its length.

    Blank rows are left out.
    """
    first, delimiter, above = _beginning(lines)
    read = _RowLines(chain([first] if first else [], lines), most, above)
    while True:
        line = read.last + 1
        reader = csv.reader(read.of_row(), delimiter=delimiter, strict=True, skipinitialspace=True)
        try:
            values = next(reader, None)
        except (csv.Error, InvalidDraft) as error:
            yield BadRow(line, "".join(read.kept), _unread(error, line, read.last))
            continue
        if values is None:
            return
        if _unreadable("".join(values)):
            yield BadRow(line, values, InvalidDraft("row", "is no UTF-8", "UTF-8"))
        elif any(value.strip() for value in values):
            yield line, values, sum(map(len, read.kept))


def _unread(error: Exception, first: int, last: int) -> InvalidDraft:
    problem, accepted = str(error), "fields with closed quotes"
    if isinstance(error, InvalidDraft):
        problem, accepted = error.problem, error.accepted
    if problem.startswith(_CARRIAGE_RETURN):  # it goes on with how to open a file in Python
        problem, accepted = "a carriage return outside quotes", "lines that end in LF or CRLF"
    several = f" (lines {first} to {last})" if last > first else ""
    return InvalidDraft("row", f"{problem}{several}", accepted)


def _read_jsonl(
    lines: Iterator[str], defaults: Mapping[str, object], most: int
) -> Iterator[DraftRow | BadRow]:
    is_first = True
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        row: Any = text.rstrip("\r\n")
        try:
            if isinstance(text, _Cut):
                raise _too_long(most)
            _require(not _unreadable(text), "row", "is no UTF-8", "UTF-8")
            row = _unwrapped(read_json("row", text))
            _require(isinstance(row, dict), "row", kind_of(row), "a JSON object")
            _check_columns(row)
        except InvalidDraft as error:
            if is_first and error.field == "columns":
                raise _in_line(line, error) from None
            yield BadRow(line, row, error)
            continue
        is_first = False
        yield _row(
            line,
            len(text),
            row,
            {name: row[name] for name in row if row[name] is not None},
            defaults,
        )


def _too_long(most: int) -> InvalidDraft:
    return InvalidDraft("row", "is too long", f"at most {most:,} bytes")


def _unwrapped(value: Any) -> Any:
    is_refused = isinstance(value, dict) and "row" in value and value.keys() <= _REFUSED
    return value["row"] if is_refused else value


def _row(
    line: int, size: int, row: Any, fields: Mapping[str, Any], defaults: Mapping[str, object]
) -> DraftRow | BadRow:
    values = {**defaults, **fields}
    try:
        for name in ("channel", "recipient"):
            _require(name in values, name, "not given", "one for every row")
        _read_body(values)
        for name in _LENGTHS:
            if name in values:
                values[name] = parse_length(str(values[name]), name)
        if "fold" in values:
            fold = values["fold"]
            accepted = "0 for the first, 1 for the second time"
            _require(str(fold) in ("0", "1"), "fold", f"cannot read {quoted(fold)}", accepted)
            values["fold"] = int(fold)
        if "priority" in values:
            values["priority"] = read_number(values["priority"])
    except InvalidValue as error:
        return BadRow(line, row, InvalidDraft(error.field, error.problem, error.accepted))
    return DraftRow(line=line, size=size, row=row, **values)


def _read_body(values: dict[str, Any]) -> None:
    bodies = sum(name in values for name in (_TEXT, "body", "template"))
    _require(bodies == 1, "body", "none or several of text, body and template given", "one of them")
    for name in _JSON_FIELDS:
        if isinstance(values.get(name), str):
            values[name] = read_json(name, values[name])
    if _TEXT in values:
        text = values.pop(_TEXT)
        _require(isinstance(text, str), _TEXT, kind_of(text), "text")
        values["body"] = {_TEXT: text}


def _require(holds: bool, name: str, problem: str, accepted: str) -> None:
    if not holds:
        raise InvalidDraft(name, problem, accepted)


def _unreadable(text: str) -> bool:
    """Whether the text has lone surrogates, which stand for bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_columns(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        known = f"some of {', '.join(COLUMNS)}"
        if name not in COLUMNS:
            raise InvalidDraft("columns", f"there is no column {quoted(name)}", known)
        if name in seen:
            raise InvalidDraft("columns", f"two are named {quoted(name)}", "each once")
        seen.add(name)


def _check_needed(columns: Sequence[str], defaults: Mapping[str, object]) -> None:
    for names in _NEEDED:
        if set(names).isdisjoint([*defaults, *columns]):
            hint = ", or --channel" if "channel" in names else ""
            raise InvalidDraft("columns", f"{' or '.join(names)} is missing", f"one{hint}")


class RefusedRows(AbstractContextManager["RefusedRows"]):
    """A JSONL file of refused rows. Without refused rows, no file is made.

    Until :meth:`finish` they are in a file beside it, which the next import overwrites, so that an
    interrupted import can be run again unchanged. Raises InvalidValue if the file exists and is not
    empty, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._final = path
        self.path = path.parent / f"{path.name}.part"
        try:
            if path.exists() and (not path.is_file() or path.stat().st_size > 0):
                raise InvalidValue(str(path), "exists", "another file with --rejected")
            # What is no UTF-8 is written as JSON escapes it.
            self._stream = self.path.open("w", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise self._unwritten(error) from None

    def finish(self) -> None:
        try:
            self._stream.flush()
            if self.count:
                self.path.replace(self._final)
                self.path = self._final
        except OSError as error:
            raise self._unwritten(error) from None

    def write(self, refused: dict[str, Any]) -> None:
        try:
            self._stream.write(json.dumps(refused, ensure_ascii=False) + "\n")
        except OSError as error:
            raise self._unwritten(error) from None
        self.count += 1

    def _unwritten(self, error: OSError) -> InvalidValue:
        problem = f"cannot be written: {error.strerror}"
        return InvalidValue(str(self._final), problem, "another file with --rejected")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # finish has written all rows, or another error is raised
            self._stream.close()
        if self.count == 0:
            self.path.unlink(missing_ok=True)
