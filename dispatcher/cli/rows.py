"""Reads drafts from CSV and JSONL, row by row; a bad row becomes a BadRow with its error."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from dispatcher.errors import InvalidDraft, InvalidValue, kind_of, quoted
from dispatcher.message import Draft
from dispatcher.quota import parse_length

_TEXT = "text"
COLUMNS = (*(each.name for each in fields(Draft)), _TEXT)
"""The columns of a row: the fields of a draft, and ``text``, short for a body with one text."""
_NEEDED = (("channel",), ("recipient",), ("body", _TEXT, "template"), ("send_at", "send_in"))
_JSON_FIELDS = ("body", "data", "scopes")
_LENGTHS = ("send_in", "expire_after")
_FOLDS: Mapping[object, int] = {"0": 0, "1": 1, 0: 0, 1: 1}
_REFUSED = frozenset({"line", "error", "reason", "next_slot", "row"})


class Format(StrEnum):
    """The format of rows."""

    CSV = "csv"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Draft):
    """A draft, the line on which its row begins, and the row itself."""

    line: int
    row: Any = field(repr=False)


class BadRow(NamedTuple):
    """A row that is no draft, and its error."""

    line: int
    row: Any
    error: InvalidValue


def read(lines: Iterable[str], form: Format, *, channel: str | None) -> Iterator[Row | BadRow]:
    """Yield the rows; ``channel`` is for those that name none.

    Raises InvalidDraft if the columns, in JSONL those of the first row, are not those of a draft.
    """
    return _read_csv(lines, channel) if form is Format.CSV else _read_jsonl(lines, channel)


def _read_csv(lines: Iterable[str], channel: str | None) -> Iterator[Row | BadRow]:
    rows = _csv_rows(lines)
    header = next(rows, None)
    if header is None:
        return
    if isinstance(header, BadRow):
        raise header.error
    columns = [name.strip() for name in header[1]]
    _check_columns(columns)
    _check_needed(columns, channel)
    for row in rows:
        if isinstance(row, BadRow):
            yield row
            continue
        line, values = row
        if len(values) != len(columns):
            accepted = f"{len(columns)} fields, as the columns"
            yield BadRow(line, values, InvalidDraft("row", f"{len(values)} fields", accepted))
            continue
        given = {name: value for name, value in zip(columns, values, strict=True) if value}
        yield _row(line, given, given, channel)


def _csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]] | BadRow]:
    """Yield the fields of each row with the line it begins on."""
    kept: list[str] = []

    def watched() -> Iterator[str]:
        for line in lines:
            kept.append(line)
            yield line

    reader = csv.reader(watched(), strict=True)
    while True:
        kept.clear()
        line = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            several = f" (lines {line} to {reader.line_num})" if reader.line_num > line else ""
            refused = InvalidDraft("row", f"{error}{several}", "fields with closed quotes")
            yield BadRow(line, "".join(kept), refused)
            continue
        if _unreadable("".join(values)):
            yield BadRow(line, values, InvalidDraft("row", "is no UTF-8", "UTF-8"))
        elif values:
            yield line, values


def _read_jsonl(lines: Iterable[str], channel: str | None) -> Iterator[Row | BadRow]:
    is_first = True
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        row: Any = text.rstrip("\r\n")
        try:
            row = _unwrapped(_json_line(text))
            _require(isinstance(row, dict), "row", kind_of(row), "a JSON object")
        except InvalidDraft as error:
            yield BadRow(line, row, error)
            continue
        try:
            _check_columns(row)
        except InvalidDraft as error:
            if is_first:
                raise
            yield BadRow(line, row, error)
            continue
        is_first = False
        yield _row(line, row, {name: row[name] for name in row if row[name] is not None}, channel)


def _json_line(text: str) -> Any:
    _require(not _unreadable(text), "row", "is no UTF-8", "UTF-8")
    return _from_json("row", text)


def _unwrapped(value: Any) -> Any:
    """Return the original row from a line of a file of refused rows."""
    is_refused = isinstance(value, dict) and "row" in value and value.keys() <= _REFUSED
    return value["row"] if is_refused else value


def _row(line: int, row: Any, given: Mapping[str, Any], channel: str | None) -> Row | BadRow:
    values = dict(given)
    if channel is not None:
        values.setdefault("channel", channel)
    try:
        for name in ("channel", "recipient"):
            _require(name in values, name, "not given", "one for every row")
        _read_body(values)
        for name in _LENGTHS:
            if name in values:
                values[name] = _length(name, values[name])
        if "fold" in values:
            values["fold"] = _fold(values["fold"])
    except InvalidDraft as error:
        return BadRow(line, row, error)
    return Row(line=line, row=row, **values)


def _read_body(values: dict[str, Any]) -> None:
    given = sum(name in values for name in (_TEXT, "body", "template"))
    _require(given == 1, "body", "none or several of text, body and template given", "one of them")
    for name in _JSON_FIELDS:
        if isinstance(values.get(name), str):
            values[name] = _from_json(name, values[name])
    if _TEXT in values:
        text = values.pop(_TEXT)
        _require(isinstance(text, str), _TEXT, kind_of(text), "text")
        values["body"] = {_TEXT: text}


def _require(holds: bool, name: str, problem: str, accepted: str) -> None:
    if not holds:
        raise InvalidDraft(name, problem, accepted)


def _from_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidDraft(name, "is no JSON", "a JSON object") from None


def _length(name: str, value: object) -> timedelta:
    try:
        return parse_length(str(value))
    except InvalidValue as refused:
        raise InvalidDraft(name, refused.problem, refused.accepted) from None


def _fold(value: object) -> int:
    readable = isinstance(value, str | int) and value in _FOLDS
    problem = f"cannot read {quoted(value)}"
    _require(readable, "fold", problem, "0 for the first, 1 for the second time")
    return _FOLDS[value]


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
            raise InvalidDraft("columns", f"there are two named {quoted(name)}", "each once")
        seen.add(name)


def _check_needed(columns: Sequence[str], channel: str | None) -> None:
    for names in _NEEDED:
        if names == ("channel",) and channel is not None:
            continue
        if not set(names) & set(columns):
            hint = ", or --channel" if "channel" in names else ""
            raise InvalidDraft("columns", f"{' or '.join(names)} is missing", f"one{hint}")
