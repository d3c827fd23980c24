"""Submitting, planning, reading and changing messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, cast
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Header, Path, Query, Request
from starlette.responses import Response

from dispatcher.client import selection_of
from dispatcher.errors import InvalidDraft, MessageChanged, StoreUnavailable
from dispatcher.selection import Selection, Wanted, id_of, read_scopes
from dispatcher.times.clock import SystemClock
from dispatcher.web import models
from dispatcher.web.access import Caller, Right
from dispatcher.web.answers import answer, etag_of
from dispatcher.web.context import KEY_HEADER, CallContext, Context, problem_for

_PATIENCE = timedelta(seconds=1)
"""How long a list looks for messages, and a count counts them."""
_READ_AT_ONCE, _MOST_BYTES = 50, 2_000_000
_MOST_COUNTED = 100_000
_TRIES = 10
"""How often a change is made anew because another call changed the message in between."""

Id = Annotated[str, Path(json_schema_extra={"format": "uuid"})]
IfMatch = Annotated[str | None, Header(alias="If-Match")]


async def submit(request: Request) -> Response:
    """Accept a message for a future time."""
    context = await Context.of(request)
    return await context.service.threads.run(_submitted, context)


def _submitted(context: Context) -> Response:
    caller, new = context.admit(), context.payload(models.NewMessage)
    key, parts = caller.own_key(context.idempotency_key, KEY_HEADER), context.service.parts
    draft = caller.own(new.draft(key))
    with context.traced():
        entry = parts.submitter.entered(draft, parts.own_transaction)
    message = entry.answer()
    root = context.request.scope.get("root_path", "")
    headers = {"Location": f"{root}/v1/messages/{message.id}"}
    if not entry.is_new:
        headers["Idempotency-Replayed"] = "true"
    return answer(context.shown(message), 201, headers)


def plan(context: CallContext) -> Response:
    """Return the result that messages would have if they were submitted now."""
    messages = context.payloads(models.Plans, "messages", models.NewMessage)
    made = context.dispatcher.plan([context.caller.own(each.draft()) for each in messages])
    return answer(models.PlanOut.of(made, partial(problem_for, context.request)))


def list_messages(
    context: CallContext, filters: Annotated[models.PageFilters, Query()]
) -> Response:
    """List messages, the newest first; `Link` with `rel="next"` leads to the next page.

    A list looks for a second at most, and ends after 2 MB: a page may have fewer messages than
    `limit`, or none.
    """
    selection = selection_of(_wanted(filters, context.caller), context.service.settings)
    after = None if filters.cursor is None else id_of(filters.cursor, "cursor")
    shown, after = _shown(context, selection, filters.limit, after)
    headers = {}
    if after is not None:
        asked = context.request.query_params.multi_items()
        query = [*(pair for pair in asked if pair[0] != "cursor"), ("cursor", str(after))]
        headers["Link"] = f'<{context.request.url.path}?{urlencode(query)}>; rel="next"'
    return answer(models.MessagesOut(messages=shown, cursor=after), headers=headers)


def _shown(
    context: Context, selection: Selection, limit: int, after: UUID | None
) -> tuple[list[models.MessageOut], UUID | None]:
    """Return messages, until they are many, long or slow to find; and where to go on.

    Few are read at once: a thousand with bodies may have 64 MB.
    """
    listing, clock = context.service.parts.for_pages().listing, SystemClock()
    shown, size = list[models.MessageOut](), 0
    until = clock.monotonic() + _PATIENCE.total_seconds()
    while True:
        left = timedelta(seconds=max(0.0, until - clock.monotonic()))
        many = min(limit - len(shown), _READ_AT_ONCE)
        page = listing.page(selection, limit=many, after=after, patience=left)
        for message in page:
            seen = context.shown(message)
            size += len(seen.text().encode())
            if size > _MOST_BYTES and shown:
                return shown, after
            shown.append(seen)
            after = message.id
        after = page.after
        if after is None or len(shown) == limit or not left:
            return shown, after


def counts(context: CallContext, filters: Annotated[models.Filters, Query()]) -> Response:
    """Return how many messages match the filters, by channel and status.

    It counts for a second at most, and ends after 100,000: unless `complete`, there are more.
    """
    selection = selection_of(_wanted(filters, context.caller), context.service.settings)
    counted, complete = context.service.parts.for_pages().listing.counted(
        selection, patience=_PATIENCE, most=_MOST_COUNTED
    )
    return answer(models.CountsOut(counts=counted, complete=complete))


def get(
    context: CallContext,
    message_id: Id,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match")] = None,
) -> Response:
    """Return a message; its `ETag` is for `If-Match`."""
    movable = context.seen(message_id)
    tag = etag_of(movable)
    # A proxy that compresses answers marks their tags as weak.
    known = {each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")}
    if not known.isdisjoint(("*", tag)):
        return Response(status_code=304, headers={"ETag": tag})
    return answer(context.shown(movable.message), headers={"ETag": tag})


def update(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
    """Give a scheduled message another body."""
    change = context.payload(models.MessageChange).model_dump()
    return _changed(context, message_id, if_match, context.dispatcher.update, **change)


def cancel(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
    """Cancel a scheduled message; its quota is free again at once."""
    return _changed(context, message_id, if_match, context.dispatcher.cancel)


def reschedule(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
    """Move a scheduled message to another time; it must fit every quota.

    A move by a length is made again by each repeat, so it takes no `Idempotency-Key`.
    """
    time = context.payload(models.NewTime)
    if time.is_relative and KEY_HEADER in context.request.headers:
        problem = "given for a move by a length, which a repeat would make again"
        raise InvalidDraft(KEY_HEADER, problem, "no key, or a move to send_at")
    wanted = time.given(context.service.parts.clock.now())
    return _changed(context, message_id, if_match, context.dispatcher.reschedule, **wanted)


def retry(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
    """Give a failed message further attempts."""
    given = (context.payload(models.Retry) if context.raw else models.Retry()).model_dump()
    return _changed(context, message_id, if_match, context.dispatcher.retry, **given)


def release(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
    """Release a held message to be sent, perhaps for the second time."""
    return _changed(context, message_id, if_match, context.dispatcher.release)


def drop(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
    """End a held message as failed."""
    given = (context.payload(models.Drop) if context.raw else models.Drop()).model_dump()
    return _changed(context, message_id, if_match, context.dispatcher.drop, **given)


def _changed(
    context: Context,
    message_id: str,
    if_match: str | None,
    change: Callable[..., object],
    **given: Any,
) -> Response:
    """Make a change to the version that an ``If-Match`` header names; answer by what it is then.

    A change ends in the same state when it is repeated.
    """
    tags = {tag.strip() for tag in ("*" if if_match is None else if_match).split(",")}
    for _ in range(_TRIES):
        before = context.seen(message_id)
        if tags.isdisjoint(("*", etag_of(before))):
            raise MessageChanged(before.message.id)
        unless = None if if_match is None else before.message
        try:
            change(before.message.id, **given, if_unchanged=unless)
        except MessageChanged:
            continue  # judged anew by the header
        now = context.service.parts.messages.movable(before.message.id)
        return answer(context.shown(now.message), headers={"ETag": etag_of(now)})
    raise StoreUnavailable("other calls kept changing the message", remedy="try again")


def _wanted(filters: models.Filters, caller: Caller) -> Wanted:
    channel, scopes = caller.narrowed(
        filters.channel, read_scopes(filters.count or (), field="count")
    )
    if filters.recipient or filters.scope:
        caller.check(Right.RECIPIENTS_READ)
    wanted = filters.model_dump(include=set(Wanted.__annotations__)) | {
        "channel": channel,
        "scopes": scopes or None,
        "idempotency_key": caller.own_key(filters.key, "key"),
        "key_prefix": caller.own_key(filters.key_prefix, "key_prefix"),
    }
    return cast("Wanted", wanted)
