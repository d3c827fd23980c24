"""``kill -9`` of a worker in the midst of a send."""

from __future__ import annotations

import pytest

from dispatcher.message import Message, Status
from tests.support.environment import Environment, Maker
from tests.support.waiting import wait_until


def sending_now(running: Environment) -> bool:
    lines = running.ledger()
    begun = {(line.id, line.attempt) for line in lines if line.event == "begin"}
    ended = {(line.id, line.attempt) for line in lines if line.event == "end"}
    return len(begun - ended) > 0


def cut_short(running: Environment) -> int:
    lines = running.ledger()
    return sum(1 if line.event == "begin" else -1 for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_send_of_a_killed_worker_is_held_where_on_unknown_says_so(environment: Maker) -> None:
    running = environment()
    dispatcher = running.dispatcher

    def begun(message: Message) -> int:
        return sum(line.id == message.id and line.event == "begin" for line in running.ledger())

    def has(message: Message, status: Status) -> bool:
        return dispatcher.get(message.id).status is status

    careful = running.submit("careful", on_unknown="hold", body={"seconds": 0.5})
    wait_until(lambda: sending_now(running), every=0.001)
    running.kill("worker")
    assert cut_short(running) == 1, "the kill hit no send"
    wait_until(lambda: has(careful, Status.HELD))
    after = [running.submit(f"person-{number}") for number in range(10)]
    wait_until(lambda: all(has(each, Status.SENT) for each in after))
    assert begun(careful) == 1, "nothing is sent twice"
    assert [each.id for each in dispatcher.held()] == [careful.id]
    assert not running.false_windows()

    dispatcher.release(careful.id)
    wait_until(lambda: has(careful, Status.SENT))
    assert begun(careful) == 2
    assert dispatcher.held() == []
    running.check([careful, *after])
