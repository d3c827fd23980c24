"""Campaigns: which there are, what came of one, and one from a file, planned exactly and booked."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from threading import Lock, Thread
from typing import IO, BinaryIO, NamedTuple

from starlette.responses import Response

from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import DispatcherError, InvalidDraft, InvalidValue, Unavailable, alone
from dispatcher.message import (
    MAX_CAMPAIGN,
    STATUSES,
    Draft,
    OnConflict,
    Plan,
    Progress,
    Rejection,
    Status,
    check_text,
    reason_of,
)
from dispatcher.selection import check_priority, read_number
from dispatcher.submission.rows import BadRow, DraftRow, Format, Source, read
from dispatcher.times.clock import Clock
from dispatcher.web.access import Caller, Right
from dispatcher.web.pages.lists import WIDTH, summed
from dispatcher.web.pages.site import PageRoute, Visit
from dispatcher.web.problems import Refused

log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024 * 1024
"""The longest file."""
_MOST_KEPT, _MOST_OF_ONE = 8, 4
"""Files of all visitors, and files of one."""
_KEPT_FOR = timedelta(hours=12)
MOST_ROWS = 200_000
"""Rows of one file: a plan keeps in memory what the scopes of every row have booked."""
_MOST_REFUSED = 20
PLAN_HEIGHT = 110
_MOST_STEPS = 40
_MINUTE = timedelta(minutes=1)
_STEPS = tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 2_880, 10_080, 40_320)
)
_FORM_BYTES = 65_536
_MOST_LISTED = 50
_LIST_SECONDS = 0.08
"""How long the list of campaigns may take before it shows what it has found."""


class ListedCampaign(NamedTuple):
    """A campaign, and how many messages of each status it has; there are more unless whole."""

    name: str
    by_status: Mapping[Status, int]
    is_whole: bool


def campaigns(visit: Visit, error: str | None = None) -> Response:
    campaign = visit.query.get("campaign")
    counts, is_whole, listed, is_last = None, True, None, True
    try:
        if campaign is not None:
            counts, is_whole = _count_of(visit, campaign, visit.patience)
        else:
            listed, is_last = _list(visit)
    except InvalidDraft as refused:
        error = visit.error_text(refused)
    return visit.show(
        "campaigns.html", 422 if error else 200, campaign=campaign, counts=counts, error=error,
        is_whole=is_whole, listed=listed, is_last=is_last, statuses=STATUSES,
        uploads=_uploads(visit).of(visit.caller),
        longest=MAX_CAMPAIGN, most_mib=MOST_BYTES // 1024**2, most_rows=MOST_ROWS,
    )  # fmt: skip


def _count_of(
    visit: Visit, campaign: str, patience: timedelta
) -> tuple[dict[str, dict[Status, int]], bool]:
    selection = visit.selection(visit.caller.narrowed({"campaign": campaign}))
    return visit.parts.listing.counted(selection, patience=patience)


def _list(visit: Visit) -> tuple[list[ListedCampaign], bool]:
    """Return some campaigns of messages that the visitor sees, and whether these are the last."""
    after = visit.query["after"] and check_text("after", visit.query["after"], longest=MAX_CAMPAIGN)
    until = visit.parts.clock.monotonic() + _LIST_SECONDS
    listed: list[ListedCampaign] = []
    for name in visit.parts.listing.campaigns(after=after):
        if len(listed) == _MOST_LISTED:
            return listed, False
        counts, is_whole = _count_of(visit, name, timedelta(0))
        if counts:
            by_status: Counter[Status] = Counter()
            for of_channel in counts.values():
                by_status.update(of_channel)
            listed.append(ListedCampaign(name, by_status, is_whole))
        if visit.parts.clock.monotonic() >= until:
            return listed, False
    return listed, True


def drop(visit: Visit) -> Response:
    try:
        upload = _read_upload(visit)
    except InvalidValue as refused:
        return campaigns(visit, visit.error_text(refused))
    _uploads(visit).add(upload)
    upload.start(visit.dispatcher, UploadState.PLANNING)
    visit.note(f"plan of upload {upload.token}")
    return visit.go(f"/campaigns/uploads/{upload.token}")


def _read_upload(visit: Visit) -> Upload:
    form, file = visit.form, visit.files.get("file")
    campaign = check_text("campaign", form["campaign"], longest=MAX_CAMPAIGN)
    if file is None or not file.filename:
        raise InvalidValue("file", "none given", "a file .csv or .jsonl")
    upload = Upload(
        caller=visit.caller,
        name=file.filename,
        campaign=campaign,
        channel=form.get("channel"),
        priority=check_priority(read_number(form["priority"])) if form["priority"] else None,
        on_conflict="shift" if form.is_on("shift") else None,
        file=copy_of(file.file),
        at=visit.parts.clock.now(),
        turn=_uploads(visit).turn,
    )
    try:
        with upload.source():
            pass
    except InvalidValue:
        upload.file.close()  # and so deleted
        raise
    return upload


def uploaded(visit: Visit) -> Response:
    upload = copy(_find_upload(visit))  # a thread goes on with it
    return visit.show("upload.html", upload=upload, histogram=upload.histogram, width=WIDTH,
                      height=PLAN_HEIGHT)  # fmt: skip


def book(visit: Visit) -> Response:
    upload = _find_upload(visit)
    if upload.plan is None:
        raise Refused(409, "not-planned", "the file is not planned yet")
    if upload.start(visit.dispatcher, UploadState.BOOKING):
        visit.note(f"booking of upload {upload.token}")
    return visit.go(f"/campaigns/uploads/{upload.token}")


def _uploads(visit: Visit) -> Uploads:
    uploads: Uploads = visit.site.kept.setdefault(Uploads, Uploads(visit.parts.clock))
    return uploads


def _find_upload(visit: Visit) -> Upload:
    return _uploads(visit).find(visit.request.path_params["token"], visit.caller)


_ONE = "/campaigns/uploads/{token}"
_WRITE = (Right.MESSAGES_READ, Right.MESSAGES_WRITE)
PAGES = (
    PageRoute("/campaigns", campaigns, title="Campaigns", names=("campaign", "after")),
    PageRoute("/campaigns", drop, "POST",
              names=("file", "campaign", "channel", "priority", "shift"), rights=_WRITE,
              most_bytes=MOST_BYTES + _FORM_BYTES),
    PageRoute(_ONE, uploaded, rights=_WRITE),
    PageRoute(_ONE, book, "POST", rights=_WRITE),
)  # fmt: skip


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
    priority: int | None
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
        self.refused.sort(key=lambda refusal: refusal[0])
        self.histogram = histogram(plan)
        self.plan = replace(plan, asked={}, promised={})
        return UploadState.PLANNED

    def _book(self, dispatcher: Dispatcher) -> UploadState:
        results = dispatcher.submit_many(self._drafts(dispatcher), progress=self._count)
        unknown: DispatcherError | None = None
        for result in results:
            if isinstance(result, Rejection):
                self._refuse_draft(result)
                if isinstance(result.error, Unavailable):
                    unknown = result.error
        if unknown is not None:  # some rows can be booked yet: the file is kept
            raise unknown
        self.file.close()  # and so deleted
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
                priority=self.priority,
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
        if len(self.refused) < _MOST_REFUSED:
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
            crowd = [kept for kept in self._kept if kept.caller == upload.caller]
            if len(crowd) < _MOST_OF_ONE:
                crowd = self._kept if len(self._kept) >= _MOST_KEPT else []
            old = next((kept for kept in crowd if not kept.is_running), None)
            if crowd and old is None:
                upload.file.close()
                raise Refused(503, "too-many", "too many files are under way; try again later")
            if old is not None:
                self._forget(old)
            self._kept.append(upload)

    def _forget(self, upload: Upload) -> None:
        self._kept.remove(upload)
        upload.file.close()

    def of(self, caller: Caller) -> list[Upload]:
        oldest = self._clock.now() - _KEPT_FOR
        with self._lock:
            for old in [kept for kept in self._kept if kept.at < oldest and not kept.is_running]:
                self._forget(old)
            return [kept for kept in reversed(self._kept) if kept.caller == caller]

    def find(self, token: str, caller: Caller) -> Upload:
        for upload in self.of(caller):
            if secrets.compare_digest(upload.token.encode(), token.encode()):
                return upload
        hours = _KEPT_FOR // timedelta(hours=1)
        detail = (
            "another person dropped this file, or it is not kept any more: the last "
            f"{_MOST_OF_ONE} of a visitor are kept for {hours} hours; drop it again, and "
            "nothing is booked twice"
        )
        raise Refused(404, "no-such-upload", detail)


def copy_of(stream: BinaryIO) -> IO[bytes]:
    """Return a copy of a file that ends with the process or when it is closed."""
    copy = NamedTemporaryFile(prefix="dispatcher-page-")  # noqa: SIM115 - it is kept
    copyfileobj(stream, copy)
    copy.flush()
    return copy


class Stretch(NamedTuple):
    at: datetime
    asked: int
    promised: int


class Histogram(NamedTuple):
    step: timedelta
    most: int
    stretches: Sequence[Stretch]


def histogram(plan: Plan) -> Histogram | None:
    times = [*plan.asked, *plan.promised]
    if not times:
        return None
    first, last = min(times), max(times)
    step = next((step for step in _STEPS if (last - first) // step < _MOST_STEPS), None)
    if step is None:
        step = _STEPS[-1] * -(-(last - first + _MINUTE) // (_STEPS[-1] * _MOST_STEPS))
    count = (last - first) // step + 1
    asked, promised = (summed(counts, first, step, count) for counts in (plan.asked, plan.promised))
    stretches = [Stretch(first + n * step, asked[n], promised[n]) for n in range(count)]
    return Histogram(step, max(*asked, *promised), stretches)
