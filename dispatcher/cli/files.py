"""The files of an import: its source, and the file of refused rows."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Self

from dispatcher.errors import InvalidValue

STANDARD_INPUT = "-"
_LONGEST_LINE = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Source(AbstractContextManager["Source"]):
    """Lines of text from a file or standard input, one in memory at a time.

    ``total`` is the number of lines, None for standard input. A file is checked before its first
    line is read: InvalidValue is raised if it is missing, empty or no UTF-8. In standard input,
    bytes that are no UTF-8 become lone surrogates.
    """

    def __init__(self, name: str) -> None:
        self.total: int | None = None
        self._label = "standard input" if name == STANDARD_INPUT else name
        self._stream: IO[bytes] = sys.stdin.buffer
        if name != STANDARD_INPUT:
            self._stream = self._opened(Path(name))

    def lines(self) -> Iterator[str]:
        """Yield the lines with their ends."""
        number = 0
        while line := self._stream.readline(_LONGEST_LINE):
            if number == 0:
                self._check_start(line)
                line = line.removeprefix(codecs.BOM_UTF8)
            number += 1
            if len(line) == _LONGEST_LINE:
                most = f"at most {_LONGEST_LINE // 1024**2} MiB"
                raise self._refused(f"line {number} is too long", most)
            yield line.decode(errors="surrogateescape")
        if number == 0:
            raise self._refused("is empty", "rows")

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
        """Check the encoding and return the number of lines."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        lines, ended = 0, True
        self._check_start(stream.read(_CHUNK))
        stream.seek(0)
        while chunk := stream.read(_CHUNK):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                line = lines + error.object[: error.start].count(b"\n") + 1
                raise self._refused(f"line {line} is no UTF-8", "UTF-8") from None
            lines += chunk.count(b"\n")
            ended = chunk.endswith(b"\n")
        if decoder.getstate()[0]:
            raise self._refused(f"line {lines + 1} is no UTF-8", "UTF-8")
        return lines + (not ended)

    def _check_start(self, start: bytes) -> None:
        if not start.removeprefix(codecs.BOM_UTF8):
            raise self._refused("is empty", "rows")
        if start.startswith(_UTF_16):
            raise self._refused("is written in UTF-16", "UTF-8")

    def _refused(self, problem: str, accepted: str) -> InvalidValue:
        return InvalidValue(self._label, problem, accepted)


class RefusedRows(AbstractContextManager["RefusedRows"]):
    """A JSONL file of refused rows. Without refused rows, no file is made.

    Until :meth:`finish` they are in a file beside it, which the next import overwrites, so that an
    interrupted import can be run again unchanged. Raises InvalidValue if the file exists and is not
    empty, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._final = path
        self.path = path.with_name(f"{path.name}.part")
        try:
            if path.exists() and (not path.is_file() or path.stat().st_size > 0):
                raise InvalidValue(str(path), "exists", "another file with --rejected")
            self._stream = self.path.open("w", encoding="utf-8")
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise InvalidValue(str(path), problem, "another file with --rejected") from None

    def finish(self) -> None:
        """Rename the finished file to its final name."""
        self._stream.flush()
        if self.count:
            self.path.replace(self._final)
            self.path = self._final

    def write(self, refused: dict[str, Any]) -> None:
        """Add one row."""
        text = json.dumps(refused, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            text = json.dumps(refused)
        self._stream.write(text + "\n")
        self.count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        if self.count == 0:
            self.path.unlink(missing_ok=True)
