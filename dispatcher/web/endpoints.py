"""The endpoints of the HTTP API: of each its path, its function, and its part of the document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.convertors import PathConvertor, register_url_convertor

from dispatcher.web import calls, models
from dispatcher.web.access import Right

PREFIX = "/v1"
_JSON = "application/json"
_NDJSON = "application/x-ndjson"


class _AnyName(PathConvertor):
    """A name in a path, whole: recipients of webhooks have slashes; line ends are refused later."""

    regex = "(?s:.*)"


register_url_convertor("any_name", _AnyName())


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of the API. Its id in the document is the name of its ``function``.

    ``path``: below ``/v1``. ``answer``: the model of its JSON. ``rights`` are checked before a body
    is read. ``status``: that of success. ``stream``, in place of an answer: a media type, and the
    model of a line or an event. ``body``: the media type and the model of a body, which
    ``function`` reads itself; ``may_be_empty``: a call may have none. ``problems``: statuses of
    problems beside those of every call, and of every body. ``headers``: headers of success beside
    those of every answer. ``takes_idempotency_key``: a repeat with its key is answered by what the
    first call made. ``most_bytes`` of a body: None for any number, 0 for those of one message.
    ``is_long``: a call that changes nothing and may take many times as long as a submit; it shares
    the threads for such calls. ``is_unbound``: not for keys that are bound to channels or a scope.
    """

    method: str
    path: str
    function: Callable[..., Any]
    answer: type[models.Out] | None
    rights: tuple[Right, ...]
    _: KW_ONLY
    status: int = 200
    stream: tuple[str, type[BaseModel]] | None = None
    body: tuple[str, type[BaseModel]] | None = None
    may_be_empty: bool = False
    problems: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    takes_idempotency_key: bool = False
    most_bytes: int | None = 0
    is_long: bool = False
    is_unbound: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__


_edit = partial(Endpoint, answer=models.MessageOut, problems=(404, 409, 412), headers=("ETag",))
_unbound = partial(Endpoint, is_unbound=True)
_MESSAGE = "/messages/{message_id}"
_SCOPE = "/scopes/{kind}/{scope:any_name}"
_RECIPIENT = "/suppressions/{recipient:any_name}"
_PAUSE = "/pauses/{kind}/{name:any_name}"
_READ, _WRITE, _OPERATE = Right.MESSAGES_READ, Right.MESSAGES_WRITE, Right.OPERATE
_READ_RECIPIENTS, _SUPPRESS = Right.RECIPIENTS_READ, Right.SUPPRESSIONS_WRITE

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST", "/messages", calls.submit, models.MessageOut, (_WRITE,),
        status=201, body=(_JSON, models.NewMessage), problems=(409,), headers=("Location",),
        takes_idempotency_key=True,
    ),
    Endpoint(
        "POST", "/messages/batch", calls.submit_batch, None, (_WRITE,),
        body=(_NDJSON, models.NewMessageLine), stream=(_NDJSON, models.VerdictOut),
        problems=(415,), most_bytes=None,
    ),
    Endpoint(
        "POST", "/plans", calls.plan, models.PlanOut, (_WRITE,), body=(_JSON, models.Plans),
        problems=(409,), most_bytes=2_000_000, is_long=True,
    ),
    Endpoint(
        "GET", "/messages", calls.list_messages, models.MessagesOut, (_READ,),
        headers=("Link",), is_long=True,
    ),
    Endpoint("GET", "/counts", calls.counts, models.CountsOut, (_READ,), is_long=True),
    Endpoint(
        "GET", _MESSAGE, calls.get, models.MessageOut, (_READ,), problems=(404,),
        headers=("ETag",),
    ),
    _edit(
        "PATCH", _MESSAGE, calls.update, rights=(_WRITE,), body=(_JSON, models.MessageChange)
    ),
    _edit("DELETE", _MESSAGE, calls.cancel, rights=(Right.MESSAGES_CANCEL,)),
    _edit(
        "POST", f"{_MESSAGE}/reschedule", calls.reschedule, rights=(_WRITE,),
        body=(_JSON, models.NewTime),
    ),
    _edit(
        "POST", f"{_MESSAGE}/retry", calls.retry, rights=(_OPERATE,),
        body=(_JSON, models.Retry), may_be_empty=True,
    ),
    _edit("POST", f"{_MESSAGE}/release", calls.release, rights=(_OPERATE,)),
    _edit(
        "POST", f"{_MESSAGE}/drop", calls.drop, rights=(_OPERATE,),
        body=(_JSON, models.Drop), may_be_empty=True,
    ),
    Endpoint(
        "GET", f"{_SCOPE}/timeline", calls.timeline, models.TimelineOut,
        (_READ, _READ_RECIPIENTS), is_long=True,
    ),
    Endpoint("GET", f"{_SCOPE}/next-slot", calls.next_slot, models.SlotOut, (_READ,)),
    _unbound(
        "GET", _RECIPIENT, calls.suppressions, models.SuppressionsOut, (_READ_RECIPIENTS,)
    ),
    _unbound(
        "PUT", _RECIPIENT, calls.suppress, models.SuppressedOut, (_SUPPRESS,),
        body=(_JSON, models.SuppressionIn), may_be_empty=True,
    ),
    _unbound("DELETE", _RECIPIENT, calls.unsuppress, models.SuppressionsOut, (_SUPPRESS,)),
    _unbound(
        "POST", "/erasures", calls.erase, models.ErasedOut, (_OPERATE,),
        body=(_JSON, models.ErasureIn),
    ),
    _unbound("GET", "/pauses", calls.pauses, models.PausesOut, (_OPERATE,)),
    _unbound("PUT", _PAUSE, calls.pause, models.PausesOut, (_OPERATE,)),
    _unbound("DELETE", _PAUSE, calls.resume, models.PausesOut, (_OPERATE,)),
    _unbound("GET", "/status", calls.status, models.StatusOut, (_OPERATE,), is_long=True),
    _unbound("GET", "/load", calls.load, models.LoadOut, (_OPERATE,), is_long=True),
    _unbound(
        "GET", "/refusals", calls.refusals, models.RefusalsOut, (_OPERATE,), is_long=True
    ),
    Endpoint(
        "GET", "/events", calls.events, None, (_READ,),
        stream=("text/event-stream", models.EventOut), problems=(404,),
    ),
)  # fmt: skip
