"""The calls of the HTTP API, each a function: what is answered at once, then what lasts."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Annotated, Any, cast
from urllib.parse import urlencode
from uuid import UUID

from anyio import fail_after, sleep
from fastapi import Header, Path, Query, Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from dispatcher import Pause, ScopeQuotas, Suppression, Timeline, Wanted
from dispatcher.client import selection_of
from dispatcher.errors import DispatcherError, InvalidDraft, MessageChanged, Unavailable, quoted
from dispatcher.message import Draft, Message, Rejection, json_problem
from dispatcher.selection import Selection, id_of, read_scopes
from dispatcher.store.schema import Movable
from dispatcher.times import send_time
from dispatcher.times.clock import SystemClock
from dispatcher.web import models
from dispatcher.web.access import Caller, Right
from dispatcher.web.bounds import StreamedResponse
from dispatcher.web.context import KEY_HEADER, CallContext, Context, problem_for, validated
from dispatcher.web.problems import CUT_OFF, Refused

log = logging.getLogger(__name__)

_MEDIA_TYPE = "application/json"
_LIST_PATIENCE = timedelta(seconds=1)
"""How long a list looks for messages, and a count counts them."""
_READ_AT_ONCE, _MOST_BYTES = 50, 2_000_000
"""Few are read at once: a thousand with bodies may have 64 MB."""
_MOST_COUNTED = 100_000
_LONGEST_LOAD_HOURS = 168
_MOST_REFUSALS = 1_000
_LONGEST_TIMELINE_DAYS = 366
_RECIPIENT, _CHANNEL = "recipient", "channel"
_NDJSON = "application/x-ndjson"
_THE_LINE = "the line"
_LINES_AT_ONCE = 1_000
_BYTES_AT_ONCE = 1_000_000
_LINE_SECONDS = 60.0
"""How long a caller may send nothing: a batch has one of few places."""
_NOT_KNOWN = Refused(
    500,
    "outcome-unknown",
    "the line may have been accepted; lines with an idempotency_key can be repeated",
)
_EVENT_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,10}")
_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 15.0
"""After so long without an event a line tells the listener that the server is there."""
_EVENTS_AT_ONCE = 1_000

Id = Annotated[str, Path(json_schema_extra={"format": "uuid"})]
IfMatch = Annotated[str | None, Header(alias="If-Match")]


def submit(context: CallContext) -> Response:
    """Accept a message for a future time."""
    caller, new = context.caller, context.payload(models.NewMessage)
    key, parts = caller.own_key(context.idempotency_key, KEY_HEADER), context.service.parts
    draft = caller.own(new.draft(key))
    with context.traced():
        entry = parts.submitter.submit(draft, parts.own_transaction)
    message = entry.answer()
    root = context.request.scope.get("root_path", "")
    headers = {"Location": f"{root}/v1/messages/{message.id}"}
    if not entry.is_new:
        headers["Idempotency-Replayed"] = "true"
    return answer(context.shown(message), 201, headers)


def plan(context: CallContext) -> Response:
    """Return the result that messages would have if they were submitted now."""
    messages = context.payload(models.Plans).messages
    made = context.dispatcher.plan([context.caller.own(message.draft()) for message in messages])
    return answer(models.PlanOut.of(made, partial(problem_for, context.request)))


def list_messages(
    context: CallContext, filters: Annotated[models.PageFilters, Query()]
) -> Response:
    """List messages, the newest first; `Link` with `rel="next"` leads to the next page.

    A list looks for a second at most, and ends after 2 MB: a page may have fewer messages than
    `limit`, or none.
    """
    selection = _selection(context, filters)
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
    """Return messages, until they are many, long or slow to find; and where to go on."""
    listing, clock = context.service.parts.pages.listing, SystemClock()
    shown, size = list[models.MessageOut](), 0
    until = clock.monotonic() + _LIST_PATIENCE.total_seconds()
    while True:
        left = timedelta(seconds=max(0.0, until - clock.monotonic()))
        most = min(limit - len(shown), _READ_AT_ONCE)
        page = listing.page(selection, limit=most, after=after, patience=left)
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
    selection = _selection(context, filters)
    counted, complete = context.service.parts.pages.listing.counted(
        selection, patience=_LIST_PATIENCE, most=_MOST_COUNTED
    )
    return answer(models.CountsOut(counts=counted, complete=complete))


def get(
    context: CallContext,
    message_id: Id,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match")] = None,
) -> Response:
    """Return a message; its `ETag` is for `If-Match`."""
    movable = context.caller.movable(context.service.parts, message_id)
    tag = etag_of(movable)
    # A proxy that compresses answers marks their tags as weak.
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    if not known.isdisjoint(("*", tag)):
        return Response(status_code=304, headers={"ETag": tag})
    return answer(context.shown(movable.message), headers={"ETag": tag})


def reschedule(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
    """Move a scheduled message to another time; it must fit every quota.

    A move by a length is made again by each repeat, so it takes no `Idempotency-Key`.
    """
    time = context.payload(models.NewTime)
    if time.send_in_seconds is not None and KEY_HEADER in context.request.headers:
        problem = "cannot keep a repeat from moving by a length again"
        raise InvalidDraft(KEY_HEADER, problem, "no key, or a move to send_at")
    move = context.dispatcher.reschedule
    return _change(context, message_id, if_match, move, **time.fields())


def _edit(name: str, text: str, model: type[BaseModel] | None = None) -> Callable[..., Response]:
    """Return a call, described by ``text``, that makes the change of that name."""

    def edit(context: CallContext, message_id: Id, if_match: IfMatch = None) -> Response:
        fields = {} if model is None else context.payload(model).model_dump()
        return _change(context, message_id, if_match, getattr(context.dispatcher, name), **fields)

    edit.__name__, edit.__doc__ = name, text
    return edit


update = _edit(
    "update", "Give a scheduled message another body, or another priority.", models.MessageChange
)
cancel = _edit("cancel", "Cancel a scheduled message; its quota is free again at once.")
retry = _edit("retry", "Give a failed message further attempts.", models.Retry)
release = _edit("release", "Release a held message to be sent, perhaps for the second time.")
drop = _edit("drop", "End a held message as failed.", models.Drop)


def _change(
    context: Context,
    message_id: str,
    if_match: str | None,
    change: Callable[..., object],
    **parameters: Any,
) -> Response:
    """Make a change to the version that an ``If-Match`` header names; answer by what it is then."""
    parts = context.service.parts
    tags = {tag.strip() for tag in ("*" if if_match is None else if_match).split(",")}
    before = context.caller.movable(parts, message_id)
    is_any = "*" in tags
    if not is_any and etag_of(before) not in tags:
        raise MessageChanged(before.message.id)
    change(before.message.id, **parameters, if_unchanged=None if is_any else before.message)
    now = parts.messages.movable(before.message.id)
    return answer(context.shown(now.message), headers={"ETag": etag_of(now)})


def _selection(context: Context, filters: models.Filters) -> Selection:
    caller = context.caller
    narrowed = filters.model_dump(include=set(Wanted.__annotations__)) | {
        "scopes": read_scopes(filters.count or (), field="count"),
        "idempotency_key": caller.own_key(filters.key, "key"),
        "key_prefix": caller.own_key(filters.key_prefix, "key_prefix"),
    }
    return selection_of(caller.narrowed(cast("Wanted", narrowed)), context.service.settings)


def timeline(
    context: CallContext,
    kind: str,
    scope: str,
    *,
    channel: str | None = None,
    zone: str | None = None,
    start: str | None = None,
    days: Annotated[float, Query(gt=0, le=_LONGEST_TIMELINE_DAYS)] = 2,
    priority: int | None = None,
) -> Response:
    """Return the booked, blocked and free times of a scope.

    Its kind may be `recipient`, or `channel` for a channel as a whole.
    """
    context.caller.check_scope(kind, scope)
    length = timedelta(days=days)
    read = _read(context, kind, scope, channel, zone=zone, start=start, length=length,
                 priority=priority)  # fmt: skip
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
    priority: int | None = None,
) -> Response:
    """Return the first time that fits every quota of a scope. Books nothing.

    For a kind other than `recipient`, only the quotas of that scope are judged: it has no
    `channel`, `quiet_hours`, `send_window` or `priority`. A recipient who has opted out gets a
    slot, too: see `suppressed`.
    """
    caller = context.caller
    if channel is not None:
        caller.check_channel(channel)
    shown: dict[str, Any] = {}
    if kind == _RECIPIENT:
        shown["next_slot"] = context.dispatcher.next_slot(
            recipient=scope, channel=channel, after=after, zone=zone, quiet_hours=quiet_hours,
            send_window=send_window, priority=priority,
            scopes=dict([caller.scope]) if caller.scope else None,
        )  # fmt: skip
        if caller.sees_opt_outs:
            shown["suppressed"] = context.service.parts.suppression_list.has(scope, channel)
    else:
        caller.check_scope(kind, scope)
        _check_not_given(kind, quiet_hours=quiet_hours, send_window=send_window, priority=priority)
        start = None
        if after is not None:  # as Dispatcher.next_slot reads it
            start = send_time.parse(after, zone=zone, field="after")
            now, farthest = context.service.parts.clock.now(), context.service.settings.max_horizon
            send_time.check_range(start, now=now, farthest=farthest, field="after")
        shown["next_slot"] = _read(context, kind, scope, channel, zone=zone, start=start).slots[0]
    return answer(models.SlotOut(**shown))


def _read(context: Context, kind: str, scope: str, channel: str | None, **span: Any) -> Timeline:
    if kind == _RECIPIENT:
        return context.dispatcher.timeline(scope, channel=channel, **span)
    kinds = (_RECIPIENT, _CHANNEL, *context.service.settings.scopes)
    if kind not in kinds:
        raise InvalidDraft("kind", f"there is no kind {quoted(kind)}", f"one of {', '.join(kinds)}")
    _check_not_given(kind, channel=channel)
    if kind == _CHANNEL:
        return context.dispatcher.timeline(channel=scope, **span)
    return context.dispatcher.timeline(scope, kind=kind, **span)


def _check_not_given(kind: str, **parameters: object) -> None:
    for name, value in parameters.items():
        if value is not None:
            problem = f"given for a scope of the kind {quoted(kind)}"
            raise InvalidDraft(name, problem, f"only with the kind {_RECIPIENT!r}")


def suppressions(context: CallContext, recipient: str) -> Response:
    """Return the opt-outs of a recipient."""
    stored = context.dispatcher.suppressed(recipient)
    return _answer_opt_outs(context, islice(stored, models.MOST_LISTED))


def suppress(context: CallContext, recipient: str) -> Response:
    """Opt a recipient out of one channel or of all; cancels its scheduled messages."""
    channel = context.payload(models.SuppressionIn).channel
    cancelled = context.dispatcher.suppress(recipient, channel=channel)
    return answer(models.SuppressedOut(cancelled=cancelled))


def unsuppress(context: CallContext, recipient: str, channel: str | None = None) -> Response:
    """Revoke an opt-out; return those that remain."""
    return _answer_opt_outs(context, context.dispatcher.unsuppress(recipient, channel=channel))


def erase(context: CallContext) -> Response:
    """Erase what is stored of a recipient; messages under way are left to another call."""
    payload = context.payload(models.ErasureIn)
    done = context.dispatcher.erase(payload.recipient, keep_opt_out=payload.keep_opt_out)
    return answer(models.ErasedOut.model_validate(done))


def pauses(context: CallContext) -> Response:
    """Return the pauses: what is not sent until it is resumed."""
    return _answer_pauses(context, context.dispatcher.pauses())


def pause(context: CallContext, kind: str, name: str) -> Response:
    """Send nothing of a `channel`, `recipient`, `campaign`, `event` or scope; return all pauses."""
    return _answer_pauses(context, context.dispatcher.pause(kind, name))


def resume(context: CallContext, kind: str, name: str) -> Response:
    """End a pause; return those that remain."""
    return _answer_pauses(context, context.dispatcher.resume(kind, name))


def scope_settings(context: CallContext, kind: str | None = None) -> Response:
    """Return the first 1,000 scopes that have quotas or limits of their own."""
    listed = context.dispatcher.scope_settings(kind)[: models.MOST_LISTED]
    return answer(models.ScopeSettingsOut(scopes=[_quotas_out(context, one) for one in listed]))


def quotas_of(context: CallContext, kind: str, scope: str) -> Response:
    """Return the quotas of a scope, its own or those of its kind, and its limits."""
    return answer(_quotas_out(context, context.dispatcher.quotas_of(kind, scope)))


def set_quotas(context: CallContext, kind: str, scope: str) -> Response:
    """Give a scope quotas or limits of its own, known to every process within 5 seconds.

    What is booked stays; `over` counts what of it is more than they allow.
    """
    given, dispatcher = context.payload(models.QuotasIn), context.dispatcher
    now = None
    if given.limits is not None:
        now = (
            dispatcher.set_limits(kind, scope, given.limits)
            if given.limits
            else dispatcher.unset_limits(kind, scope)
        )
    if given.quotas is not None or now is None:
        now = dispatcher.set_quotas(kind, scope, given.quotas or ())
    return answer(_quotas_out(context, now))


def unset_quotas(context: CallContext, kind: str, scope: str) -> Response:
    """Give a scope the quotas of its kind again, and end its limits."""
    now = context.dispatcher.unset_quotas(kind, scope)
    if now.limits:
        now = context.dispatcher.unset_limits(kind, scope)
    return answer(_quotas_out(context, now))


def _quotas_out(context: Context, quotas: ScopeQuotas) -> models.ScopeQuotasOut:
    return models.ScopeQuotasOut.of(quotas, context.caller, context.service.digest)


def event(context: CallContext, name: str) -> Response:
    """Return an event that messages remind of."""
    return answer(models.NamedEventOut.model_validate(context.dispatcher.events.get(name)))


def set_event(context: CallContext, name: str) -> Response:
    """Set a new event. Again with the same time, it changes nothing."""
    given = context.payload(models.EventIn)
    made = context.dispatcher.events.set(name, given.at, given.zone)
    return answer(models.NamedEventOut.model_validate(made))


def move_event(context: CallContext, name: str) -> Response:
    """Move an event with all its scheduled messages, or change nothing."""
    given = context.payload(models.EventMove).model_dump()
    return answer(
        models.NamedEventOut.model_validate(context.dispatcher.events.move(name, **given))
    )


def cancel_event(context: CallContext, name: str) -> Response:
    """Cancel an event and its scheduled messages; later submits with it are refused."""
    return answer(models.NamedEventOut.model_validate(context.dispatcher.events.cancel(name)))


def list_series(
    context: CallContext,
    limit: Annotated[int, Query(ge=1, le=models.MOST_LISTED)] = 100,
    after: str | None = None,
) -> Response:
    """List series in the order of their names; `after` is the last name of the page before."""
    listed = context.dispatcher.series.list(limit=limit, after=after)
    shown = [models.SeriesOut.of(series, context.caller) for series in listed]
    return answer(models.SeriesListOut(series=shown))


def get_series(context: CallContext, name: str) -> Response:
    """Return a series."""
    return answer(models.SeriesOut.of(context.dispatcher.series.get(name), context.caller))


def add_series(context: CallContext, name: str) -> Response:
    """Add a series, whose messages are booked ahead, each once. The same one again is returned."""
    made = context.dispatcher.series.add(name, **context.payload(models.SeriesIn).fields())
    return answer(models.SeriesOut.of(made, context.caller))


def change_series(context: CallContext, name: str) -> Response:
    """Change what is given; the messages from `since` on are cancelled and booked anew."""
    made = context.dispatcher.series.change(name, **context.payload(models.SeriesChange).fields())
    return answer(models.SeriesOut.of(made, context.caller))


def remove_series(context: CallContext, name: str) -> Response:
    """End a series; its scheduled messages are cancelled."""
    return answer(models.CancelledOut(cancelled=context.dispatcher.series.remove(name)))


def pause_series(context: CallContext, name: str) -> Response:
    """Send nothing of a series for a while. Its messages keep their places."""
    context.dispatcher.series.pause(name)
    return answer(models.CancelledOut(cancelled=0))


def resume_series(context: CallContext, name: str) -> Response:
    """End a pause. What was missed leaves as the series says."""
    return answer(models.CancelledOut(cancelled=context.dispatcher.series.resume(name)))


def preview_series(
    context: CallContext,
    name: str,
    count: Annotated[int, Query(ge=1, le=models.MOST_LISTED)] = 10,
    zone: str | None = None,
) -> Response:
    """Return the next times of a series by its rule; `zone` is a recipient's, where it is local."""
    return answer(models.TimesOut(times=context.dispatcher.series.preview(name, count, zone)))


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


