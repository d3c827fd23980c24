"""Submitting, planning and reading messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import Header, Path, Query, Request
from starlette.responses import Response

from dispatcher.client import selection_of
from dispatcher.message import check_text
from dispatcher.selection import Selection, Wanted, id_of, read_scopes
from dispatcher.times.clock import SystemClock
from dispatcher.web import models, problems
from dispatcher.web.access import Caller, Right
from dispatcher.web.answers import LONGEST_KEY, Answer, etag_of
from dispatcher.web.context import CallContext, Context

_PATIENCE = timedelta(seconds=1)
"""How long a list looks for messages, and a count counts them."""
_READ_AT_ONCE, _MOST_BYTES = 50, 2_000_000
_MOST_COUNTED = 100_000

Id = Annotated[str, Path(json_schema_extra={"format": "uuid"})]


async def submit(request: Request) -> Response:
    """Accept a message for a future time."""
    context = await Context.of(request)
    return await context.service.threads.run(_submitted, context)


def _submitted(context: Context) -> Response:
    caller, new = context.admit(), context.payload(models.NewMessage)
    key, parts = context.idempotency_key, context.service.parts
    draft = caller.own(new.draft(None if key is None else caller.own_key(key)))
    with context.traced():
        entry = parts.submitter.entered(draft, parts.own_transaction)
    message = entry.answer()
    headers = {"Location": f"{context.root}/v1/messages/{message.id}"}
    if not entry.is_new:
        headers["Idempotency-Replayed"] = "true"
    return Answer(201, context.shown(message).text(), headers).response()


def plan(context: CallContext) -> Response:
    """Return the result that messages would have if they were submitted now."""
    caller = context.admit()
    messages = context.payloads(models.Plans, "messages", models.NewMessage)
    found = context.dispatcher.plan([caller.own(each.draft()) for each in messages])
    return Answer(200, models.PlanOut.of(found, context.problem).text()).response()


def list_messages(
    context: CallContext, filters: Annotated[models.PageFilters, Query()]
) -> Response:
    """List messages, the newest first; `Link` with `rel="next"` leads to the next page.

    A list looks for a second at most, and ends after 2 MB: a page may have fewer messages than
    `limit`, or none.
    """
    caller = context.admit()
    selection = selection_of(_wanted(filters, caller), context.service.settings)
    after = None if filters.cursor is None else id_of(filters.cursor, "cursor")
    shown, after = _shown(context, selection, filters.limit, after)
    headers = {} if after is None else context.next_page(after)
    # As models.MessagesOut writes it, message by message.
    cursor = "null" if after is None else f'"{after}"'
    text = f'{{"messages":[{",".join(shown)}],"cursor":{cursor}}}'
    return Answer(200, text, headers).response()


def _shown(
    context: Context, selection: Selection, limit: int, after: UUID | None
) -> tuple[list[str], UUID | None]:
    """Return messages as JSON, until they are many, long or slow to find; and where to go on.

    Few are read at once: a thousand with bodies may have 64 MB.
    """
    listing, shown, size = context.service.parts.for_pages().listing, list[str](), 0
    clock = SystemClock()
    until = clock.monotonic() + _PATIENCE.total_seconds()
    while True:
        left = timedelta(seconds=max(0.0, until - clock.monotonic()))
        many = min(limit - len(shown), _READ_AT_ONCE)
        page = listing.page(selection, limit=many, after=after, patience=left)
        for message in page:
            text = context.shown(message).text()
            size += len(text.encode())
            if size > _MOST_BYTES and shown:
                return shown, after
            shown.append(text)
            after = message.id
        after = page.after
        if after is None or len(shown) == limit or not left:
            return shown, after


def counts(context: CallContext, filters: Annotated[models.Filters, Query()]) -> Response:
    """Return how many messages match the filters, by channel and status.

    It counts for a second at most, and ends after 100,000: unless `complete`, there are more.
    """
    caller = context.admit()
    counted, complete = context.service.parts.for_pages().listing.counted(
        selection_of(_wanted(filters, caller), context.service.settings),
        patience=_PATIENCE,
        most=_MOST_COUNTED,
    )
    return Answer(200, models.CountsOut(counts=counted, complete=complete).text()).response()


def get(
    context: CallContext,
    message_id: Id,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match")] = None,
) -> Response:
    """Return a message; its `ETag` is for `If-Match`."""
    context.admit()
    found = context.seen(message_id)
    tag = etag_of(found)
    # A proxy that compresses answers marks their tags as weak.
    known = {each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")}
    if not known.isdisjoint(("*", tag)):
        return Response(status_code=304, headers={"ETag": tag})
    return context.answer(found).response()


def _wanted(filters: models.Filters, caller: Caller) -> Wanted:
    """Return the filters of a call, of messages of the caller's."""
    channel, scopes = caller.narrowed(
        filters.channel, read_scopes(filters.count or (), field="count")
    )
    if Right.RECIPIENTS_READ not in caller.rights and (filters.recipient or filters.scope):
        raise problems.forbidden(f"the key has no right {Right.RECIPIENTS_READ}")

    def own(name: str, key: str | None) -> str | None:
        return None if key is None else caller.own_key(check_text(name, key, longest=LONGEST_KEY))

    return {
        "status": filters.status,
        "channel": channel,
        "recipient": filters.recipient,
        "scope": filters.scope,
        "scopes": scopes or None,
        "campaign": filters.campaign,
        "idempotency_key": own("key", filters.key),
        "key_prefix": own("key_prefix", filters.key_prefix),
        "from_at": filters.from_at,
        "until_at": filters.until_at,
        "zone": filters.zone,
        "overdue": filters.overdue,
        "made_after": filters.made_after,
    }
