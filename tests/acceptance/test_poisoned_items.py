"""Items on the broker that are no tasks: a worker deletes them and goes on.

P3 needs a worker. One item that ended each worker which took it stopped all delivery, until
somebody deleted it by hand.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import amqp
import pytest
import redis
from kombu import Connection
from kombu.message import Message

from dispatcher.celery.consumer import NoTask, headers_of
from tests.support.environment import (
    BROKER_DB,
    CHANNEL,
    SERVICES,
    Environment,
    broker_on,
    short_settings,
)
from tests.support.examples import a_third_of
from tests.support.rabbitmq import queue_of_own, url_at
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workplace import workplace

CANARY = "canary-of-an-item"
"""Stands in each item, and may stand in no log."""
DEEP = 100_000
FUTURE = "9998-12-31T00:00:00+00:00"
REJECTED = "deleted an item of the broker"


def good() -> dict[str, Any]:
    embed = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    return {
        "body": [[[str(uuid4())], CHANNEL, True], {}, embed],
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": "dispatcher.deliver",
            "id": str(uuid4()),
            "eta": None,
            "expires": None,
            "argsrepr": CANARY,
            "origin": CANARY,
        },
        "properties": {
            "correlation_id": CANARY,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "dispatcher.ledger"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid4()),
        },
    }


def packed(body: bytes) -> str:
    return base64.b64encode(body).decode()


def bytes_of(item: dict[str, Any]) -> bytes:
    body = item["body"]
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def with_body(body: bytes, content_type: str = "application/json") -> dict[str, Any]:
    return good() | {"body": body, "content-type": content_type}


def with_headers(**headers: Any) -> dict[str, Any]:
    item = good()
    item["headers"] |= headers
    return item


def with_arguments(*arguments: Any, **named: Any) -> dict[str, Any]:
    item = good()
    item["body"][0], item["body"][1] = list(arguments), named
    return item


def with_embed(embed: Any) -> dict[str, Any]:
    item = good()
    item["body"][2] = embed
    return item


def without_header(name: str) -> dict[str, Any]:
    item = good()
    del item["headers"][name]
    return item


ID = str(uuid4())

ITEMS: dict[str, dict[str, Any]] = {
    "body null": with_body(b"null"),
    "body object of protocol 1": with_body(json.dumps({"task": CANARY, "args": [CANARY]}).encode()),
    "body no JSON": with_body(CANARY.encode()),
    "body no UTF-8": with_body(b"\xff\xfe" + CANARY.encode()),
    "body deep": with_body(b"[" * DEEP + b"]" * DEEP),
    "body a type unknown": with_body(b'[[{"__type__": "x", "__value__": 1}], {}, {}]'),
    "body a type broken": with_body(b'[[{"__type__": "decimal", "__value__": "x"}], {}, {}]'),
    "body huge number": with_body(b"[[" + b"9" * 10_000 + b"], {}, {}]"),
    "body pickled": with_body(b"\x80\x04N.", "application/x-python-serialize"),
    "content encoding unknown": good() | {"content-encoding": CANARY},
    "no task": without_header("task"),
    "no id": without_header("id"),
    "task of Celery's": with_headers(task="celery.backend_cleanup"),
    "task a list": with_headers(task=["dispatcher.deliver"]),
    "id a number": with_headers(id=5),
    "id no UUID": with_headers(id=f"\x1b[2J{CANARY}"),
    "ETA no time": with_headers(eta=CANARY),
    "ETA at the end of time": with_headers(eta="9999-12-31T23:59:59-23:59"),
    "ETA far ahead": with_headers(eta=FUTURE),
    "expires no time": with_headers(expires=CANARY),
    "expires an object": with_headers(expires={}),
    "compression unknown": with_headers(compression=CANARY),
    "ids a text": with_arguments(ID),
    "ids null": with_arguments(None, CHANNEL, True),
    "ids none": with_arguments([], CHANNEL, True),
    "ids too many": with_arguments([ID] * 1_001, CHANNEL, True),
    "channel a list": with_arguments([ID], [CHANNEL], True),
    "first a text": with_arguments([ID], CHANNEL, CANARY),
    "too many arguments": with_arguments([ID], CHANNEL, True, CANARY),
    "named arguments": with_arguments([ID], **{CANARY: CANARY}),
    "a duty with arguments": with_headers(task="dispatcher.rescue"),
    "embed a list": with_embed([1]),
    "embed a callback": with_embed({"callbacks": [{"task": CANARY}]}),
    "embed a word of the request's": with_embed({"update": CANARY}),
}
"""What both brokers carry: an envelope that kombu can read."""


def replaced(**parts: Any) -> bytes:
    item = good()
    return json.dumps(item | {"body": packed(bytes_of(item))} | parts).encode()


def altered(**properties: Any) -> bytes:
    known = good()["properties"] | properties
    return replaced(properties={name: value for name, value in known.items() if value is not ...})


ON_REDIS: dict[str, bytes] = {
    "garbage": CANARY.encode(),
    "no UTF-8": b"\xff" + CANARY.encode(),
    "a list": b"[]",
    "deep": b"[" * DEEP + b"]" * DEEP,
    "huge number": b"9" * 10_000,
    "a type unknown": b'{"__type__": "x", "__value__": 1}',
    "a type broken": b'{"__type__": "uuid", "__value__": {"x": 1}}',
    "no base64": replaced(body="\u00e9" + CANARY),
    "body an object": replaced(body={"x": CANARY}),
    "headers huge": replaced(headers={"task": CANARY, "x": CANARY * 200_000}),
    "headers deep": b'{"headers": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "content type a list": replaced(**{"content-type": []}),
    "properties a list": replaced(properties=[]),
    "encoding of the body unknown": altered(body_encoding=CANARY),
    "no tag": altered(delivery_tag=...),
    "no delivery info": altered(delivery_info=...),
    "route a list": altered(delivery_info={"exchange": "", "routing_key": []}),
}
"""What somebody may push past kombu."""


class Past(datetime):
    """An instant that AMQP can write and Python cannot read."""

    def __new__(cls) -> Self:
        return super().__new__(cls, 9998, 1, 1, tzinfo=UTC)

    def utctimetuple(self) -> Any:
        return (2000, 1, 1, 2**40, 0, 0)


def past_kombu(item: dict[str, Any], **properties: Any) -> amqp.Message:
    plain = {
        "content_type": item["content-type"],
        "content_encoding": item["content-encoding"],
        "application_headers": item["headers"],
    }
    headers = {name: value for name, value in (plain | properties).items() if value is not ...}
    return amqp.Message(bytes_of(item), **headers)


ON_RABBITMQ: dict[str, amqp.Message] = {
    "no content type": past_kombu(good(), content_type=...),
    "content type no UTF-8": past_kombu(good(), content_type=b"\xff"),
    "headers null": past_kombu(good(), application_headers=...),
    "headers huge": past_kombu(with_headers(task=CANARY, x=CANARY * 5_000)),
    "a header no UTF-8": past_kombu(with_headers(id=b"\xff")),
    "a header's name no UTF-8": past_kombu(with_headers(**{"\udcff": 1}, id=5)),
    "a header a time past all": past_kombu(with_headers(x=Past())),
}
"""What somebody may publish past kombu."""


class Poisoned:
    """A running worker, and a way past the dispatcher into its queue.

    ``left`` counts what lies there or is held by the worker, as far as the broker tells.
    """

    def __init__(
        self, running: Environment, push: Callable[[Any], object], left: Callable[[], int]
    ):
        self.running = running
        self.left = left
        self._push = push

    def log(self) -> str:
        return (self.running.settings.data_dir / "worker.log").read_text(errors="replace")

    def survives(self, item: Any) -> None:
        """Fail unless the worker deletes the item, and the same one then delivers a message."""
        deliver_one(self.running)  # a worker that has just started may still be connecting
        worker, before = self.running.pid("worker"), len(self.log())
        self._push(item)
        deliver_one(self.running)
        wait_until(lambda: self.log()[before:].count(REJECTED) == 1, 60)
        wait_until(lambda: self.left() == 0, 60)
        assert self.running.pid("worker") == worker
        assert CANARY not in self.log()[before:]
        assert "Traceback" not in self.log()[before:]


def deliver_one(running: Environment) -> None:
    message = running.submit(f"somebody {uuid4()}")
    wait_until(lambda: str(message.id) in {line["id"] for line in running.ledger()}, 60)


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def started(stack: ExitStack, sqlite_template: Path) -> Callable[..., Environment]:
    def start(**settings: Any) -> Environment:
        folder = stack.enter_context(workplace())
        shutil.copy(sqlite_template, folder / "store.db")
        settings["database_url"] = f"sqlite:///{folder / 'store.db'}"
        # A visibility timeout that no test outlasts: what stays unacknowledged is not given back.
        values = short_settings(
            folder, quotas="100/second", redelivery_timeout=3_600, metrics_port=0, **settings
        )
        services = {"worker": SERVICES["worker"], "beat-1": SERVICES["beat-1"]}
        return stack.enter_context(Environment(folder, values, services))

    return start


@pytest.fixture(scope="module")
def redis_server_of_module(stack: ExitStack) -> RedisServer:
    return stack.enter_context(RedisServer())


@pytest.fixture(scope="module")
def over_redis(
    stack: ExitStack, redis_server_of_module: RedisServer, started: Callable[..., Environment]
) -> Poisoned:
    server = redis_server_of_module
    running = started(redis_url=server.url, broker_url=broker_on(server.url))
    tasks = stack.enter_context(redis.Redis(unix_socket_path=str(server.socket), db=BROKER_DB))
    queue = running.settings.queue_of(CHANNEL)

    def push(item: bytes | dict[str, Any]) -> None:
        if not isinstance(item, bytes):
            item = json.dumps(item | {"body": packed(bytes_of(item))}).encode()
        tasks.lpush(queue, item)

    def left() -> int:
        return int(tasks.llen(queue)) + int(tasks.hlen("unacked"))

    return Poisoned(running, push, left)


@pytest.fixture(scope="module")
def over_rabbitmq(
    stack: ExitStack, redis_server_of_module: RedisServer, started: Callable[..., Environment]
) -> Poisoned:
    name = stack.enter_context(queue_of_own())
    running = started(
        redis_url=redis_server_of_module.url, broker_url=url_at(), queue=name, namespace="rabbit"
    )
    channel: Any = stack.enter_context(Connection(url_at())).channel()
    queue = running.settings.queue_of(CHANNEL)

    def push(item: amqp.Message | dict[str, Any]) -> None:
        message = item if isinstance(item, amqp.Message) else past_kombu(item)
        channel.basic_publish(message, routing_key=queue)

    def left() -> int:
        return int(channel.queue_declare(queue, passive=True).message_count)

    return Poisoned(running, push, left)


@pytest.mark.parametrize("item", ITEMS)
def test_no_item_that_differs_from_a_task_is_taken_for_one(item: str) -> None:
    broken = ITEMS[item]
    message = Message(
        body=bytes_of(broken),  # type: ignore[arg-type]  # as a transport gives it
        content_type=broken["content-type"],
        content_encoding=broken["content-encoding"],
        headers=broken["headers"],
        accept=["json"],
    )
    with pytest.raises(NoTask) as refused:
        headers_of(message, datetime.now(UTC))
    assert CANARY not in str(refused.value)


ENDED_WORKERS = ["body deep", "body null", "task a list", "ETA at the end of time", "embed a list"]


@pytest.mark.parametrize("item", a_third_of([*ENDED_WORKERS, *ON_REDIS]))
def test_a_worker_on_redis_deletes_it_and_goes_on(over_redis: Poisoned, item: str) -> None:
    over_redis.survives((ITEMS | ON_REDIS)[item])


@pytest.mark.parametrize("item", a_third_of([*ENDED_WORKERS, *ON_RABBITMQ]))
def test_a_worker_on_rabbitmq_deletes_it_and_goes_on(over_rabbitmq: Poisoned, item: str) -> None:
    over_rabbitmq.survives((ITEMS | ON_RABBITMQ)[item])


@pytest.mark.parametrize("broker", ["over_redis", "over_rabbitmq"])
def test_it_is_counted_and_never_given_back(request: pytest.FixtureRequest, broker: str) -> None:
    poisoned: Poisoned = request.getfixturevalue(broker)
    running = poisoned.running

    def counted() -> int:
        return running.dispatcher.status().items_rejected or 0

    def measured() -> float:
        match = re.search(r"metrics at (\S+)", poisoned.log())
        assert match is not None
        with urllib.request.urlopen(match[1], timeout=10) as answer:  # noqa: S310 - on loopback
            text = answer.read().decode()
        return sum(
            map(float, re.findall(r"^dispatcher_items_rejected_total (\S+)", text, re.MULTILINE))
        )

    poisoned.survives(with_body(b"null"))
    told = poisoned.log().count(REJECTED)
    wait_until(lambda: counted() == measured() == told)
    running.stop("worker")
    assert poisoned.left() == 0
    running.up("worker")
