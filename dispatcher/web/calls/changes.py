"""Changes of one message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Header
from starlette.responses import Response

from dispatcher.errors import DispatcherError
from dispatcher.message import Draft, Message, Status
from dispatcher.store import Movable
from dispatcher.web import models
from dispatcher.web.calls.messages import Id
from dispatcher.web.context import CallContext, Context
from dispatcher.web.replies import Change, FirstCall, change_once


class ChangeCall:
    """A call that changes one message: if it is as ``if_match`` says, and once for each key."""

    def __init__(self, context: Context, message_id: str, if_match: str | None) -> None:
        self.dispatcher = context.dispatcher
        self.bodies = context.service.parts.bodies
        self.context = context
        self._message_id = message_id
        self._if_match = if_match

    def answer(
        self,
        make: Callable[[UUID, Message | None, datetime], Message],
        is_made: Callable[[FirstCall, Movable], bool],
        *,
        in_any_case: bool = False,
    ) -> Response:
        """Answer by the changed message. See :class:`~dispatcher.web.replies.Change`.

        ``make`` gets the message's id, the message unless which it changes nothing, and the time
        from which lengths count.
        """
        context = self.context
        context.admit()
        call = context.keyed_call
        found = context.seen(self._message_id).message.id
        change = Change(
            at=context.service.parts.clock.now(),
            read=lambda: context.service.parts.messages.movable(found),
            make=partial(make, found),
            is_made=is_made,
            answer=context.answer,
            if_match=self._if_match,
            in_any_case=in_any_case,
        )
        return change_once(context.service.parts.replies, call, change)


async def _change_call(
    context: CallContext,
    message_id: Id,
    if_match: Annotated[str | None, Header(alias="If-Match")] = None,
) -> ChangeCall:
    return ChangeCall(context, message_id, if_match)


Changing = Annotated[ChangeCall, Depends(_change_call)]


def update(call: Changing) -> Response:
    """Give a scheduled message another body."""
    given = call.context.payload(models.MessageChange).model_dump()

    def make(message_id: UUID, unless: Message | None, _: datetime) -> Message:
        return call.dispatcher.update(message_id, **given, if_unchanged=unless)

    def is_made(_: FirstCall, now: Movable) -> bool:
        message = now.message
        draft = Draft(channel=message.channel, recipient=message.recipient, **given)
        try:
            body, again = (call.bodies.prepare(draft).draft.body for _ in range(2))
        except DispatcherError:
            return False  # the template, or the type, has changed since
        if body == again or not (isinstance(body, Mapping) and isinstance(again, Mapping)):
            return message.body == body
        # A type makes some fields anew each time: they cannot be compared.
        fixed = {name: value for name, value in body.items() if again.get(name) == value}
        return fixed.items() <= message.body.items()

    return call.answer(make, is_made)


def cancel(call: Changing) -> Response:
    """Cancel a scheduled message; its quota is free again at once."""

    def make(message_id: UUID, unless: Message | None, _: datetime) -> Message:
        return call.dispatcher.cancel(message_id, if_unchanged=unless)

    def is_made(_: FirstCall, now: Movable) -> bool:
        return now.message.status is Status.CANCELLED

    return call.answer(make, is_made, in_any_case=True)


def reschedule(call: Changing) -> Response:
    """Move a scheduled message to another time; it must fit every quota."""
    time = call.context.payload(models.NewTime)

    def make(message_id: UUID, unless: Message | None, at: datetime) -> Message:
        return call.dispatcher.reschedule(message_id, **time.given(at), if_unchanged=unless)

    def is_made(first: FirstCall, now: Movable) -> bool:
        return time.is_shown_by(now.message, call.dispatcher.settings.zone, first.at)

    return call.answer(make, is_made)


def retry(call: Changing) -> Response:
    """Give a failed message further attempts."""
    context = call.context
    perhaps_sent = bool(context.raw) and context.payload(models.Retry).perhaps_sent

    def make(message_id: UUID, unless: Message | None, _: datetime) -> Message:
        return call.dispatcher.retry(message_id, perhaps_sent=perhaps_sent, if_unchanged=unless)

    def is_made(first: FirstCall, now: Movable) -> bool:
        is_tried = now.message.attempt_count > first.version.attempt_count
        is_retried = is_tried or now.message.status is not Status.FAILED
        return first.version.status is Status.FAILED and is_retried

    return call.answer(make, is_made)


def release(call: Changing) -> Response:
    """Release a held message to be sent, perhaps for the second time."""

    def make(message_id: UUID, unless: Message | None, _: datetime) -> Message:
        return call.dispatcher.release(message_id, if_unchanged=unless)

    def is_made(first: FirstCall, now: Movable) -> bool:
        is_tried = now.message.attempt_count > first.version.attempt_count
        is_released = is_tried or now.message.status not in (Status.HELD, Status.FAILED)
        return first.version.status is Status.HELD and is_released

    return call.answer(make, is_made)


def drop(call: Changing) -> Response:
    """End a held message as failed."""
    reason = call.context.payload(models.Drop).reason if call.context.raw else None

    def make(message_id: UUID, unless: Message | None, _: datetime) -> Message:
        return call.dispatcher.drop(message_id, reason=reason, if_unchanged=unless)

    def is_made(first: FirstCall, now: Movable) -> bool:
        is_tried = now.message.attempt_count > first.version.attempt_count
        return now.message.status is Status.FAILED and not is_tried

    return call.answer(make, is_made)
