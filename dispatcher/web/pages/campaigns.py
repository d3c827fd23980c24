"""Campaigns: which there are, what came of one, and one from a file, planned exactly and booked."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from copy import copy
from datetime import timedelta
from typing import NamedTuple

from starlette.responses import Response

from dispatcher.errors import InvalidDraft, InvalidValue
from dispatcher.message import MAX_CAMPAIGN, Status, check_text
from dispatcher.web.access import Right
from dispatcher.web.bounds import StreamedResponse
from dispatcher.web.pages.figures import PLAN_HEIGHT, WIDTH
from dispatcher.web.pages.lists import STATUSES
from dispatcher.web.pages.site import PageRoute, Visit
from dispatcher.web.pages.uploads import MOST_BYTES, MOST_ROWS, Upload, UploadState, stored
from dispatcher.web.problems import Refused

_LOOK_SECONDS = 0.5
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
            counts, is_whole = _counted(visit, campaign, visit.patience)
        else:
            listed, is_last = _listed(visit)
    except InvalidDraft as refused:
        error = visit.error_text(refused)
    return visit.show(
        "campaigns.html", 422 if error else 200, campaign=campaign, counts=counts, error=error,
        is_whole=is_whole, listed=listed, is_last=is_last, statuses=STATUSES,
        uploads=visit.site.uploads.of(visit.caller),
        longest=MAX_CAMPAIGN, most_mib=MOST_BYTES // 1024**2, most_rows=MOST_ROWS,
    )  # fmt: skip


def _counted(
    visit: Visit, campaign: str, patience: timedelta
) -> tuple[dict[str, dict[Status, int]], bool]:
    wanted = visit.selection(visit.caller.narrowed({"campaign": campaign}))
    return visit.parts.listing.counted(wanted, patience=patience)


def _listed(visit: Visit) -> tuple[list[ListedCampaign], bool]:
    """Return some campaigns of messages that the visitor sees, and whether these are the last."""
    after = visit.query["after"] and check_text("after", visit.query["after"], longest=MAX_CAMPAIGN)
    until = visit.parts.clock.monotonic() + _LIST_SECONDS
    listed: list[ListedCampaign] = []
    for name in visit.parts.listing.campaigns(after=after):
        if len(listed) == _MOST_LISTED:
            return listed, False
        counts, is_whole = _counted(visit, name, timedelta(0))
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
        upload = _kept(visit)
    except InvalidValue as refused:
        return campaigns(visit, visit.error_text(refused))
    visit.site.uploads.add(upload)
    upload.start(visit.dispatcher, UploadState.PLANNING)
    visit.note(f"plan of upload {upload.token}")
    return visit.go(f"/campaigns/uploads/{upload.token}")


def _kept(visit: Visit) -> Upload:
    form, file = visit.form, visit.files.get("file")
    campaign = check_text("campaign", form["campaign"], longest=MAX_CAMPAIGN)
    if file is None or not file.filename:
        raise InvalidValue("file", "none given", "a file .csv or .jsonl")
    upload = Upload(
        caller=visit.caller,
        name=file.filename,
        campaign=campaign,
        channel=form.get("channel"),
        on_conflict="shift" if form.is_on("shift") else None,
        file=stored(file.file),
        at=visit.parts.clock.now(),
        turn=visit.site.uploads.turn,
    )
    try:
        with upload.source():
            pass
    except InvalidValue:
        upload.forget()
        raise
    return upload


def uploaded(visit: Visit) -> Response:
    upload = copy(_chosen_upload(visit))  # a thread goes on with it
    return visit.show("upload.html", upload=upload, histogram=upload.histogram, width=WIDTH,
                      height=PLAN_HEIGHT, numbers=numbers_of(upload))  # fmt: skip


def book(visit: Visit) -> Response:
    upload = _chosen_upload(visit)
    if upload.plan is None:
        raise Refused(409, "not-planned", "the file is not planned yet")
    if upload.start(visit.dispatcher, UploadState.BOOKING):
        visit.note(f"booking of upload {upload.token}")
    return visit.go(f"/campaigns/uploads/{upload.token}")


def live(visit: Visit) -> Response:
    numbers = _numbers(visit, _chosen_upload(visit))
    return StreamedResponse("pages", numbers, visit.site.streams, visit.caller.name)


async def _numbers(visit: Visit, upload: Upload) -> AsyncIterator[str]:
    while upload.is_running:
        numbers = await visit.site.threads.run(numbers_of, upload)
        yield f"event: numbers\ndata: {json.dumps(numbers)}\n\n"
        await asyncio.sleep(_LOOK_SECONDS)
    yield "event: ended\ndata: {}\n\n"


def numbers_of(upload: Upload) -> Mapping[str, str]:
    return {"accepted": f"{upload.counted.accepted:,}", "refused": f"{upload.turned_away:,}"}


def _chosen_upload(visit: Visit) -> Upload:
    return visit.site.uploads.find(visit.request.path_params["token"], visit.caller)


_ONE = "/campaigns/uploads/{token}"
_WRITE = (Right.MESSAGES_READ, Right.MESSAGES_WRITE)
PAGES = (
    PageRoute("/campaigns", campaigns, title="Campaigns", names=("campaign", "after")),
    PageRoute("/campaigns", drop, "POST", names=("file", "campaign", "channel", "shift"),
              rights=_WRITE, most_bytes=MOST_BYTES + _FORM_BYTES),
    PageRoute(_ONE, uploaded, rights=_WRITE),
    PageRoute(_ONE, book, "POST", rights=_WRITE),
    PageRoute(f"{_ONE}/live", live, rights=_WRITE),
)  # fmt: skip
