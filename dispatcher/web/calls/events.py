"""The stream of transitions, as server-sent events."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from typing import Annotated

from anyio import sleep
from fastapi import Header
from starlette.responses import Response

from dispatcher.errors import InvalidDraft, Unavailable
from dispatcher.web import models
from dispatcher.web.access import Right
from dispatcher.web.context import CallContext, Context
from dispatcher.web.problems import Refused
from dispatcher.web.streams import EventResponse

log = logging.getLogger(__name__)

_EVENT_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,10}")
_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 15.0
"""After so long without an event a line tells the listener that the server is there."""
_EVENTS_AT_ONCE = 1_000


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
