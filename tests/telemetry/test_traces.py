"""Spans of submits and sends, as OpenTelemetry's own SDK sees them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    NoOpTracer,
    SpanContext,
    SpanKind,
    StatusCode,
    use_span,
)

from dispatcher import (
    Draft,
    Message,
    PerhapsSent,
    PermanentFailure,
    QuotaExceeded,
    StoreUnavailable,
    TemporaryFailure,
)
from dispatcher.store.listing import Listing
from dispatcher.telemetry.spans import Spans
from dispatcher.web import api
from dispatcher.web.keys import ApiKeys
from dispatcher.web.pages import beside
from tests.support.callers import callers_engine
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.tracing import Collected, collecting
from tests.support.waiting import wait_until

CANARY = "canary-4711"
HOUR = timedelta(hours=1)


@pytest.fixture
def spans() -> Iterator[Collected]:
    """Give what the SDK exports from now on."""
    with collecting() as collected:
        yield collected


@pytest.fixture
def traced(build: Build, spans: Collected) -> House:
    """Give a house that traces, in which what is submitted is due at once."""
    return build(clock=hour_ago(), traces=True, quotas="100/minute")


@contextmanager
def by_http(house: House, *, host: FastAPI | None = None) -> Iterator[TestClient]:
    """Call the API, alone or where a program mounts it at ``/dispatcher``."""
    app, root = api(house.dispatcher), "/"
    if host is not None:
        host.mount("/dispatcher", app)
        app, root = host, "/dispatcher/"
    _, token = ApiKeys(house.parts.database).add("shop" if host is None else "host")
    with TestClient(
        app,
        base_url=f"http://testserver{root}",
        headers={"Authorization": f"Bearer {token}"},
        raise_server_exceptions=False,
    ) as client:
        yield client


def written(context: SpanContext | None) -> str:
    """A traceparent as the W3C writes it."""
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def traceparent(span: ReadableSpan) -> str:
    return written(span.get_span_context())


def linked(span: ReadableSpan) -> list[str]:
    return [written(link.context) for link in span.links]


def stored(house: House, message: Message) -> Any:
    return house.columns(message, "trace")[0]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def drafts(count: int, **asked: Any) -> list[Draft]:
    usual: dict[str, Any] = {"channel": "memory", "body": {}, "send_in": HOUR} | asked
    return [Draft(**{"recipient": f"to {n}"} | usual) for n in range(count)]


@pytest.mark.every_database
def test_a_send_is_linked_to_its_submit(traced: House, spans: Collected) -> None:
    def before(_: Message) -> None:
        with trace.get_tracer("an instrumented client").start_as_current_span("POST"):
            pass

    traced.memory.before = before
    message = traced.submit(CANARY, body={"text": CANARY}, scope=CANARY, idempotency_key=CANARY)
    traced.deliver(message)
    (post,) = spans.named("POST")
    (submit,), (deliver,) = spans.named("dispatcher.submit"), spans.named("dispatcher.deliver")
    assert stored(traced, message) == message.trace == traceparent(submit)
    assert linked(deliver) == [traceparent(submit)]
    assert deliver.parent is None
    assert post.parent == deliver.get_span_context()
    assert (submit.kind, deliver.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    known = {
        "messaging.system": "dispatcher",
        "messaging.destination.name": "memory",
        "messaging.message.id": str(message.id),
    }
    assert attributes(submit) == known | {
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
    }
    assert attributes(deliver) == known | {
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "process",
        "dispatcher.attempt": 1,
        "dispatcher.outcome": "sent",
    }
    assert {span.status.status_code for span in (submit, deliver)} == {StatusCode.UNSET}
    assert CANARY not in spans.text()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TemporaryFailure(CANARY), "temporary"),
        (PermanentFailure(CANARY), "permanent"),
        (PerhapsSent(CANARY), "unknown"),
        (OSError(CANARY), "unknown"),
        (SystemExit(CANARY), None),
    ],
)
def test_a_failed_try_tells_its_outcome_and_the_type_of_its_error_alone(
    traced: House, spans: Collected, error: BaseException, outcome: str | None
) -> None:
    traced.fail_sends(error)
    with suppress(SystemExit):
        traced.deliver(traced.submit())
    (deliver,) = spans.named("dispatcher.deliver")
    assert deliver.status.status_code is StatusCode.ERROR
    assert attributes(deliver).get("dispatcher.outcome") == outcome
    assert attributes(deliver)["error.type"] == type(error).__name__
    assert CANARY not in spans.text()


def test_a_submit_is_a_child_of_what_its_caller_does_and_a_send_is_not(
    traced: House, spans: Collected
) -> None:
    async def serve() -> None:
        await traced.dispatcher.asubmit(channel="memory", recipient="ada", body={}, send_in=HOUR)

    with trace.get_tracer("a web framework").start_as_current_span("GET") as request:
        traced.deliver(traced.submit())
        asyncio.run(serve())
        with callers_engine(traced.database) as engine, engine.begin() as caller:
            message = traced.submit(session=caller)
    (deliver,) = spans.named("dispatcher.deliver")
    *others, joined = spans.named("dispatcher.submit")
    assert [span.parent for span in (*others, joined)] == [request.get_span_context()] * 3
    assert stored(traced, message) == message.trace == traceparent(joined)
    assert deliver.parent is None


def test_a_submit_by_http_is_a_child_of_its_callers_span(traced: House, spans: Collected) -> None:
    with trace.get_tracer("a caller").start_as_current_span("order") as order:
        headers = {"traceparent": written(order.get_span_context())}
    with by_http(traced) as client:
        new = {"channel": "memory", "recipient": "ada", "body": {}, "send_in_seconds": 3_600}
        assert client.post("v1/messages", json=new, headers=headers).status_code == 201
        lines = json.dumps(new).encode()
        batch = headers | {"content-type": "application/x-ndjson"}
        assert '"status":201' in client.post("v1/messages/batch", content=lines, headers=batch).text
    one, many = spans.named("dispatcher.submit")
    for submit in (one, many):
        assert submit.parent is not None
        assert written(submit.parent) == headers["traceparent"]
    with by_http(traced, host=FastAPI()) as client:  # a program that traces its calls itself
        assert client.post("v1/messages", json=new, headers=headers).status_code == 201
    (request,) = (span for span in spans.all() if span.kind is SpanKind.SERVER)
    submitted, own = spans.named("dispatcher.submit")[-1], request.get_span_context()
    assert submitted.context is not None
    assert own is not None
    assert submitted.context.trace_id == own.trace_id


def test_pipelined_submits_have_parents_of_their_own(traced: House, spans: Collected) -> None:
    """uvicorn begins the next call of a connection in the context of the one before."""
    _, token = ApiKeys(traced.parts.database).add("shop")
    body = b'{"channel": "memory", "recipient": "ada", "body": {}, "send_in_seconds": 3600}'
    lines = (
        "POST /v1/messages HTTP/1.1",
        "Host: here",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    head = "\r\n".join(lines).encode()
    parents = [b"\r\ntraceparent: 00-%b-%b-01" % (digit * 32, digit * 16) for digit in (b"a", b"b")]
    calls = [head + parent + b"\r\n\r\n" + body for parent in (*parents, b"")]
    with beside(api(traced.dispatcher)) as address:
        port = urlsplit(address).port or 80
        with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
            line.sendall(b"".join(calls))
            wait_until(lambda: len(spans.named("dispatcher.submit")) == len(calls))
    traces = [
        span.parent and f"{span.parent.trace_id:x}" for span in spans.named("dispatcher.submit")
    ]
    assert traces == ["a" * 32, "b" * 32, None]


@pytest.mark.parametrize("mounted", [False, True])
def test_no_span_and_no_log_of_fastapi_names_a_recipient(
    traced: House, spans: Collected, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    """Its spans have paths and queries, its logs the texts of errors.

    A program that mounts the API excludes its calls, as docs/http-api.md says.
    """
    host = FastAPI(telemetry={"exclude": lambda scope: "/dispatcher/" in scope["path"]})
    with by_http(traced, host=host if mounted else None) as client:
        assert client.get(f"v1/suppressions/{CANARY}").status_code == 200
        assert client.get("v1/messages", params={"recipient": CANARY}).status_code == 200
        wrong = {"channel": CANARY, "recipient": CANARY, "body": {"text": CANARY}}
        assert client.post("v1/messages", json=wrong).status_code == 422
        monkeypatch.setattr(Listing, "counted", Mock(side_effect=RuntimeError(CANARY)))
        assert client.get("v1/counts").status_code == 500
    assert CANARY not in spans.text()


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.every_database
def test_many_submits_are_one_span(traced: House, spans: Collected, atomic: bool) -> None:
    secret: dict[str, Any] = {"body": {"text": CANARY}, "scope": CANARY}
    messages = traced.dispatcher.submit_many(drafts(3, **secret), atomic=atomic)
    (submit,) = spans.named("dispatcher.submit")
    assert len(messages) == 3
    for message in messages:
        assert isinstance(message, Message)
        assert stored(traced, message) == message.trace == traceparent(submit)
    assert attributes(submit)["messaging.batch.message_count"] == 3
    assert attributes(submit)["dispatcher.accepted"] == 3
    assert CANARY not in spans.text()


def test_drafts_that_are_read_one_by_one_are_one_span_that_is_not_the_callers(
    traced: House, spans: Collected
) -> None:
    current = set()
    asked = (draft for draft in [*drafts(2), *drafts(1, recipient="")])
    answers = traced.dispatcher.submit_many(asked)
    for _ in answers:
        current.add(trace.get_current_span())
    (submit,) = spans.named("dispatcher.submit")
    assert current == {INVALID_SPAN}
    counts = ("messaging.batch.message_count", "dispatcher.accepted", "dispatcher.refused")
    assert [attributes(submit)[count] for count in counts] == [3, 2, 1]
    assert submit.status.status_code is StatusCode.UNSET


def test_a_span_of_many_ends_where_nobody_reads_on(traced: House, spans: Collected) -> None:
    answers = iter(traced.dispatcher.submit_many(draft for draft in drafts(2)))
    next(answers)
    assert spans.named("dispatcher.submit") == []
    del answers
    (submit,) = spans.named("dispatcher.submit")
    assert attributes(submit)["messaging.batch.message_count"] == 2
    assert submit.status.status_code is StatusCode.UNSET


def test_a_refused_submit_tells_the_type_of_its_error(build: Build, spans: Collected) -> None:
    house = build(traces=True, quotas="1/minute")
    house.submit(CANARY, send_in=HOUR)
    with pytest.raises(QuotaExceeded):
        house.submit(CANARY, send_in=HOUR)
    house.swap("suppressions", Mock(**{"among.side_effect": StoreUnavailable(CANARY)}))
    with pytest.raises(StoreUnavailable):
        house.dispatcher.submit_many(drafts(2))
    _, *refused = spans.named("dispatcher.submit")
    assert {span.status.status_code for span in refused} == {StatusCode.ERROR}
    types = [attributes(span)["error.type"] for span in refused]
    assert types == ["QuotaExceeded", "StoreUnavailable"]
    assert CANARY not in spans.text()


def test_where_it_is_off_nothing_is_stored_and_nothing_is_told(
    build: Build, spans: Collected
) -> None:
    house = build(clock=hour_ago(), quotas="100/minute")
    with trace.get_tracer("a web framework").start_as_current_span("GET"):
        message = house.submit()
        (other,) = house.dispatcher.submit_many(drafts(1))
        house.deliver(message)
    assert isinstance(other, Message)
    assert [stored(house, message), stored(house, other)] == [None, None]
    assert {span.name for span in spans.all()} == {"GET"}


def test_a_message_that_nobody_traced_is_delivered_without_a_link(
    traced: House, spans: Collected
) -> None:
    message, other = traced.submit(), traced.submit("ben")
    traced.change([message], trace=None)
    traced.change([other], trace="not what W3C has in mind")
    traced.deliver(message, other)
    assert [linked(span) for span in spans.named("dispatcher.deliver")] == [[], []]
    assert len(traced.sent) == 2


class Faulty(SpanProcessor):
    """A processor that fails where it is asked to."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_start(self, span: Span, parent_context: object = None) -> None:
        del span, parent_context
        if self.when == "start":
            raise RuntimeError(CANARY)

    def on_end(self, span: ReadableSpan) -> None:
        del span
        if self.when == "end":
            raise RuntimeError(CANARY)


@pytest.mark.parametrize("when", ["start", "end"])
def test_a_fault_of_the_sdk_holds_up_no_message_and_makes_no_outcome_unknown(
    traced: House, spans: Collected, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    message = traced.submit()
    with spans.also(Faulty(when)):
        assert traced.deliver(message) == 1
        other = traced.submit("ben")
        assert traced.deliver(other) == 1
    assert traced.sent == [message.id, other.id]
    assert [traced.again(message).status for message in (message, other)] == ["sent", "sent"]
    assert caplog.text.count("tracing stopped in this process") == 1
    assert CANARY not in caplog.text


def test_without_an_sdk_what_a_caller_was_given_is_passed_on(traced: House) -> None:
    spans = traced.parts.spans
    assert isinstance(spans, Spans)
    spans._tracer = NoOpTracer()
    message = traced.submit()
    traced.deliver(message)
    assert stored(traced, message) is None
    assert traced.sent == [message.id]
    context = SpanContext(trace_id=1, span_id=2, is_remote=True)
    with use_span(NonRecordingSpan(context)):
        message = traced.submit()
    assert stored(traced, message) == written(context)
