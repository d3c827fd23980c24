"""The OpenAPI document of the HTTP API: ``python -m docs.openapi`` prints it.

It is what FastAPI draws from the functions and their models, and what the calls have in common.
The package has it as ``openapi.json``, which the API serves, and reads to know what a call has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict

from dispatcher.client import Dispatcher
from dispatcher.problems import MEDIA_TYPE
from dispatcher.settings import Settings
from dispatcher.web import api, models
from dispatcher.web.context import KEY_HEADER

_JSON, _NDJSON, _EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
_REFERENCE = "#/components/schemas/{model}"


class Problem(BaseModel):
    """An error, by RFC 9457, with the data of its type as further fields."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


class Described(NamedTuple):
    """What the document says of a call.

    ``answer``: the model of its success, of a line or an event of a stream. ``body``: that of its
    body; ``may_be_empty``: a call may have none. ``problems``: statuses of problems beside those of
    every call, and of every body. ``headers``: headers of success beside those of every answer.
    """

    answer: type[BaseModel]
    body: type[BaseModel] | None = None
    may_be_empty: bool = False
    status: int = 200
    problems: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    media_type: str = _JSON
    body_type: str = _JSON


_edit = partial(Described, models.MessageOut, problems=(404, 409, 412), headers=("ETag",))
CALLS: Mapping[str, Described] = {
    "submit": Described(
        models.MessageOut, models.NewMessage, status=201, problems=(409,),
        headers=("Location", "Idempotency-Replayed"),
    ),
    "submit_batch": Described(
        models.VerdictOut, models.NewMessageLine, problems=(415,), media_type=_NDJSON,
        body_type=_NDJSON,
    ),
    "plan": Described(models.PlanOut, models.Plans, problems=(409,)),
    "list_messages": Described(models.MessagesOut, headers=("Link",)),
    "counts": Described(models.CountsOut),
    "get": Described(models.MessageOut, problems=(404,), headers=("ETag",)),
    "update": _edit(models.MessageChange),
    "cancel": _edit(),
    "reschedule": _edit(models.NewTime),
    "retry": _edit(models.Retry, may_be_empty=True),
    "release": _edit(),
    "drop": _edit(models.Drop, may_be_empty=True),
    "timeline": Described(models.TimelineOut),
    "next_slot": Described(models.SlotOut),
    "suppressions": Described(models.SuppressionsOut),
    "suppress": Described(models.SuppressedOut, models.SuppressionIn, may_be_empty=True),
    "unsuppress": Described(models.SuppressionsOut),
    "erase": Described(models.ErasedOut, models.ErasureIn),
    "pauses": Described(models.PausesOut),
    "pause": Described(models.PausesOut),
    "resume": Described(models.PausesOut),
    "scope_settings": Described(models.ScopeSettingsOut),
    "quotas_of": Described(models.ScopeQuotasOut),
    "set_quotas": Described(models.ScopeQuotasOut, models.QuotasIn),
    "unset_quotas": Described(models.ScopeQuotasOut),
    "event": Described(models.NamedEventOut),
    "set_event": Described(models.NamedEventOut, models.EventIn),
    "move_event": Described(models.NamedEventOut, models.EventMove, problems=(409,)),
    "cancel_event": Described(models.NamedEventOut),
    "list_series": Described(models.SeriesListOut),
    "preview_series": Described(models.TimesOut),
    "pause_series": Described(models.CancelledOut),
    "resume_series": Described(models.CancelledOut),
    "get_series": Described(models.SeriesOut),
    "add_series": Described(models.SeriesOut, models.SeriesIn, problems=(409,)),
    "change_series": Described(models.SeriesOut, models.SeriesChange, problems=(409,)),
    "remove_series": Described(models.CancelledOut),
    "status": Described(models.StatusOut),
    "load": Described(models.LoadOut),
    "refusals": Described(models.RefusalsOut),
    "events": Described(models.EventOut, problems=(404,), media_type=_EVENTS),
}  # fmt: skip

