"""The OpenAPI document: what FastAPI draws from the functions, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from dispatcher.body_types import BodyTypes
from dispatcher.problems import MEDIA_TYPE
from dispatcher.web import models
from dispatcher.web.context import KEY_HEADER

_OF_ALL = (400, 401, 403, 422, 429, 500, 503)
_MORE: Mapping[str, tuple[int, ...]] = {
    "submit": (409, 413),
    "submit_batch": (413, 415),
    "plan": (409, 413),
    "list_messages": (),
    "counts": (),
    "get": (404,),
    "update": (404, 409, 412, 413),
    "cancel": (404, 409, 412),
    "reschedule": (404, 409, 412, 413),
    "retry": (404, 409, 412, 413),
    "release": (404, 409, 412),
    "drop": (404, 409, 412, 413),
    "timeline": (),
    "next_slot": (),
    "suppressions": (),
    "suppress": (413,),
    "unsuppress": (),
    "pauses": (),
    "pause": (),
    "resume": (),
    "status": (),
    "load": (),
    "refusals": (),
    "events": (404,),
}
"""Statuses of problems that only some calls have."""
_TITLES = {
    400: "The call cannot be read",
    401: "No valid key",
    403: "The key has no right to this",
    404: "No such message, or nothing is kept of it",
    409: "The time does not fit, or the message cannot be changed any more",
    412: "The message has changed since it was read",
    413: "The call is too long",
    415: "The media type is not supported",
    422: "A value is refused, or an idempotency key belongs to another call",
    429: "The key's limit is reached",
    500: "The call failed, or whether it was made is not known",
    503: "A server does not answer; repeat the call",
}
_HEADERS = {
    name: {"description": text, "schema": {"type": "string"}}
    for name, text in {
        "ETag": "For `If-Match` of a change, and for `If-None-Match`.",
        "Idempotency-Replayed": "`true` where a repeated call is answered as the first one was.",
        "Link": 'With `rel="next"`, the next page.',
        "Location": "The path of the message.",
        "RateLimit": "How many calls are left.",
        "RateLimit-Policy": "How many calls the key allows, in how many seconds.",
        "Retry-After": "After how many seconds to call again.",
        "WWW-Authenticate": "The scheme of the key.",
    }.items()
}
_OF_LIMITS = ("RateLimit", "RateLimit-Policy")
_OF_SUCCESS: Mapping[str, tuple[str, ...]] = {
    "submit": ("Location",),
    "list_messages": ("Link",),
    **dict.fromkeys(
        ("get", "update", "cancel", "reschedule", "retry", "release", "drop"), ("ETag",)
    ),
}
"""Headers of answers that are no problems."""
_OF_PROBLEMS: Mapping[int, tuple[str, ...]] = {
    401: ("WWW-Authenticate",),
    409: (*_OF_LIMITS, "Retry-After"),
    429: (*_OF_LIMITS, "Retry-After"),
    503: (*_OF_LIMITS, "Retry-After"),
}
"""Headers of problems, by status; of another one those of limits."""
_NDJSON = "application/x-ndjson"
BODIES: Mapping[str, tuple[str, type[BaseModel]]] = {
    "submit": ("application/json", models.NewMessage),
    "submit_batch": (_NDJSON, models.NewMessageLine),
}
"""Bodies of the functions that get the bare request: FastAPI reads nothing for them, no Depends."""
_KEY = {"name": KEY_HEADER, "in": "header", "required": False, "schema": {"type": "string"}}
_WITHOUT_KEY = ("submit_batch", "plan")
"""Calls other than GET without an idempotency key; every other one answers by ``submit_once``,
``Context.once`` or ``change_once``."""


def describe(app: FastAPI, body_types: BodyTypes) -> None:
    """Make the application answer with the whole document, with the types of bodies.

    The call of it raises InvalidSettings where one of these types cannot be used.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = _document(app)
            _add_bodies(document["components"]["schemas"], body_types)
            app.openapi_schema = document
        return app.openapi_schema

    made: Callable[[], dict[str, Any]] = openapi
    setattr(app, "openapi", made)  # noqa: B010 - FastAPI's own way to replace the method


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    schemas = document["components"]["schemas"]
    for each in (models.Problem, models.VerdictOut, models.NewMessageLine, models.EventOut):
        schema = each.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[each.__name__] = schema
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["components"]["headers"] = _HEADERS
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    for path in document["paths"].values():
        for method, operation in path.items():
            _complete(method, operation)
    return document


def _add_bodies(schemas: dict[str, Any], body_types: BodyTypes) -> None:
    """Add the JSON Schema of each channel's bodies, and say which channel asks for which.

    A keyword beside the properties does so, as clients have it: a schema for each channel would
    make another type of each message.
    """
    for channel in body_types.channels:
        name = f"body.{channel}"
        schema = body_types.json_schema(channel, f"#/components/schemas/{name}.{{model}}")
        parts = schema.pop("$defs", {})
        schemas |= {f"{name}.{part}": each for part, each in parts.items()} | {name: schema}
        body = {"anyOf": [{"$ref": f"#/components/schemas/{name}"}, {"type": "null"}]}
        rule = {
            "if": {"properties": {"channel": {"const": channel}}, "required": ["channel"]},
            "then": {"properties": {"body": body}},
        }
        for each in (models.NewMessage, models.NewMessageLine):
            schemas[each.__name__].setdefault("allOf", []).append(rule)


def _complete(method: str, operation: dict[str, Any]) -> None:
    """Add what FastAPI does not know of an operation: problems, headers, key, bodies."""
    name, responses = operation["operationId"], operation["responses"]
    has_key = method != "get" and name not in _WITHOUT_KEY
    of_success = [*_OF_LIMITS, *_OF_SUCCESS.get(name, ())]
    if has_key:
        of_success.append("Idempotency-Replayed")
        operation.setdefault("parameters", []).append(_KEY)
    if name == "get":
        responses["304"] = {"description": "The message is as the client has it"}
    for each in responses.values():
        each["headers"] = _described(of_success)
    for status in sorted({*_OF_ALL, *_MORE[name]}):
        responses[str(status)] = {
            "description": _TITLES[status],
            "headers": _described(_OF_PROBLEMS.get(status, _OF_LIMITS)),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    if name == "events":
        responses["200"]["content"] = {
            "text/event-stream": {"schema": {"$ref": "#/components/schemas/EventOut"}}
        }
    if name in BODIES:
        media_type, body = BODIES[name]
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        operation["requestBody"] = {"required": True, "content": {media_type: {"schema": schema}}}
    if name == "submit_batch":
        responses["200"]["content"] = {
            _NDJSON: {"schema": {"$ref": "#/components/schemas/VerdictOut"}}
        }


def _described(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
