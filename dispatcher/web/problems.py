"""What the API refuses before the dispatcher sees a call. Errors are in ``dispatcher.problems``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote_plus

from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from dispatcher.errors import InvalidDraft
from dispatcher.problems import MEDIA_TYPE, problem
from dispatcher.settings import like

Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema, as the OpenAPI document has it."""

THE_CALL = "the call"
"""The field of an error about a body as a whole: ``body`` is one of a message."""
CUT_OFF = "the call ended before its body did"

UNKNOWN_FIELD = "extra_forbidden"
"""The type of an error that is told before others."""
_PROBLEMS = {
    "missing": "is missing",
    "string_unicode": "has characters that are no text",
    "int_parsing_size": "is out of range",
    "finite_number": "is no finite number",
    "too_long": "has too many entries",
    "string": "is no text",
    "bool": "is neither true nor false",
    "int": "is no whole number",
    "float": "is no number",
    "dict": "is no object",
    "model": "is no object",
    "list": "is no list",
    "literal": "is not an accepted value",
    "enum": "is not an accepted value",
    "greater": "is out of range",
    "less": "is out of range",
}
"""What is wrong, by the type of the error, or else by its first word."""
_KINDS = {
    "string": "a text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "an object",
    "array": "a list",
}
_BOUNDS = {
    "exclusiveMinimum": "more than",
    "minimum": "at least",
    "maximum": "at most",
    "maxItems": "at most",
}
_NULL = {"type": "null"}


@dataclass(eq=False)
class Refused(Exception):
    status: int
    kind: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.detail

    @property
    def problem(self) -> dict[str, Any]:
        return problem(self.status, self.kind, self.detail)


def unauthorized(detail: str) -> Refused:
    return Refused(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def check_is_utf8(scope: Scope) -> None:
    """Refuse what is not UTF-8: U+FFFD for it would be the name of another recipient."""
    query: bytes = scope["query_string"]
    if "\ufffd" in scope["path"] + unquote_plus(query.decode("latin-1")):
        raise Refused(400, "unreadable", "the path or the query is not UTF-8, percent-encoded")


def bounded(receive: Receive, most: int, detail: str) -> Receive:
    """Let it receive at most so many bytes. Then it raises Refused."""
    read = 0

    async def receive_some() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise Refused(413, "too-large", detail)
        return message

    return receive_some


def forbidden(detail: str) -> Refused:
    return Refused(403, "forbidden", detail)


def call_schema(document: Schema, operation: Schema) -> Schema:
    """Return the schema of a call's path, query and body; ``names`` are those of all its fields."""
    named: dict[str, dict[str, Schema]] = {"path": {}, "query": {}, "header": {}}
    for each in operation.get("parameters", ()):
        named[each["in"]][each["name"]] = each["schema"]
    parts: dict[str, Schema] = {place: {"properties": each} for place, each in named.items()}
    for each in operation.get("requestBody", {}).get("content", {}).values():
        parts["body"] = each["schema"]
    call: Schema = {"properties": parts, "components": document["components"]}
    return {**call, "names": _names_in(call)}


def schema_at(call: Schema, where: Iterable[str | int]) -> Schema:
    """Return a part of a call's schema, of a value that may be null the other part."""
    found = call
    for step in where:
        inner = found.get("items") if isinstance(step, int) else None
        inner = inner or found.get("properties", {}).get(step) or found.get("additionalProperties")
        found = inner if isinstance(inner, Mapping) else {}
        found = next((each for each in found.get("anyOf", ()) if each != _NULL), found)
        if reference := found.get("$ref"):
            found = call["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _names_in(call: Schema) -> set[str]:
    found = set[str]()
    for place in call["properties"]:
        names = schema_at(call, [place]).get("properties", {})
        inner = (schema_at(call, [place, name, 0]).get("properties", {}) for name in names)
        found = found.union(names, *inner)
    return found


def invalid_call(found: Sequence[Any], call: Schema, *, whole: str) -> InvalidDraft:
    """Return the error: of the first unknown name, as then one is often missing, too."""
    first = next((each for each in found if each["type"] == UNKNOWN_FIELD), found[0])
    where, kind = first["loc"], first["type"]
    field = ".".join(map(str, where[1:])) or whole
    if kind == UNKNOWN_FIELD:
        what = "parameter" if where[0] == "query" else "field"
        names = schema_at(call, where[:-1]).get("properties", {})
        accepted = like(str(where[-1]), names) if names else "none"
        return InvalidDraft(field, f"there is no such {what}", accepted)
    problem = _PROBLEMS.get(kind) or _PROBLEMS.get(kind.partition("_")[0])
    problem = problem or first["msg"][:1].lower() + first["msg"][1:]
    if field == THE_CALL:
        problem = f"its body {problem}"
    return InvalidDraft(field, problem, accepted_by(schema_at(call, where)))


def accepted_by(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    bounds = [f"{words} {schema[name]:,.15g}" for name, words in _BOUNDS.items() if name in schema]
    words = _KINDS.get(schema.get("type", ""), "what the OpenAPI document describes")
    return f"{words} of {' and '.join(bounds)}" if bounds else words


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other names. Values in quotes stay as they were given."""
    words = r"'[^']*'|\"[^\"]*\"|[a-z]+(?:_[a-z]+)*"
    return re.sub(words, lambda word: names.get(word[0], word[0]), text)


def response_of(problem: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    return Response(
        json.dumps(problem), problem["status"], headers=dict(headers), media_type=MEDIA_TYPE
    )
