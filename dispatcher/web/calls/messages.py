"""Submitting, planning and reading messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import Header, Path, Query, Request
from starlette.responses import Response

from dispatcher.client import selection_of
from dispatcher.message import Message, check_text
from dispatcher.selection import Wanted, id_of, read_scopes
from dispatcher.submission import ReplyOf
from dispatcher.web import models, problems
from dispatcher.web.access import Caller, Right
from dispatcher.web.context import CallContext, Context
from dispatcher.web.replies import LONGEST_KEY, Answer, etag_of, submit_once

_PATIENCE = timedelta(seconds=1)
"""How long a list looks for messages: it has a thread that submits need, too."""

Id = Annotated[str, Path(json_schema_extra={"format": "uuid"})]


async def submit(request: Request) -> Response:
    """Accept a message for a future time."""
    context = await Context.of(request)
    return await context.service.threads.run(_submitted, context)


def _submitted(context: Context) -> Response:
    caller, new = context.admit(), context.payload(models.NewMessage)
    call, parts = context.keyed_call, context.service.parts
    draft = caller.own(new.draft(None if call is None else caller.own_key(call.key)))

    def act(reply_of: ReplyOf | None) -> Message:
        with context.traced():
            return parts.submitter.submit(draft, parts.own_transaction, reply_of=reply_of)

    def answer(message: Message) -> Answer:
        headers = {"Location": f"{context.root}/v1/messages/{message.id}"}
        return Answer(201, context.shown(message).text(), headers, message.id)

    def is_unsent(message_id: UUID) -> bool:
        return bool(parts.messages.unsent(parts.messages.find_many([message_id])))

    return submit_once(parts.replies, call, act, answer, is_unsent)


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

    A list looks for a second at most: a page may have fewer messages than `limit`, or none.
    """
    caller = context.admit()
    page = context.service.parts.listing.page(
        selection_of(_wanted(filters, caller), context.service.settings),
        limit=filters.limit,
        after=None if filters.cursor is None else id_of(filters.cursor, "cursor"),
        patience=_PATIENCE,
    )
    shown = [context.shown(each) for each in page]
    found = models.MessagesOut(messages=shown, cursor=page.after)
    headers = {} if page.after is None else context.next_page(page.after)
    return Answer(200, found.text(), headers).response()


def counts(context: CallContext, filters: Annotated[models.Filters, Query()]) -> Response:
    """Return how many messages match the filters, by channel and status."""
    caller = context.admit()
    found = context.dispatcher.counts(**_wanted(filters, caller))
    return Answer(200, models.CountsOut(counts=found).text()).response()


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
