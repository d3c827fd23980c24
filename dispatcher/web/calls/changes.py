"""Changes of one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Header
from starlette.responses import Response

from dispatcher.errors import InvalidDraft
from dispatcher.message import Message
from dispatcher.web import models
from dispatcher.web.answers import change_if
from dispatcher.web.calls.messages import Id
from dispatcher.web.context import KEY_HEADER, CallContext, Context


class ChangeCall:
    """A call that changes one message: if it is as ``if_match`` says."""

    def __init__(self, context: Context, message_id: str, if_match: str | None) -> None:
        self.dispatcher = context.dispatcher
        self.context = context
        self._message_id = message_id
        self._if_match = if_match

    def answer(self, make: Callable[[UUID, Message | None], object]) -> Response:
        """Answer by the changed message.

        ``make`` gets the message's id, and the message unless which it changes nothing.
        """
        context = self.context
        context.admit()
        message_id = context.seen(self._message_id).message.id
        movable = change_if(
            self._if_match,
            lambda: context.service.parts.messages.movable(message_id),
            lambda unless: make(message_id, unless),
        )
        return context.answer(movable).response()


async def _change_call(
    context: CallContext,
    message_id: Id,
    if_match: Annotated[str | None, Header(alias="If-Match")] = None,
) -> ChangeCall:
    return ChangeCall(context, message_id, if_match)


Changing = Annotated[ChangeCall, Depends(_change_call)]


def update(call: Changing) -> Response:
    """Give a scheduled message another body."""
    change = call.context.payload(models.MessageChange).model_dump()
    return call.answer(
        lambda message_id, unless: call.dispatcher.update(message_id, **change, if_unchanged=unless)
    )


def cancel(call: Changing) -> Response:
    """Cancel a scheduled message; its quota is free again at once."""
    return call.answer(
        lambda message_id, unless: call.dispatcher.cancel(message_id, if_unchanged=unless)
    )


def reschedule(call: Changing) -> Response:
    """Move a scheduled message to another time; it must fit every quota.

    A move by a length is made again by each repeat, so it takes no `Idempotency-Key`.
    """
    time = call.context.payload(models.NewTime)
    if time.is_relative and KEY_HEADER in call.context.request.headers:
        problem = "given for a move by a length, which a repeat would make again"
        raise InvalidDraft(KEY_HEADER, problem, "no key, or a move to send_at")
    wanted = time.given(call.context.service.parts.clock.now())
    return call.answer(
        lambda message_id, unless: call.dispatcher.reschedule(
            message_id, **wanted, if_unchanged=unless
        )
    )


def retry(call: Changing) -> Response:
    """Give a failed message further attempts."""
    context = call.context
    perhaps_sent = bool(context.raw) and context.payload(models.Retry).perhaps_sent
    return call.answer(
        lambda message_id, unless: call.dispatcher.retry(
            message_id, perhaps_sent=perhaps_sent, if_unchanged=unless
        )
    )


def release(call: Changing) -> Response:
    """Release a held message to be sent, perhaps for the second time."""
    return call.answer(
        lambda message_id, unless: call.dispatcher.release(message_id, if_unchanged=unless)
    )


def drop(call: Changing) -> Response:
    """End a held message as failed."""
    reason = call.context.payload(models.Drop).reason if call.context.raw else None
    return call.answer(
        lambda message_id, unless: call.dispatcher.drop(
            message_id, reason=reason, if_unchanged=unless
        )
    )
