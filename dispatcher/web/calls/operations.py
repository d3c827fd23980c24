"""Opt-outs, erasures, pauses, the status, the load to come and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import islice
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from dispatcher.store import Pause, Suppression
from dispatcher.web import models
from dispatcher.web.answers import answer
from dispatcher.web.context import CallContext, Context

_LONGEST_LOAD_HOURS = 168
_MOST_REFUSALS = 1_000


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
    return answer(models.RefusalsOut.of(noted))


def _suppressed(context: Context, stored: Iterable[Suppression]) -> Response:
    digest = context.service.digest
    shown = [models.SuppressionOut.of(each, context.caller, digest=digest) for each in stored]
    return answer(models.SuppressionsOut(suppressions=shown))


def _paused(context: Context, in_force: Iterable[Pause]) -> Response:
    digest = context.service.digest
    shown = [models.PauseOut.of(each, context.caller, digest=digest) for each in in_force]
    return answer(models.PausesOut(pauses=shown))
