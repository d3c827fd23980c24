"""A server is killed in a submit with an ``Idempotency-Key`` or in a change, at each point.

The call is repeated on another server: it has one effect, and one answer from then on. Each server
is a process of its own that serves on a socket: it is forked, for each call, from one that has
built the API and opened nothing.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi.testclient import TestClient

from dispatcher import Dispatcher, Settings
from dispatcher.client import app_of
from dispatcher.faults import arm
from dispatcher.times.clock import SystemClock
from dispatcher.web import api
from dispatcher.web.access import add_key
from tests.support.house import House
from tests.support.processes import forking
from tests.web.test_idempotency import OF_SUBMIT, key, replayed
from tests.web.test_messages import new

AT, LATER = "2099-01-01T00:00:00Z", "2099-01-01T02:00:00Z"
"""Beyond the horizon: the clock of a server that is killed is the machine's."""
RATE = "100000/second"
_SECONDS = 60

Call = Callable[[httpx2.Client], httpx2.Response]

CASES: list[tuple[str, str]] = [
    *(("submit", point) for point in OF_SUBMIT),
    ("cancel", "cancel.after_rows"),
    # Not after_hold: until reconcile ends the hold, the new time is refused.
    ("reschedule", "reschedule.after_row"),
    ("reschedule", "reschedule.after_release"),
]
"""A call, and where its server dies."""

ROUNDS = [
    pytest.param(range(len(CASES)), id="each case"),
    *(
        pytest.param(range(first, first + 100), id=f"from {first}", marks=pytest.mark.long)
        for first in range(0, 300, 100)
    ),
]


@contextmanager
def servers(settings: Settings) -> Iterator[tuple[str, Callable[[str], None], Callable[[], int]]]:
    """Yield an address, what starts a server there that dies at a point, and its exit code."""
    ours, theirs = forking().Pipe()
    process = forking().Process(target=_serve, args=(theirs, settings), daemon=True)
    process.start()

    def ended() -> int:
        assert ours.poll(_SECONDS), "the server was not killed"
        code: int = ours.recv()
        return code

    try:
        yield f"http://127.0.0.1:{ended()}", ours.send, ended
    finally:
        process.kill()
        process.join(_SECONDS)


def _serve(pipe: Connection, settings: Settings) -> None:
    with (
        Dispatcher(settings) as dispatcher,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        application, parts = api(dispatcher, rate=RATE), app_of(dispatcher)
        for name in ("submitter", "own_transaction", "changes"):
            getattr(parts, name)
        gc.freeze()
        pipe.send(listener.getsockname()[1])
        while True:
            point = pipe.recv()
            child = os.fork()
            if not child:
                signal.alarm(_SECONDS)
                arm(f"{point}=kill")
                config = uvicorn.Config(application, log_config=None, lifespan="off")
                uvicorn.Server(config).run([listener])
                os._exit(0)
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_call_whose_server_is_killed_has_one_effect_and_one_answer(
    build: Callable[..., House], rounds: range
) -> None:
    house = build(clock=SystemClock(), max_horizon="40000 days")
    _, token = add_key(house.parts.api_keys, "shop")
    headers = {"Authorization": f"Bearer {token}"}
    healthy = TestClient(api(house.dispatcher, rate=RATE), headers=headers)
    with servers(house.settings) as (address, serve, ended):
        for number in rounds:
            name, point = CASES[number % len(CASES)]
            text = f"round {number}"
            call, after = _prepared(healthy, name, text)
            serve(point)
            with (
                httpx2.Client(base_url=address, headers=headers, timeout=_SECONDS) as client,
                pytest.raises(httpx2.TransportError),
            ):
                call(client)
            assert ended() == -signal.SIGKILL, f"{name} did not come to {point}"
            again, repeated = call(healthy), call(healthy)
            success = 201 if name == "submit" else 200
            assert again.status_code == repeated.status_code == success, (point, again.text)
            assert again.content == repeated.content
            assert replayed(repeated) == (name == "submit")
            assert after.items() <= again.json().items()
            stored = house.dispatcher.get(again.json()["id"])
            assert (stored.recipient, stored.status) == (text, after["status"])
            if name == "submit":  # a change may leave it to reconcile to end what it reserved
                assert len(house.members(text)) == 1, point
    assert len(house.rows()) == len(rounds)


def _prepared(healthy: TestClient, name: str, text: str) -> tuple[Call, dict[str, Any]]:
    """Return a call, and what its answer says after it."""
    asked, scheduled = new(text, AT), {"status": "scheduled"}
    if name == "submit":
        return (lambda to: to.post("/v1/messages", json=asked, headers=key(text))), scheduled
    path = healthy.post("/v1/messages", json=asked).headers["Location"]
    if name == "cancel":
        return (lambda to: to.delete(path)), {"status": "cancelled"}
    moved = scheduled | {"send_at": LATER}
    return (lambda to: to.post(f"{path}/reschedule", json={"send_at": LATER})), moved
