"""OpenTelemetry's SDK, with what it exports kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry._logs import set_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Switched(SpanProcessor):
    """Passes everything on to the processors that listen now; a provider never forgets one."""

    def __init__(self) -> None:
        self.listening: list[SpanProcessor] = []

    def on_start(self, span: object, parent_context: object = None) -> None:
        for processor in self.listening:
            processor.on_start(span, parent_context)  # type: ignore[arg-type]  # passed on

    def on_end(self, span: ReadableSpan) -> None:
        for processor in self.listening:
            processor.on_end(span)


@cache
def _processor() -> Switched:
    provider, processor = TracerProvider(), Switched()
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return processor


@cache
def _logs() -> InMemoryLogRecordExporter:
    provider, exporter = LoggerProvider(), InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]  # the SDK's
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    set_logger_provider(provider)
    return exporter


class Collected:
    def __init__(self, exporter: InMemorySpanExporter, processor: Switched) -> None:
        self._exporter = exporter
        self._processor = processor

    def all(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def text(self) -> str:
        """All that is exported of them, and all logs that libraries export since."""
        logs = (log.to_json() for log in _logs().get_finished_logs())
        return "\n".join((*(span.to_json() for span in self.all()), *logs))

    @contextmanager
    def also(self, processor: SpanProcessor) -> Iterator[None]:
        self._processor.listening.append(processor)
        try:
            yield
        finally:
            self._processor.listening.remove(processor)


@contextmanager
def collecting() -> Iterator[Collected]:
    exporter, processor = InMemorySpanExporter(), _processor()
    _logs().clear()
    collected = Collected(exporter, processor)
    with collected.also(SimpleSpanProcessor(exporter)):
        yield collected