_OF_ALL = (400, 401, 403, 422, 429, 500, 503)
_TITLES = {
    400: "The call cannot be read",
    401: "No valid key",
    403: "The key has no right to this",
    404: "No such message, or nothing is kept of it",
    409: "The time does not fit, or the message cannot be changed any more",
    412: "The message has changed since it was read",
    413: "The call is too long",
    415: "The media type is not supported",
    422: "A value is refused, or an idempotency key belongs to another message",
    429: "The key's limit is reached",
    500: "The call failed, or whether it was made is not known",
    503: "A server does not answer; repeat the call",
}
_HEADERS = {
    "ETag": "For `If-Match` of a change, and for `If-None-Match`.",
    "Idempotency-Replayed": "`true` where an earlier call with the key made the message.",
    "Link": 'With `rel="next"`, the next page.',
    "Location": "The path of the message.",
    "RateLimit": "How many calls are left.",
    "RateLimit-Policy": "How many calls the key allows, in how many seconds.",
    "Retry-After": "After how many seconds to call again.",
    "WWW-Authenticate": "The scheme of the key.",
}
_OF_LIMITS = ("RateLimit", "RateLimit-Policy")
_OF_PROBLEMS: Mapping[int, tuple[str, ...]] = {
    401: ("WWW-Authenticate",),
    409: (*_OF_LIMITS, "Retry-After"),
    429: (*_OF_LIMITS, "Retry-After"),
    503: (*_OF_LIMITS, "Retry-After"),
}
"""Headers of problems, by status; of another one those of limits."""
_KEY = {"name": KEY_HEADER, "in": "header", "required": False, "schema": {"type": "string"}}


def document_of(app: FastAPI) -> dict[str, Any]:
    """Return the document of an API, without types of bodies."""
    document = get_openapi(
        title="dispatcher",
        version="1",
        description="Messages that are sent at a future time, under exact quotas.",
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    answers = _schemas(call.answer for call in CALLS.values())
    for schema in answers.values():  # FastAPI leaves null out, too
        for field in schema.get("properties", {}).values():
            if field.get("default", ...) is None:
                del field["default"]
    bodies = [call.body for call in CALLS.values() if call.body is not None]
    schemas = answers | _schemas([Problem, models.VerdictOut, *bodies])
    text = {"type": "string"}
    document["components"] = {
        "schemas": schemas,
        "headers": {name: {"description": told, "schema": text} for name, told in _HEADERS.items()},
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    document["security"] = [{"key": []}]
    for path in document["paths"].values():
        for operation in path.values():
            _complete(operation, CALLS[operation["operationId"]])
    return document


def _schemas(described: Iterable[type[BaseModel]]) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for model in described:
        schema = model.model_json_schema(ref_template=_REFERENCE)
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    return schemas


def _complete(operation: dict[str, Any], call: Described) -> None:
    success = {
        "description": "Successful Response",
        "headers": _described([*_OF_LIMITS, *call.headers]),
        "content": _content(call.media_type, call.answer),
    }
    responses = operation["responses"] = {str(call.status): success}
    if "Idempotency-Replayed" in call.headers:
        operation.setdefault("parameters", []).append(_KEY)
    if operation["operationId"] == "get":
        told = "The message is as the client has it"
        responses["304"] = {"description": told, "headers": success["headers"]}
    of_body = () if call.body is None else (413,)
    for status in sorted({*_OF_ALL, *call.problems, *of_body}):
        responses[str(status)] = {
            "description": _TITLES[status],
            "headers": _described(_OF_PROBLEMS.get(status, _OF_LIMITS)),
            "content": _content(MEDIA_TYPE, Problem),
        }
    if call.body is not None:
        content = _content(call.body_type, call.body)
        operation["requestBody"] = {"required": not call.may_be_empty, "content": content}


def _content(media_type: str, model: type[BaseModel]) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}


def _described(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


if __name__ == "__main__":
    with Dispatcher(Settings()) as dispatcher:
        sys.stdout.write(json.dumps(document_of(api(dispatcher)), indent=1) + "\n")
