"""Opting recipients out, and erasing them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice

from starlette.responses import Response

from dispatcher.store import Suppression
from dispatcher.web import models
from dispatcher.web.answers import Answer
from dispatcher.web.context import CallContext, Context


def suppressions(context: CallContext, recipient: str) -> Response:
    """Return the opt-outs of a recipient."""
    context.admit().check_unbound()
    found = islice(context.dispatcher.suppressed(recipient), models.MOST_LISTED)
    return _answer(context, found).response()


def suppress(context: CallContext, recipient: str) -> Response:
    """Opt a recipient out of one channel or of all; cancels its scheduled messages."""
    context.admit().check_unbound()
    channel = context.payload(models.SuppressionIn).channel if context.raw else None
    cancelled = context.dispatcher.suppress(recipient, channel=channel)
    return Answer(200, models.SuppressedOut(cancelled=cancelled).text()).response()


def unsuppress(context: CallContext, recipient: str, channel: str | None = None) -> Response:
    """Revoke an opt-out; return those that remain."""
    context.admit().check_unbound()
    left = context.dispatcher.unsuppress(recipient, channel=channel)
    return _answer(context, left).response()


def erase(context: CallContext) -> Response:
    """Erase what is stored of a recipient; messages under way are left to another call."""
    context.admit().check_unbound()
    payload = context.payload(models.ErasureIn)
    done = context.dispatcher.erase(payload.recipient, keep_opt_out=payload.keep_opt_out)
    return Answer(200, models.ErasedOut.model_validate(asdict(done)).text()).response()


def _answer(context: Context, found: Iterable[Suppression]) -> Answer:
    digest = context.service.digest
    shown = [models.SuppressionOut.of(each, context.caller, digest=digest) for each in found]
    return Answer(200, models.SuppressionsOut(suppressions=shown).text())
