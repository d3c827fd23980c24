"""The calls of the HTTP API that are answered at once, each by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Annotated, Any, cast
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Header, Path, Query, Request
from starlette.responses import Response

from dispatcher.client import selection_of
from dispatcher.errors import InvalidDraft, MessageChanged, StoreUnavailable, quoted
from dispatcher.reservation import Timeline
from dispatcher.selection import Selection, Wanted, id_of, read_scopes
from dispatcher.store.lists import Pause, Suppression
from dispatcher.store.schema import Movable
from dispatcher.times import send_time
from dispatcher.times.clock import SystemClock
from dispatcher.web import models
from dispatcher.web.access import Caller, Right
from dispatcher.web.context import KEY_HEADER, CallContext, Context, problem_for

_MEDIA_TYPE = "application/json"
_PATIENCE = timedelta(seconds=1)
"""How long a list looks for messages, and a count counts them."""
_READ_AT_ONCE, _MOST_BYTES = 50, 2_000_000
_MOST_COUNTED = 100_000
_TRIES = 10
"""How often a change is made anew because another call changed the message in between."""
_LONGEST_LOAD_HOURS = 168
_MOST_REFUSALS = 1_000
_LONGEST_TIMELINE_DAYS = 366
_RECIPIENT, _CHANNEL = "recipient", "channel"
_ONLY_RECIPIENTS = f"only with the kind {_RECIPIENT!r}"

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


def timeline(
    context: CallContext,
    kind: str,
    scope: str,
    *,
    channel: str | None = None,
    zone: str | None = None,
    start: str | None = None,
    days: Annotated[float, Query(gt=0, le=_LONGEST_TIMELINE_DAYS)] = 2,
) -> Response:
    """Return the booked, blocked and free times of a scope.

    Its kind may be `recipient`, or `channel` for a channel as a whole.
    """
    context.caller.check_scope(kind, scope)
    length = timedelta(days=days)
    read = _read(context, kind, scope, channel, zone=zone, start=start, length=length)
    return answer(models.TimelineOut.model_validate(read))


def next_slot(
    context: CallContext,
    kind: str,
    scope: str,
    *,
    channel: str | None = None,
    after: str | None = None,
    zone: str | None = None,
    quiet_hours: str | None = None,
    send_window: str | None = None,
) -> Response:
    """Return the first time that fits every quota of a scope. Books nothing.

    For a kind other than `recipient`, only the quotas of that scope are judged: it has no
    `channel`, `quiet_hours` or `send_window`. A recipient who has opted out gets a slot, too: see
    `suppressed`.
    """
    caller = context.caller
    if channel is not None:
        caller.check_channel(channel)
    shown: dict[str, Any] = {}
    if kind == _RECIPIENT:
        shown["next_slot"] = context.dispatcher.next_slot(
            recipient=scope, channel=channel, after=after, zone=zone, quiet_hours=quiet_hours,
            send_window=send_window, scopes=dict([caller.scope]) if caller.scope else None,
        )  # fmt: skip
        if caller.sees_opt_outs:
            shown["suppressed"] = context.service.parts.suppression_list.has(scope, channel)
    else:
        caller.check_scope(kind, scope)
        for name, hours in (("quiet_hours", quiet_hours), ("send_window", send_window)):
            if hours is not None:
                raise InvalidDraft(
                    name, f"given for a scope of the kind {quoted(kind)}", _ONLY_RECIPIENTS
                )
        start = None
        if after is not None:  # as Dispatcher.next_slot reads it
            start = send_time.parse(after, zone=zone, field="after")
            now, farthest = context.service.parts.clock.now(), context.service.settings.max_horizon
            send_time.check_range(start, now=now, farthest=farthest, field="after")
        shown["next_slot"] = _read(context, kind, scope, channel, zone=zone, start=start).slots[0]
    return answer(models.SlotOut(**shown))


def _read(context: Context, kind: str, scope: str, channel: str | None, **given: Any) -> Timeline:
    """Read a timeline. Raises InvalidDraft for an unknown kind, or a channel where none counts."""
    if kind == _RECIPIENT:
        return context.dispatcher.timeline(scope, channel=channel, **given)
    kinds = (_RECIPIENT, _CHANNEL, *context.service.settings.scopes)
    if kind not in kinds:
        raise InvalidDraft("kind", f"there is no kind {quoted(kind)}", f"one of {', '.join(kinds)}")
    if channel is not None:
        raise InvalidDraft(
            "channel", f"given for a scope of the kind {quoted(kind)}", _ONLY_RECIPIENTS
        )
    if kind == _CHANNEL:
        return context.dispatcher.timeline(channel=scope, **given)
    return context.dispatcher.timeline(scope, kind=kind, **given)


def suppressions(context: CallContext, recipient: str) -> Response:
    """Return the opt-outs of a recipient."""
    stored = context.dispatcher.suppressed(recipient)
    return _suppressed(context, islice(stored, models.MOST_LISTED))


def suppress(context: CallContext, recipient: str) -> Response:
    """Opt a recipient out of one channel or of all; cancels its scheduled messages."""
    channel = context.payload(models.SuppressionIn).channel if context.raw else None
    cancelled = context.dispatcher.suppress(recipient, channel=channel)
    return answer(models.SuppressedOut(cancelled=cancelled))


def unsuppress(context: CallContext, recipient: str, channel: str | None = None) -> Response:
    """Revoke an opt-out; return those that remain."""
    return _suppressed(context, context.dispatcher.unsuppress(recipient, channel=channel))


def erase(context: CallContext) -> Response:
    """Erase what is stored of a recipient; messages under way are left to another call."""
    payload = context.payload(models.ErasureIn)
    done = context.dispatcher.erase(payload.recipient, keep_opt_out=payload.keep_opt_out)
    return answer(models.ErasedOut.model_validate(done))


def pauses(context: CallContext) -> Response:
    """Return the pauses: what is not sent until it is resumed."""
    return _paused(context, context.service.parts.pause_list.in_force())


def pause(context: CallContext, kind: str, name: str) -> Response:
    """Send nothing of a `channel`, `recipient`, `campaign` or scope; return all pauses."""
    return _paused(context, context.dispatcher.pause(kind, name))


def resume(context: CallContext, kind: str, name: str) -> Response:
    """End a pause; return those that remain."""
    return _paused(context, context.dispatcher.resume(kind, name))


def status(context: CallContext) -> Response:
    """Return counts, overdue messages, the load of the next hour, and processes."""
    return answer(models.StatusOut.of(context.dispatcher.status()))


def load(
    context: CallContext, hours: Annotated[float, Query(ge=1, le=_LONGEST_LOAD_HOURS)] = 24
) -> Response:
    """Return what is due in each minute of each channel, and when the last of it leaves."""
    to_come = context.dispatcher.load(within=timedelta(hours=hours))
    return answer(models.LoadOut.model_validate(to_come))


def refusals(
    context: CallContext,
    hours: Annotated[float, Query(gt=0, le=_LONGEST_LOAD_HOURS)] = 24,
    quota: str | None = None,
    last: Annotated[int, Query(ge=0, le=_MOST_REFUSALS)] = 20,
) -> Response:
    """Return which rules refused how many submits, and how far away the next slots were."""
    noted = context.dispatcher.refusals(since=timedelta(hours=hours), quota=quota, last=last)
    return answer(models.RefusalsOut.model_validate(noted))


def _suppressed(context: Context, stored: Iterable[Suppression]) -> Response:
    digest = context.service.digest
    shown = [models.SuppressionOut.of(each, context.caller, digest=digest) for each in stored]
    return answer(models.SuppressionsOut(suppressions=shown))


def _paused(context: Context, in_force: Iterable[Pause]) -> Response:
    digest = context.service.digest
    shown = [models.PauseOut.of(each, context.caller, digest=digest) for each in in_force]
    return answer(models.PausesOut(pauses=shown))


def answer(
    body: models.Out, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(body.text(), status, headers=headers, media_type=_MEDIA_TYPE)


def etag_of(found: Movable) -> str:
    """Return the ``ETag`` of a message: what its edits change, and its snoozes."""
    message = found.message
    counts = f"{found.token}-{message.attempt_count}-{message.max_attempts}"
    at_ms = round(message.next_attempt_at.timestamp() * 1_000)
    return f'"{counts}-{at_ms}-{message.status}"'
