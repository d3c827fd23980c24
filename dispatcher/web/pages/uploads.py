"""Files of messages that visitors drop: planned, then booked, each in a thread of its own."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from threading import Lock, Thread
from typing import IO, BinaryIO

from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import DispatcherError, InvalidDraft, InvalidValue, Unavailable, alone
from dispatcher.message import Draft, OnConflict, Plan, Progress, Rejection, reason_of
from dispatcher.submission.rows import BadRow, DraftRow, Format, Source, read
from dispatcher.times.clock import Clock
from dispatcher.web.access import Caller
from dispatcher.web.pages.figures import Histogram, histogram
from dispatcher.web.problems import Refused

log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024 * 1024
"""The longest file."""
_MOST, _MOST_OF_ONE, _MOST_BYTES_KEPT = 16, 4, 4 * MOST_BYTES
"""Files of all visitors, files of one, and the bytes of all files."""
_KEPT_FOR = timedelta(hours=12)
MOST_ROWS = 200_000
"""Of one file: what each scope of a row has booked is in memory while a plan is made."""
_SHOWN = 20


class UploadState(StrEnum):
    DROPPED = "dropped"
    PLANNING = "planning"
    PLANNED = "planned"
    BOOKING = "booking"
    BOOKED = "booked"
    FAILED = "failed"


@dataclass(kw_only=True, eq=False, repr=False)
class Upload:
    """One file of messages.

    ``refused`` has the first refused rows, each with its line and the error; ``reasons`` counts
    all. After an ``error`` the last step may be started again: each row has an idempotency key, its
    own or one of the file's content and its line, so that none is booked twice.
    """

    caller: Caller
    name: str
    campaign: str
    channel: str | None
    on_conflict: OnConflict | None
    file: IO[bytes]
    at: datetime
    turn: Lock
    token: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: UploadState = UploadState.DROPPED
    counted: Progress = field(default_factory=lambda: Progress(0, 0, None))
    bad: int = 0
    rows: int | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[int, DispatcherError]] = field(default_factory=list)
    plan: Plan | None = None
    histogram: Histogram | None = None
    error: DispatcherError | None = None

    def __post_init__(self) -> None:
        with Path(self.file.name).open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
            self.size = file.tell()
        target = repr((content, self.campaign, self.channel)).encode("utf-8", "surrogatepass")
        self.digest = hashlib.sha256(target).hexdigest()[:32]
        self._lock = Lock()

    @property
    def is_running(self) -> bool:
        return self.state in (UploadState.PLANNING, UploadState.BOOKING)

    @property
    def turned_away(self) -> int:
        return self.counted.refused + self.bad

    def start(self, dispatcher: Dispatcher, state: UploadState) -> bool:
        """Plan or book it in a thread; return False where it is booked, or another one works."""
        with self._lock:
            if self.is_running or self.state is UploadState.BOOKED:
                return False
            self.state = state
        work = self._make_plan if state is UploadState.PLANNING else self._book
        Thread(target=self._run, args=(work, dispatcher), name="upload", daemon=True).start()
        return True

    def forget(self) -> None:
        self.file.close()  # and so deleted
        self.size = 0

    def _run(self, work: Callable[[Dispatcher], UploadState], dispatcher: Dispatcher) -> None:
        self.counted, self.bad, self.error = Progress(0, 0, None), 0, None
        self.reasons.clear()
        self.refused.clear()
        try:
            with self.turn:
                self.state = work(dispatcher)
        except DispatcherError as error:
            self.error, self.state = alone(error), UploadState.FAILED
        except Exception:
            log.exception("upload %s failed", self.token)
            self.error = InvalidValue(
                "file", "failed; the log of the server says why", "a file that can be read"
            )
            self.state = UploadState.FAILED

    def _make_plan(self, dispatcher: Dispatcher) -> UploadState:
        plan = app_of(dispatcher).submitter.plan(
            self._drafts(dispatcher), total=None, progress=self._count, refuse=self._refuse_draft
        )
        self.refused.sort(key=lambda each: each[0])
        self.histogram = histogram(plan)
        self.plan = replace(plan, asked={}, promised={})
        return UploadState.PLANNED

    def _book(self, dispatcher: Dispatcher) -> UploadState:
        results = dispatcher.submit_many(self._drafts(dispatcher), progress=self._count)
        unknown: DispatcherError | None = None
        for each in results:
            if isinstance(each, Rejection):
                self._refuse_draft(each)
                if isinstance(each.error, Unavailable):
                    unknown = each.error
        if unknown is not None:  # some rows can be booked yet: the file is kept
            raise unknown
        self.forget()
        return UploadState.BOOKED

    def source(self) -> Source:
        if Format.of(self.name) is None:
            raise InvalidValue("file", "its name shows no format", "a file .csv or .jsonl")
        return Source(self.file.name, label="file")

    def _drafts(self, dispatcher: Dispatcher) -> Iterator[Draft]:
        with self.source() as source:
            self.rows = source.total
            if (self.rows or 0) > MOST_ROWS:
                problem = f"more than {MOST_ROWS:,} rows"
                raise InvalidValue("file", problem, "parts, or `dispatcher import`")
            rows = read(
                source,
                Format.of(self.name) or Format.CSV,
                channel=self.channel,
                campaign=self.campaign,
                longest=dispatcher.settings.body_max_bytes,
            )
            for row in rows:
                draft = row.error if isinstance(row, BadRow) else self._own(row)
                if isinstance(draft, Draft):
                    yield draft
                else:
                    self.bad += 1
                    self._refuse(row.line, draft)

    def _own(self, row: DraftRow) -> Draft | InvalidDraft:
        key = row.idempotency_key
        try:
            key = self.caller.own_key(f"{self.digest}/{row.line}" if key is None else key)
            on_conflict = self.on_conflict or row.on_conflict
            return self.caller.own(replace(row, idempotency_key=key, on_conflict=on_conflict))
        except InvalidDraft as error:
            return error
        except Refused as refused:
            return InvalidDraft("row", refused.detail, "a message of your own")
        except (TypeError, ValueError):
            return InvalidDraft("scopes", "are none", "names by kind")

    def _count(self, counted: Progress) -> None:
        self.counted = counted

    def _refuse_draft(self, rejection: Rejection) -> None:
        self._refuse(getattr(rejection.draft, "line", rejection.number + 1), rejection.error)

    def _refuse(self, line: int, error: DispatcherError) -> None:
        self.reasons[reason_of(error)] += 1
        if len(self.refused) < _SHOWN:
            self.refused.append((line, alone(error)))


class Uploads:
    def __init__(self, clock: Clock) -> None:
        self.turn = Lock()
        """One file is worked on at a time: more would need more memory, and hold up other calls."""
        self._clock = clock
        self._lock = Lock()
        self._kept: list[Upload] = []

    def add(self, upload: Upload) -> None:
        """Keep one, instead of the oldest that no thread works on. Raises Refused."""
        with self._lock:
            while crowd := self._in_the_way(upload):
                old = next((kept for kept in crowd if not kept.is_running), None)
                if old is None:
                    upload.forget()
                    raise Refused(503, "too-many", "too many files are under way; try again later")
                self._kept.remove(old)
                old.forget()
            self._kept.append(upload)

    def _in_the_way(self, upload: Upload) -> list[Upload]:
        """Return the files of which one must go before another is kept, the oldest first."""
        own = [kept for kept in self._kept if kept.caller == upload.caller]
        if len(own) >= _MOST_OF_ONE:
            return own
        size = upload.size + sum(kept.size for kept in self._kept)
        return self._kept if len(self._kept) >= _MOST or size > _MOST_BYTES_KEPT else []

    def of(self, caller: Caller) -> list[Upload]:
        oldest = self._clock.now() - _KEPT_FOR
        with self._lock:
            for old in [kept for kept in self._kept if kept.at < oldest and not kept.is_running]:
                self._kept.remove(old)
                old.forget()
            return [kept for kept in reversed(self._kept) if kept.caller == caller]

    def find(self, token: str, caller: Caller) -> Upload:
        for upload in self.of(caller):
            if secrets.compare_digest(upload.token.encode(), token.encode()):
                return upload
        hours = _KEPT_FOR // timedelta(hours=1)
        detail = (
            "this file was dropped by another person, or is not kept any more: of a visitor the "
            f"last {_MOST_OF_ONE} are kept, for {hours} hours; drop it again, and nothing is "
            "booked twice"
        )
        raise Refused(404, "no-such-upload", detail)


def stored(stream: BinaryIO) -> IO[bytes]:
    """Return a copy of a file that ends with the process or when it is closed."""
    copy = NamedTemporaryFile(prefix="dispatcher-page-")  # noqa: SIM115 - it is kept
    copyfileobj(stream, copy)
    copy.flush()
    if copy.tell() > MOST_BYTES:
        copy.close()
        problem = f"more than {MOST_BYTES // 1024**2} MiB"
        raise InvalidValue("file", problem, "parts, or `dispatcher import`")
    return copy
