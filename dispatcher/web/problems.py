"""What the API refuses before the dispatcher sees a call. Errors are in ``dispatcher.problems``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from dispatcher.errors import InvalidDraft
from dispatcher.problems import MEDIA_TYPE, problem
from dispatcher.settings import like

UNKNOWN_FIELD = "extra_forbidden"


class Refused(Exception):
    """A call that the API refuses before the dispatcher sees it."""

    def __init__(
        self, status: int, kind: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})


def unauthorized(detail: str) -> Refused:
    """Return the refusal of a call without a valid key."""
    return Refused(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def forbidden(detail: str) -> Refused:
    """Return the refusal of a call for which its key has no right."""
    return Refused(403, "forbidden", detail)


def refusal_of(refused: Refused) -> dict[str, Any]:
    """Return a refusal of the API as a problem."""
    return problem(refused.status, refused.kind, refused.detail)


def errors_of(error: ValidationError, model: type[BaseModel]) -> list[Any]:
    """Return the errors of pydantic; those of unknown fields have the ``fields`` of the model."""
    found: list[Any] = list(error.errors())
    for each in found:
        if each["type"] == UNKNOWN_FIELD and len(each["loc"]) == 1:
            each["fields"] = list(model.model_fields)
    return found


def invalid_body(found: Sequence[Any]) -> InvalidDraft:
    """Return the error for a body of the wrong shape.

    It names the first field that there is not, else the first wrong one: a misspelt field is often
    missing, too. ``found`` are the errors of pydantic, or those of :func:`errors_of`.
    """
    first = next((each for each in found if each["type"] == UNKNOWN_FIELD), found[0])
    where = [str(each) for each in first["loc"] if each not in ("body", "query", "path")]
    field = ".".join(where) or "body"
    if first["type"] != UNKNOWN_FIELD:
        return InvalidDraft(field, first["msg"], "what the OpenAPI document describes")
    fields = first.get("fields")
    accepted = like(where[-1], fields) if fields else "a name of the OpenAPI document"
    kind = "parameter" if first["loc"][0] == "query" else "field"
    return InvalidDraft(field, f"there is no such {kind}", accepted)


def response_of(problem: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """Return a problem as an answer."""
    return Response(
        json.dumps(problem), problem["status"], headers=dict(headers), media_type=MEDIA_TYPE
    )
