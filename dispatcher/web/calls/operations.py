"""Pauses, the status, the load to come and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from dispatcher.store import Pause
from dispatcher.web import models
from dispatcher.web.answers import Answer
from dispatcher.web.context import CallContext, Context

_LONGEST_LOAD_HOURS = 168
_MOST_REFUSALS = 1_000


def pauses(context: CallContext) -> Response:
    """Return the pauses: what is not sent until it is resumed."""
    context.admit().check_unbound()
    return _paused(context, context.service.parts.pause_list.in_force()).response()


def pause(context: CallContext, kind: str, name: str) -> Response:
    """Send nothing of a `channel`, `recipient`, `campaign` or scope; return all pauses."""
    context.admit().check_unbound()
    return _paused(context, context.dispatcher.pause(kind, name)).response()


def resume(context: CallContext, kind: str, name: str) -> Response:
    """End a pause; return those that remain."""
    context.admit().check_unbound()
    return _paused(context, context.dispatcher.resume(kind, name)).response()


def status(context: CallContext) -> Response:
    """Return counts, overdue messages, the load of the next hour, and processes."""
    context.admit().check_unbound()
    return Answer(200, models.StatusOut.of(context.dispatcher.status()).text()).response()


def load(
    context: CallContext, hours: Annotated[float, Query(ge=1, le=_LONGEST_LOAD_HOURS)] = 24
) -> Response:
    """Return what is due in each minute of each channel, and when the last of it leaves."""
    context.admit().check_unbound()
    found = context.dispatcher.load(within=timedelta(hours=hours))
    return Answer(200, models.LoadOut.of(found).text()).response()


def refusals(
    context: CallContext,
    hours: Annotated[float, Query(gt=0, le=_LONGEST_LOAD_HOURS)] = 24,
    quota: str | None = None,
    last: Annotated[int, Query(ge=0, le=_MOST_REFUSALS)] = 20,
) -> Response:
    """Return which rules refused how many submits, and how far away the next slots were."""
    context.admit().check_unbound()
    found = context.dispatcher.refusals(since=timedelta(hours=hours), quota=quota, last=last)
    return Answer(200, models.RefusalsOut.of(found).text()).response()


def _paused(context: Context, found: Iterable[Pause]) -> Answer:
    digest = context.service.digest
    shown = [models.PauseOut.of(each, context.caller, digest=digest) for each in found]
    return Answer(200, models.PausesOut(pauses=shown).text())
