"""What the API refuses before the dispatcher sees a call. Errors are in ``dispatcher.problems``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from dispatcher.errors import InvalidDraft
from dispatcher.problems import MEDIA_TYPE, problem


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


def invalid_body(found: Sequence[Any]) -> InvalidDraft:
    """Return the error for a body of the wrong shape; it names the first wrong field.

    ``found`` are the errors of pydantic.
    """
    first = found[0]
    where = [str(each) for each in first["loc"] if each not in ("body", "query", "path")]
    accepted = "a field of the OpenAPI document" if first["type"] == "extra_forbidden" else (
        "what the OpenAPI document describes"
    )  # fmt: skip
    return InvalidDraft(".".join(where) or "body", first["msg"], accepted)


def response_of(problem: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """Return a problem as an answer."""
    return Response(
        json.dumps(problem), problem["status"], headers=dict(headers), media_type=MEDIA_TYPE
    )