def _answer_opt_outs(context: Context, stored: Iterable[Suppression]) -> Response:
    caller, digest = context.caller, context.service.digest
    shown = [models.SuppressionOut.of(suppression, caller, digest) for suppression in stored]
    return answer(models.SuppressionsOut(suppressions=shown))


def _answer_pauses(context: Context, in_force: Iterable[Pause]) -> Response:
    caller, digest = context.caller, context.service.digest
    shown = [models.PauseOut.of(pause, caller, digest) for pause in in_force]
    return answer(models.PausesOut(pauses=shown))


def answer(
    body: models.Out, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(body.text(), status, headers=headers, media_type=_MEDIA_TYPE)


def etag_of(movable: Movable) -> str:
    """Return the ``ETag`` of a message: what its edits change, and its snoozes."""
    message = movable.message
    counts = f"{movable.token}-{message.attempt_count}-{message.max_attempts}"
    at_ms = round(message.next_attempt_at.timestamp() * 1_000)
    return f'"{counts}-{at_ms}-{message.status}"'


async def submit_batch(request: Request) -> Response:
    """Accept messages, one JSON object a line; answer each with a verdict on a line.

    The answer begins before the call has ended, and neither is in memory as a whole. A line has
    its own `idempotency_key`.
    """
    context, headers = Context(request), request.headers
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _NDJSON:
        raise Refused(415, "unsupported-media-type", f"send lines of JSON as {_NDJSON}")
    if "idempotency-key" in headers:
        raise InvalidDraft("Idempotency-Key", "given for a batch", "idempotency_key in lines")
    streams, name = context.service.streams, context.caller.name
    return StreamedResponse("batches", _verdicts(context), streams, name)


async def _verdicts(context: Context) -> AsyncIterator[str]:
    number, size, lines = 0, 0, list[bytes]()
    refused: Refused | None = None

    async def submitted() -> str:
        submit = partial(_submit_lines, context, number, lines)
        return await context.service.long.run_for(context.caller.name, submit)

    try:
        async for line in _lines(context.request.stream(), longest=context.longest):
            lines.append(line)
            size += len(line)
            if len(lines) == _LINES_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield await submitted()
                number, size, lines = number + len(lines), 0, []
    except Refused as error:  # what follows is not read
        refused = error
    if lines:
        yield await submitted()
    if refused is not None:
        yield _verdict(context, number + len(lines), refused.problem)


def _submit_lines(context: Context, first: int, lines: list[bytes]) -> str:
    """Submit some lines; behind the first ones the key is asked for, and counted, again."""
    request, numbers = context.request, range(first, first + len(lines))
    answers: dict[int, models.Json | Message] = {}
    drafts: dict[int, Draft] = {}
    try:
        if first:
            context.service.admission.admit(request)
        context.caller.check(Right.MESSAGES_WRITE)
    except (Refused, Unavailable) as error:
        problem = problem_for(request, error)
        return "".join(_verdict(context, number, problem) for number in numbers)
    for number, line in zip(numbers, lines, strict=True):
        try:
            drafts[number] = _draft_of(line, context.caller)
        except (DispatcherError, Refused) as error:
            answers[number] = problem_for(request, error)
    try:
        with context.traced():
            results = context.dispatcher.submit_many([*drafts.values()])
        for number, result in zip(drafts, results, strict=True):
            if isinstance(result, Rejection):
                answers[number] = problem_for(request, result.error)
            else:
                answers[number] = result
    except Unavailable as error:
        problem = problem_for(request, error)
        for number, draft in drafts.items():
            is_repeatable = draft.idempotency_key is not None
            answers[number] = problem if is_repeatable else _NOT_KNOWN.problem
    return "".join(_verdict(context, number, answers[number]) for number in numbers)


def _draft_of(line: bytes, caller: Caller) -> Draft:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidDraft(_THE_LINE, json_problem(error), "an object") from None
    new = validated(models.NewMessageLine, fields, whole=_THE_LINE)
    return caller.own(new.draft(caller.own_key(new.idempotency_key)))


def _verdict(context: Context, number: int, answer: models.Json | Message) -> str:
    if isinstance(answer, Message):
        verdict = models.VerdictOut(number=number, status=201, message=context.shown(answer))
    else:
        verdict = models.VerdictOut(number=number, status=answer["status"], problem=answer)
    return f"{verdict.text()}\n"


async def _lines(chunks: AsyncIterator[bytes], *, longest: int) -> AsyncIterator[bytes]:
    rest = b""
    while True:
        try:
            with fail_after(_LINE_SECONDS):
                chunk = await anext(chunks, None)
        except TimeoutError:
            detail = f"nothing came for {_LINE_SECONDS:g} s; send the lines from here on again"
            raise Refused(408, "too-slow", detail) from None
        except ClientDisconnect:
            raise Refused(400, "unreadable", CUT_OFF) from None
        *whole, rest = (rest + (b"\n" if chunk is None else chunk)).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if chunk is None:
            return
        if len(rest) > longest:
            raise Refused(413, "too-large", f"a line has at most {longest} bytes")


async def events(
    context: CallContext,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="Go on after this event.")
    ] = None,
) -> Response:
    """Stream the transitions of messages as server-sent events, from now or from an event on.

    Each has the name of the transition, and an `Event` as its data. An event named `gap` says
    that some after `Last-Event-ID` are not kept any more.
    """
    if not context.service.settings.events_kept:
        detail = "events are off; the operator sets DISPATCHER_EVENTS_KEPT in every process"
        raise Refused(404, "no-events", detail)
    if last_event_id is not None and not _EVENT_ID.fullmatch(last_event_id):
        raise InvalidDraft("Last-Event-ID", "is no id of an event", "the id of a received event")
    streams, name = context.service.streams, context.caller.name
    return StreamedResponse("listeners", _event_lines(context, last_event_id), streams, name)


