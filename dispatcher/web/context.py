"""The context of a call: its caller, the dispatcher it is made on, and how it is answered."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dispatcher.client import Dispatcher
from dispatcher.errors import DispatcherError, IdempotencyConflict, InvalidDraft
from dispatcher.message import Message, json_problem
from dispatcher.problems import problem_of
from dispatcher.web import models
from dispatcher.web.access import Caller, Right
from dispatcher.web.problems import CUT_OFF, THE_CALL, Refused, invalid, unknown_name, with_names

if TYPE_CHECKING:
    from dispatcher.web.api import Api

BodyT = TypeVar("BodyT", bound=BaseModel)

KEY_HEADER = "Idempotency-Key"
_JSON = "application/json"
_OVERHEAD_BYTES = 65_536
"""How much longer a call may be than the longest body of a message."""
_HTTP_NAMES = {
    "send_in": "send_in_seconds",
    "expire_after": "expire_after_seconds",
    "spread": "spread_seconds",
    "window": "window_seconds",
    "from_at": "from",
    "until_at": "until",
    "id": "message_id",
    "length": "days",
    "since": "hours",
    "within": "hours",
}


class Context:
    """A call under way. ``raw`` is its body, empty until it is read."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.raw = b""
        self.service: Api = request.app

    @property
    def dispatcher(self) -> Dispatcher:
        return self.service.dispatcher

    @property
    def longest(self) -> int:
        """How many bytes a call of one message may have."""
        return self.service.settings.body_max_bytes + _OVERHEAD_BYTES

    @property
    def operation(self) -> dict[str, Any]:
        """What the document says of the call."""
        operation: dict[str, Any] = self.service.operations[
            self.request.scope["route"].operation_id
        ]
        return operation

    @property
    def caller(self) -> Caller:
        caller: Caller = self.request.state.caller
        return caller

    @property
    def idempotency_key(self) -> str | None:
        """The key of the call, bare or quoted; None without one. Raises InvalidDraft.

        Clients send other characters than ASCII in different encodings.
        """
        keys = self.request.headers.getlist(KEY_HEADER)
        if not keys:
            return None
        if len(keys) > 1:
            raise InvalidDraft(KEY_HEADER, "is given more than once", "one key")
        key = keys[0]
        if not key.isascii():
            raise InvalidDraft(KEY_HEADER, "has characters that are not ASCII", "ASCII text")
        is_quoted = len(key) > 1 and key[0] == key[-1] == '"'
        return key[1:-1] if is_quoted else key

    @classmethod
    async def of(cls, request: Request) -> Self:
        """Read a body. Refuses one that the call does not have, or that is not sent as JSON."""
        context = cls(request)
        try:
            context.raw = await request.body()
        except ClientDisconnect:
            raise HTTPException(400, CUT_OFF) from None
        if context.raw:
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if "requestBody" not in context.operation:
                raise InvalidDraft(THE_CALL, "has a body", "a call without a body")
            if media_type != _JSON:
                raise InvalidDraft(THE_CALL, "its body is not sent as JSON", f"send it as {_JSON}")
        return context

    def payload(self, model: type[BodyT]) -> BodyT:
        """Return the body. Raises InvalidDraft, and HTTPException if it is no JSON."""
        if not self.raw and not self.operation["requestBody"]["required"]:
            return model()
        if not self.raw:
            raise InvalidDraft(THE_CALL, "its body is missing", "an object")
        try:
            body = json.loads(self.raw)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the body {json_problem(error)}") from None
        return validated(model, body)

    def check(self, *rights: Right) -> None:
        """Refuse a call without these rights, or with query names that, ignored, would alter it."""
        self.caller.check(*rights)
        parameters = self.operation.get("parameters", ())
        names = [parameter["name"] for parameter in parameters if parameter["in"] == "query"]
        counts = Counter(name for name, _ in self.request.query_params.multi_items())
        for name, times in counts.items():
            if name not in names:
                raise unknown_name(name, "parameter", names)
            if times > 1 and name != "count":
                raise InvalidDraft(name, "is given more than once", "one value")

    def traced(self) -> AbstractContextManager[None]:
        spans, headers = self.service.parts.spans, self.request.headers
        if spans is None:
            return nullcontext()
        names = ("traceparent", "tracestate")
        return spans.under_parent_of({name: ",".join(headers.getlist(name)) for name in names})

    def shown(self, message: Message) -> models.MessageOut:
        return models.MessageOut.of(message, self.caller, self.service.digest)


def validated(model: type[BodyT], body: Any, *, whole: str = THE_CALL) -> BodyT:
    """Return a body. Raises InvalidDraft for its first mistake, a field that is unknown before all.

    It names ``whole`` where nothing could be read.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
    unknown = (error for error in mistakes if error["type"] == "extra_forbidden")
    mistake = next(unknown, mistakes[0])
    if mistake["type"] != "extra_forbidden":
        raise invalid(mistake, mistake["loc"], whole)
    fields = models.NewMessage.model_fields if len(mistake["loc"]) > 1 else model.model_fields
    raise unknown_name(".".join(map(str, mistake["loc"])), "field", fields)


def problem_for(request: Request, error: DispatcherError | Refused) -> dict[str, Any]:
    """Return what the caller, or a stranger, may see of an error, in HTTP's names: ``from``."""
    if isinstance(error, Refused):
        return error.problem
    caller: Caller | None = getattr(request.state, "caller", None)
    if isinstance(error, IdempotencyConflict) and caller is not None:
        key = caller.shown_key(error.key) or error.key
        error = IdempotencyConflict(key, error.message_id)
    problem = problem_of(error, whole=caller is not None and caller.sees_conflicts)
    if "field" not in problem:
        return problem
    names = dict(_HTTP_NAMES)
    if "scope" in request.path_params:
        names["recipient"] = "scope"
    if request.method == "GET":
        names["scopes"] = "count"
    if request.method == "PATCH":
        del names["since"]  # of a series
    words = {name: shown for name, shown in names.items() if "_" in name}
    field, dot, rest = problem["field"].partition(".")
    named = {"field": f"{names.get(field, field)}{dot}{rest}"}
    named |= {name: with_names(problem[name], words) for name in ("problem", "accepted")}
    detail = "{field}: {problem}; accepted: {accepted}".format_map(named)
    return {**problem, **named, "detail": detail}


CallContext = Annotated[Context, Depends(Context.of)]
