"""Spans by the API of OpenTelemetry, which needs the extra ``traces``: imported only at need.

A submit has a span; each send has one in a trace of its own, linked to the submit's by what the
message carries. Attributes are named by OpenTelemetry's semantic conventions for messaging; those
that it has no word for begin with ``dispatcher.``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from importlib.metadata import version
from typing import TypeVar

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NoOpTracer,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    get_tracer,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dispatcher.errors import DISTRIBUTION
from dispatcher.message import Message, Outcome, Rejection

log = logging.getLogger(__name__)

T = TypeVar("T")
Accepted = Callable[[Message], object]
CameTo = Callable[[Outcome, str | None], object]
"""Takes the outcome of a try, and the name of its error's type where it failed."""
Answers = Generator[list[Message | Rejection], None, None]
_Value = str | int

_PARENT = "traceparent"
_W3C = TraceContextTextMapPropagator()
_SUBMITTING: dict[str, _Value] = {
    "messaging.system": "dispatcher",
    "messaging.operation.name": "submit",
    "messaging.operation.type": "send",
}
_DELIVERING: dict[str, _Value] = {
    "messaging.system": "dispatcher",
    "messaging.operation.name": "deliver",
    "messaging.operation.type": "process",
}


class Spans:
    """Opens and ends spans. Shared by threads.

    After a fault of the SDK, which is never raised, tracing stops in this process. No span carries
    a body, an address or the text of an error.
    """

    def __init__(self) -> None:
        self._tracer: Tracer = get_tracer("dispatcher", version(DISTRIBUTION))

    @contextmanager
    def under_parent_of(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Make the span of ``traceparent`` current, unless the program traces the call itself."""
        if get_current_span().get_span_context().is_valid:
            yield
            return
        before = attach(_W3C.extract(headers))
        try:
            yield
        finally:
            detach(before)

    @contextmanager
    def submitting(self) -> Iterator[Accepted]:
        span = self._start("dispatcher.submit", SpanKind.PRODUCER, _SUBMITTING)

        def accepted(message: Message) -> None:
            attributes = {
                "messaging.destination.name": message.channel,
                "messaging.message.id": str(message.id),
            }
            self._quietly(span.set_attributes, attributes)

        with self._inside(span):
            yield accepted

    def submitting_many(self, answers: Answers) -> Answers:
        """Yield the same answers. The span is current while they are made, and not in between."""
        span = self._start("dispatcher.submit", SpanKind.PRODUCER, _SUBMITTING)
        context = copy_context()
        context.run(attach, set_span_in_context(span))
        counts: Counter[str] = Counter()
        try:
            while (batch := context.run(next, answers, None)) is not None:
                for answer in batch:
                    is_refused = isinstance(answer, Rejection)
                    counts["dispatcher.refused" if is_refused else "dispatcher.accepted"] += 1
                yield batch
        except Exception as error:
            self._failed(span, type(error).__name__)
            raise
        finally:
            try:
                context.run(answers.close)  # where the caller reads no further
            finally:
                attributes = {**counts, "messaging.batch.message_count": counts.total()}
                self._quietly(span.set_attributes, attributes)
                self._quietly(span.end)

    def current(self) -> str | None:
        """Return the W3C traceparent of the current span, None where that is not a valid one."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get(_PARENT)

    @contextmanager
    def delivering(self, message: Message) -> Iterator[CameTo]:
        """Trace one send. Its span begins a trace, whatever is current in this thread."""
        attributes = _DELIVERING | {
            "messaging.destination.name": message.channel,
            "messaging.message.id": str(message.id),
            "dispatcher.attempt": message.attempt_count,
        }
        links = []
        if message.trace is not None:
            submit = get_current_span(_W3C.extract({_PARENT: message.trace}, Context()))
            if submit.get_span_context().is_valid:
                links = [Link(submit.get_span_context())]
        span = self._start(
            "dispatcher.deliver", SpanKind.CONSUMER, attributes, links, context=Context()
        )

        def came_to(outcome: Outcome, error_type: str | None) -> None:
            self._quietly(span.set_attribute, "dispatcher.outcome", outcome.value)
            if error_type is not None:
                self._failed(span, error_type)

        with self._inside(span):
            yield came_to

    def _start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, _Value],
        links: Sequence[Link] = (),
        *,
        context: Context | None = None,
    ) -> Span:
        start = partial(self._tracer.start_span, kind=kind, attributes=attributes, links=links)
        return self._quietly(start, name, context) or INVALID_SPAN

    @contextmanager
    def _inside(self, span: Span) -> Iterator[None]:
        # The SDK's own record of an error has its text, which may quote a body.
        with use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException as error:
                self._failed(span, type(error).__name__)
                raise
            finally:
                self._quietly(span.end)

    def _failed(self, span: Span, error_type: str) -> None:
        self._quietly(span.set_attribute, "error.type", error_type)
        self._quietly(span.set_status, StatusCode.ERROR)

    def _quietly(self, call: Callable[..., T], *arguments: object) -> T | None:
        """Call the SDK. What it raises after a send would make the outcome an unknown one."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - processors and samplers may raise anything
            self._tracer = NoOpTracer()
            text = "tracing stopped in this process: the SDK raised %s; correct its processors"
            log.error(text, type(error).__name__)  # noqa: TRY400 - its text may quote a body
            return None
