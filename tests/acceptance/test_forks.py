"""A dispatcher used before a fork serves parent and children as if each had made its own."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from dispatcher import Dispatcher, Settings
from dispatcher.celery.queue import Ticket
from dispatcher.client import app_of, for_pages
from dispatcher.limiters import parse
from dispatcher.message import new_id
from dispatcher.web.bounds import Threads
from tests.support.examples import examples
from tests.support.house import BODY, BROKER_DB, House
from tests.support.servers import RedisServer

CHILDREN, SUBMITS = 4, examples(150)
HOUR = timedelta(hours=1)
BUSY = {"sqlite": "SELECT 1", "postgresql": "SELECT pg_sleep(0.5)", "mysql": "SELECT SLEEP(0.5)"}
"""Statements that keep a connection of the parent waiting for its answer.

SQLite runs in the process: a fork in the middle of a statement leaves its mutexes locked in the
child, whoever uses it, so the statement is over then.
"""


def in_children(work: Callable[[int], Any]) -> list[Any]:
    pipes = []
    for number in range(CHILDREN):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                os.write(writer, json.dumps(work(number)).encode())
                code = 0
            except BaseException:  # noqa: BLE001 - the test is the parent's
                os.write(writer, json.dumps(traceback.format_exc()[-4000:]).encode())
            finally:
                os._exit(code)
        os.close(writer)
        pipes.append((child, reader))
    answers = []
    for child, reader in pipes:
        with os.fdopen(reader, "rb") as pipe:
            answers.append(json.loads(pipe.read()))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, answers[-1]
    return answers


def submits(dispatcher: Dispatcher, who: str, count: int = 10) -> dict[str, str]:
    made = {}
    for number in range(count):
        recipient = f"{who}-{number}"
        message = dispatcher.submit(
            channel="memory",
            recipient=recipient,
            body=BODY,
            send_in=HOUR,
            idempotency_key=recipient,
        )
        assert message.recipient == recipient
        made[recipient] = str(message.id)
    message = asyncio.run(
        dispatcher.asubmit(channel="memory", recipient=who, body=BODY, send_in=HOUR)
    )
    return made | {who: str(message.id)}


@pytest.mark.every_database
def test_children_and_parent_submit_as_processes_of_their_own(house: House) -> None:
    dispatcher = house.dispatcher
    first = submits(dispatcher, "before")
    limiter = parse("10/hour").on(house.redis, prefix="forks")
    assert limiter.acquire("ada")
    database = house.parts.database
    begun = threading.Event()

    def be_busy() -> None:
        def work(connection: Any) -> None:
            begun.set()
            connection.execute(text(BUSY[database.engine.dialect.name])).all()

        database.run(work)

    with house.parts.database.engine.connect():  # one more is out, and two threads hold locks
        busy = threading.Thread(target=be_busy)
        busy.start()
        assert begun.wait(10)
        if database.engine.dialect.name == "sqlite":
            busy.join()
        with dispatcher._state_lock, vars(house.parts)["_building"]:
            answers = in_children(
                lambda child: (
                    submits(dispatcher, f"child {child}", SUBMITS),
                    sum(bool(limiter.acquire("ada")) for _ in range(5)),
                )
            )
        busy.join()
    made = first | submits(dispatcher, "after")
    for of_child, _ in answers:
        made |= of_child
    assert sum(taken for _, taken in answers) == 9
    assert len(made) == len(set(made.values())) == CHILDREN * (SUBMITS + 1) + 2 * 11
    stored = {message.recipient: str(message.id) for message in dispatcher.select()}
    assert stored == made
    assert dispatcher.verify_windows().equal


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_each_process_has_connections_of_its_own_to_the_broker(
    broker: str, request: pytest.FixtureRequest, redis_server: RedisServer, house: House
) -> None:
    url = f"redis+socket://{redis_server.socket}?virtual_host={BROKER_DB}"
    if broker == "rabbitmq":
        url = request.getfixturevalue("rabbitmq")
    settings = Settings.load(
        **{
            name: getattr(house.settings, name)
            for name in ("redis_url", "database_url", "namespace")
        },
        shards=house.settings.shards,
        broker_url=url,
        queue=f"forks-{os.getpid()}",
        channels={"memory": {"transport": "memory"}},
    )
    with Dispatcher(settings, clock=house.clock) as dispatcher:

        def enqueue(_: int = 0) -> None:
            for _ in range(20):
                ticket = Ticket(new_id(), "memory", house.clock.now() + HOUR)
                dispatcher._app.queue.enqueue([ticket])

        def depth() -> int:
            with dispatcher._app.publisher.connection_for_read() as connection:
                channel: Any = connection.default_channel
                name = settings.queue_of("memory")
                return int(channel.queue_declare(name, passive=True).message_count)

        try:
            enqueue()
            in_children(enqueue)
            enqueue()
            assert depth() == 20 * (CHILDREN + 2)
        finally:
            with dispatcher._app.publisher.connection_for_read() as connection:
                channel: Any = connection.default_channel
                channel.queue_delete(settings.queue_of("memory"))


def test_threads_of_the_api_and_parts_of_the_page_are_the_child_s_own(house: House) -> None:
    """Of a program that has served before it forks, or has mounted the API in its parent."""
    closed = Dispatcher(house.settings)
    of_closed = Threads(closed, 2, most_of_one=1)
    closed.close()
    threads = Threads(house.dispatcher, 2, most_of_one=1)

    def serve(_: int) -> list[Any]:
        answer = asyncio.run(asyncio.wait_for(threads.run_for("ada", os.getpid), 10))
        reader, own = for_pages(house.dispatcher), app_of(house.dispatcher)
        list(reader.list(limit=1))
        return [
            answer == os.getpid(), len(house.dispatcher._lent),
            app_of(reader).database is own.pages.database, app_of(reader).journal is own.journal,
        ]  # fmt: skip

    before = serve(0)
    assert in_children(serve) == [before] * CHILDREN
    assert before == [True, 1, True, True]
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(of_closed.run_for("ada", os.getpid))
