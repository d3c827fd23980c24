"""What the API refuses before the dispatcher sees a call. Errors are in ``dispatcher.problems``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from starlette.types import Message, Receive, Scope

from dispatcher.errors import InvalidDraft
from dispatcher.problems import problem
from dispatcher.settings import like, sentence_of

THE_CALL = "the call"
"""The field of an error about a body as a whole: ``body`` is one of a message."""
CUT_OFF = "the call ended before its body did"


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


def unknown_name(field: str, what: str, names: Collection[str]) -> InvalidDraft:
    return InvalidDraft(field, f"there is no such {what}", like(field.rpartition(".")[2], names))


def invalid(error: Mapping[str, Any], where: Iterable[str | int], whole: str) -> InvalidDraft:
    """Return an error of pydantic as ours; ``whole`` is its field if nothing could be read."""
    field = ".".join(map(str, where)) or whole
    problem, accepted = sentence_of(error)
    problem, accepted = problem.replace("table", "object"), accepted.replace("a table", "an object")
    return InvalidDraft(field, f"its body {problem}" if field == THE_CALL else problem, accepted)


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other names. Values in quotes stay as they were given."""
    words = r"'[^']*'|\"[^\"]*\"|[a-z]+(?:_[a-z]+)*"
    return re.sub(words, lambda word: names.get(word[0], word[0]), text)
