"""The calls of the HTTP API that last: batches of messages, and the stream of transitions."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from anyio import fail_after, sleep
from fastapi import Header
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dispatcher.errors import DispatcherError, InvalidDraft, Unavailable
from dispatcher.message import Draft, Message, Rejection, json_problem
from dispatcher.problems import problem_of
from dispatcher.web import models
from dispatcher.web.access import Caller, Right
from dispatcher.web.bounds import EventResponse, VerdictResponse
from dispatcher.web.context import CallContext, Context, call_schema_of, problem_for, validated
from dispatcher.web.problems import CUT_OFF, Refused, invalid_call

log = logging.getLogger(__name__)

_NDJSON = "application/x-ndjson"
_LINES_AT_ONCE = 1_000
_BYTES_AT_ONCE = 1_000_000
_PATIENCE_SECONDS = 60.0
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


async def submit_batch(request: Request) -> Response:
    """Accept messages, one JSON object a line; answer each with a verdict on a line.

    The answer begins before the call has ended, and neither is in memory as a whole. A line has
    its own `idempotency_key`.
    """
    context, headers = Context(request), request.headers
    caller = await context.service.threads.run(context.admit)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _NDJSON:
        raise Refused(415, "unsupported-media-type", f"send lines of JSON as {_NDJSON}")
    if "idempotency-key" in headers:
        raise InvalidDraft("Idempotency-Key", "given for a batch", "idempotency_key in lines")
    return VerdictResponse(_verdicts(context), context.service.streams, caller.name)


async def _verdicts(context: Context) -> AsyncIterator[str]:
    longest = context.service.longest_call
    number, size, lines, is_first = 0, 0, list[bytes](), True

    async def submitted() -> str:
        nonlocal number, size, lines, is_first
        some, first, counts = lines, number, not is_first
        number, size, lines, is_first = number + len(some), 0, [], False
        submit = partial(_submit_lines, context, first, some, counts=counts)
        return await context.service.long.run_for(context.caller.name, submit)

    try:
        async for line in _lines(context.request.stream(), longest=longest):
            lines.append(line)
            size += len(line)
            if len(lines) == _LINES_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield await submitted()
        if lines:
            yield await submitted()
    except Refused as refused:  # too long a line, or too long a wait: what follows is not read
        if lines:
            yield await submitted()
        yield f"{_verdict(context, number, refused.problem)}\n"


def _submit_lines(context: Context, first: int, lines: list[bytes], *, counts: bool) -> str:
    """Submit some lines; return their verdicts. What cannot be read is refused alone."""
    refusal = _refusal(context, counts=counts)
    if refusal is not None:
        every = range(first, first + len(lines))
        return "".join(f"{_verdict(context, number, refusal)}\n" for number in every)
    answers: dict[int, dict[str, Any] | Message] = {}
    drafts: dict[int, Draft] = {}
    for number, line in enumerate(lines):
        try:
            drafts[number] = _draft_of(line, context.caller)
        except RequestValidationError as error:
            wrong = invalid_call(error.errors(), call_schema_of(context.request), whole="the line")
            answers[number] = problem_of(wrong)
        except DispatcherError as error:
            answers[number] = problem_for(context.request, error)
        except Refused as refused:
            answers[number] = refused.problem
    try:
        with context.traced():
            results = context.dispatcher.submit_many(list(drafts.values()))
        for number, result in zip(drafts, results, strict=True):
            if isinstance(result, Rejection):
                answers[number] = problem_for(context.request, result.error)
            else:
                answers[number] = result
    except Unavailable as error:
        problem = problem_for(context.request, error)
        unknown = _NOT_KNOWN.problem
        for number, draft in drafts.items():
            answers[number] = unknown if draft.idempotency_key is None else problem
    return "".join(
        f"{_verdict(context, first + number, answers[number])}\n" for number in range(len(lines))
    )


def _refusal(context: Context, *, counts: bool) -> dict[str, Any] | None:
    """Return why no more lines are submitted, or None.

    The key is asked for again; ``counts``: and the next lines are a call against its limit.
    """
    try:
        if counts:
            context.service.admission.admit(context.request)
        context.caller.check(Right.MESSAGES_WRITE)
    except Refused as refused:
        return refused.problem
    except Unavailable as error:
        return problem_for(context.request, error)
    return None


def _draft_of(line: bytes, caller: Caller) -> Draft:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        wrong = {"type": "json_invalid", "loc": ("body",), "msg": json_problem(error)}
        raise RequestValidationError([wrong]) from None
    new = validated(models.NewMessageLine, given, "body")
    return caller.own(new.draft(caller.own_key(new.idempotency_key)))


def _verdict(context: Context, number: int, answer: dict[str, Any] | Message) -> str:
    if isinstance(answer, Message):
        verdict = models.VerdictOut(number=number, status=201, message=context.shown(answer))
    else:
        verdict = models.VerdictOut(number=number, status=answer["status"], problem=answer)
    return verdict.text()


async def _lines(chunks: AsyncIterator[bytes], *, longest: int) -> AsyncIterator[bytes]:
    rest = b""
    while (chunk := await _next(chunks)) is not None:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > longest:
            raise Refused(413, "too-large", f"a line has at most {longest} bytes")
    if rest.strip():
        yield rest


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    try:
        with fail_after(_PATIENCE_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        detail = f"nothing came for {_PATIENCE_SECONDS:g} s; send the lines from here on again"
        raise Refused(408, "too-slow", detail) from None
    except ClientDisconnect:
        raise Refused(400, "unreadable", CUT_OFF) from None


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
    caller = await context.service.threads.run(context.admit)
    if not context.service.settings.events_kept:
        detail = "events are off; the operator sets DISPATCHER_EVENTS_KEPT in every process"
        raise Refused(404, "no-events", detail)
    if last_event_id is not None and not _EVENT_ID.fullmatch(last_event_id):
        raise InvalidDraft("Last-Event-ID", "is no id of an event", "the id of one that came")
    return EventResponse(_event_lines(context, last_event_id), context.service.streams, caller.name)


async def _event_lines(context: Context, last: str | None) -> AsyncIterator[str]:
    """Yield events, until the caller goes or its key ends."""
    silent, begins = 0.0, f"retry: {_LOOK_SECONDS * 1_000:.0f}\n"
    name, listening = context.caller.name, context.service.listening
    while True:
        is_all = True
        try:
            last, text, is_all = await listening.run(_events_after, context, last)
        except Unavailable as error:
            log.warning("%s waits for events: %s", name, error)
            text = ""
        except Refused as refused:
            log.info("%s hears no further events: %s", name, refused)
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
    """Return the id of the newest event read, the events that the caller may still see as text.

    And whether these are all. Without ``last`` it begins now.
    """
    parts = context.service.parts
    caller = context.service.admission.caller_of(context.request)
    caller.check(Right.MESSAGES_READ)
    if last is None:
        last = parts.events.last()
        return last, f"id: {last}\n\n", True
    found, has_gap = parts.events.after(last, most=_EVENTS_AT_ONCE)
    text = "event: gap\ndata: {}\n\n" if has_gap else ""
    if not found:
        return last, text, True
    seen = {each.message_id for each in found}
    if caller.scope is not None:
        stored = parts.messages.find_many([*seen])
        seen = {each.id for each in stored if caller.sees(each)}
    text += "".join(
        f"id: {each.id}\nevent: {each.transition}\n"
        f"data: {models.EventOut(**each._asdict()).text()}\n\n"
        for each in found
        if each.message_id in seen and (caller.channels is None or each.channel in caller.channels)
    )
    return found[-1].id, text, len(found) < _EVENTS_AT_ONCE
