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

UNKNOWN = "extra_forbidden"


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
    fields = {"fields": list(model.model_fields)}
    is_known = [each["type"] != UNKNOWN or len(each["loc"]) > 1 for each in found]
    return [each if known else each | fields for each, known in zip(found, is_known, strict=True)]


def invalid_body(found: Sequence[Any]) -> InvalidDraft:
    """Return the error for a body of the wrong shape.

    It names the first field that there is not, else the first wrong one: a misspelt field is often
    missing, too. ``found`` are the errors of pydantic, or those of :func:`errors_of`.
    """
    first = next((each for each in found if each["type"] == UNKNOWN), found[0])
    where = [str(each) for each in first["loc"] if each not in ("body", "query", "path")]
    problem, accepted = first["msg"], "what the OpenAPI document describes"
    if first["type"] == UNKNOWN:
        is_field = first["loc"][0] != "query"
        problem = "there is no such field" if is_field else "there is no such parameter"
        accepted = "a name of the OpenAPI document"
        if fields := first.get("fields"):  # "send_in" is rather "send_in_seconds" than "send_at"
            longer = [each for each in fields if each.startswith(f"{where[-1]}_")]
            accepted = longer[0] if longer else like(where[-1], fields)
    return InvalidDraft(".".join(where) or "body", problem, accepted)


def response_of(problem: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """Return a problem as an answer."""
    return Response(
        json.dumps(problem), problem["status"], headers=dict(headers), media_type=MEDIA_TYPE
    )
