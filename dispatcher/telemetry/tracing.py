"""Spans of OpenTelemetry. ``spans`` needs the extra ``traces``, and is imported then.

A submit has a span, and each send has one that is linked to it by what the message carries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Protocol

from dispatcher.extras import needs
from dispatcher.message import Message, Outcome, Rejection

Accepted = Callable[[Message], object]
"""Takes the message that a submit is answered with."""
CameTo = Callable[[Outcome, str | None], object]
"""Takes the outcome of a try, and the name of its error's type where it failed."""
Answers = Generator[list[Message | Rejection], None, None]
"""Yields the results of a batch at a time."""


class Tracing(Protocol):
    """Opens and ends spans. Shared by threads.

    Nothing of its own is ever raised: a message must not depend on its traces. No span carries a
    body, an address or the text of an error.
    """

    def submitting(self) -> AbstractContextManager[Accepted]:
        """Trace one submit. What is raised inside ends it as failed."""
        ...

    def submitting_many(self, answers: Answers) -> Answers:
        """Yield the same answers. One span lasts from the first that is asked for to the end."""
        ...

    def current(self) -> str | None:
        """Return what a message carries of the span that submits it, None where there is none."""
        ...

    def delivering(self, message: Message) -> AbstractContextManager[CameTo]:
        """Trace one send, in a trace of its own that is linked to the submit's."""
        ...


def opentelemetry_tracing() -> Tracing:
    """Return what tells OpenTelemetry. Raises InvalidSettings where its API is missing."""
    with needs("traces", "traces", instead="traces = false"):
        from dispatcher.telemetry.spans import Spans  # noqa: PLC0415 - an extra
    return Spans()