async def _event_lines(context: Context, last: str | None) -> AsyncIterator[str]:
    silent, begins = 0.0, f"retry: {_LOOK_SECONDS * 1_000:.0f}\n"
    name, listening = context.caller.name, context.service.listening
    while True:
        is_all = True
        try:
            last, text, is_all = await listening.run(_events_after, context, last)
        except Unavailable as error:
            log.warning("event stream of %s waits: %s", name, error)
            text = ""
        except Refused as refused:
            log.info("event stream of %s closed: %s", name, refused)
            return
        text, begins = begins + text, ""
        silent = 0.0 if text else silent + _LOOK_SECONDS
        if silent >= _SILENT_SECONDS:
            text, silent = ": nothing new\n\n", 0.0
        if text:
            yield text
        if is_all:
            await sleep(_LOOK_SECONDS)


def _events_after(context: Context, last: str | None) -> tuple[str, str, bool]:
    """Return the id of the newest event read, those that the caller may see, whether it is all."""
    parts = context.service.parts
    caller = context.service.admission.caller_of(context.request)
    caller.check(Right.MESSAGES_READ)
    if last is None:
        last = parts.events.last()
        return last, f"id: {last}\n\n", True
    events, has_gap = parts.events.after(last, most=_EVENTS_AT_ONCE)
    text = "event: gap\ndata: {}\n\n" if has_gap else ""
    if not events:
        return last, text, True
    seen = {event.message_id for event in events}
    if caller.scope is not None:
        messages = parts.messages.find_many([*seen])
        seen = {message.id for message in messages if caller.sees(message)}
    for event in events:
        is_own = caller.channels is None or event.channel in caller.channels
        if is_own and event.message_id in seen:
            data = models.EventOut.model_validate(event).text()
            text += f"id: {event.id}\nevent: {event.transition}\ndata: {data}\n\n"
    return events[-1].id, text, len(events) < _EVENTS_AT_ONCE
