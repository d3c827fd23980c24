"""The endpoints of the HTTP API: of each its path, its function, and its part of the document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.convertors import PathConvertor, register_url_convertor

from dispatcher.web import models
from dispatcher.web.calls import batch, changes, events, messages, operations, scopes, suppressions

PREFIX = "/v1"
_JSON = "application/json"
_NDJSON = "application/x-ndjson"


class _AnyName(PathConvertor):
    """A name in a path, whole: recipients of webhooks have slashes; line ends are refused later."""

    regex = "(?s:.*)"


register_url_convertor("any_name", _AnyName())


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One endpoint of the API. Its id in the document is the name of its ``function``.

    ``status``: that of success. ``answer``: the model of its JSON. ``stream``, in place of it: a
    media type, and the model of a line or an event. ``raw_body``: the media type and the model of
    a body that ``function`` reads itself; it gets the bare request, and FastAPI makes no Depends
    for it. ``problems``: statuses of problems beside those of every call. ``headers``: headers of
    success beside those of every answer. ``takes_idempotency_key``: it answers by
    ``submit_once``, ``Context.once`` or ``change_once``. ``most_bytes`` of a body: None for any
    number, 0 for those of one message.
    """

    method: str
    path: str
    function: Callable[..., Any]
    status: int = 200
    answer: type[models.Out] | None = None
    stream: tuple[str, type[BaseModel]] | None = None
    raw_body: tuple[str, type[BaseModel]] | None = None
    problems: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    takes_idempotency_key: bool = True
    most_bytes: int | None = 0

    @property
    def name(self) -> str:
        """The id of the operation."""
        return self.function.__name__


def _get(
    path: str, function: Callable[..., Any], answer: type[models.Out] | None, **named: Any
) -> Endpoint:
    return Endpoint(
        method="GET",
        path=PREFIX + path,
        function=function,
        answer=answer,
        takes_idempotency_key=False,
        **named,
    )


def _change(
    method: str, path: str, function: Callable[..., Any], answer: type[models.Out], **named: Any
) -> Endpoint:
    return Endpoint(method=method, path=PREFIX + path, function=function, answer=answer, **named)


def _edit(
    method: str, path: str, function: Callable[..., Any], *, has_body: bool = True
) -> Endpoint:
    """Return the endpoint of a change of one message, for which ``If-Match`` counts."""
    problems = (404, 409, 412, 413) if has_body else (404, 409, 412)
    return _change(method, path, function, models.MessageOut, problems=problems, headers=("ETag",))


_MESSAGE = "/messages/{message_id}"
_SCOPE = "/scopes/{kind}/{scope:any_name}"
_RECIPIENT = "/suppressions/{recipient:any_name}"
_PAUSE = "/pauses/{kind}/{name:any_name}"

ENDPOINTS: tuple[Endpoint, ...] = (
    _change(
        "POST", "/messages", messages.submit, models.MessageOut,
        status=201, raw_body=(_JSON, models.NewMessage), problems=(409, 413), headers=("Location",),
    ),
    Endpoint(
        method="POST", path=f"{PREFIX}/messages/batch", function=batch.submit_batch,
        raw_body=(_NDJSON, models.NewMessageLine), stream=(_NDJSON, models.VerdictOut),
        problems=(413, 415), takes_idempotency_key=False, most_bytes=None,
    ),
    _change(
        "POST", "/plans", messages.plan, models.PlanOut,
        problems=(409, 413), takes_idempotency_key=False, most_bytes=8_000_000,
    ),
    _get("/messages", messages.list_messages, models.MessagesOut, headers=("Link",)),
    _get("/counts", messages.counts, models.CountsOut),
    _get(_MESSAGE, messages.get, models.MessageOut, problems=(404,), headers=("ETag",)),
    _edit("PATCH", _MESSAGE, changes.update),
    _edit("DELETE", _MESSAGE, changes.cancel, has_body=False),
    _edit("POST", f"{_MESSAGE}/reschedule", changes.reschedule),
    _edit("POST", f"{_MESSAGE}/retry", changes.retry),
    _edit("POST", f"{_MESSAGE}/release", changes.release, has_body=False),
    _edit("POST", f"{_MESSAGE}/drop", changes.drop),
    _get(f"{_SCOPE}/timeline", scopes.timeline, models.TimelineOut),
    _get(f"{_SCOPE}/next-slot", scopes.next_slot, models.SlotOut),
    _get(_RECIPIENT, suppressions.suppressions, models.SuppressionsOut),
    _change(
        "PUT", _RECIPIENT, suppressions.suppress, models.SuppressedOut, problems=(413,)
    ),
    _change("DELETE", _RECIPIENT, suppressions.unsuppress, models.SuppressionsOut),
    _change("POST", "/erasures", suppressions.erase, models.ErasedOut, problems=(413,)),
    _get("/pauses", operations.pauses, models.PausesOut),
    _change("PUT", _PAUSE, operations.pause, models.PausesOut),
    _change("DELETE", _PAUSE, operations.resume, models.PausesOut),
    _get("/status", operations.status, models.StatusOut),
    _get("/load", operations.load, models.LoadOut),
    _get("/refusals", operations.refusals, models.RefusalsOut),
    _get(
        "/events", events.events, None,
        stream=("text/event-stream", models.EventOut), problems=(404,),
    ),
)  # fmt: skip
