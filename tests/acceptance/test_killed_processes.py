"""``kill -9`` of workers and beats: what they held is delivered all the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.message import Message, Outcome, Status
from tests.support.environment import Environment, Maker
from tests.support.load import Load
from tests.support.waiting import wait_until


def sending_now(running: Environment) -> bool:
    lines = running.ledger()
    begun = {(line.id, line.attempt) for line in lines if line.event == "begin"}
    ended = {(line.id, line.attempt) for line in lines if line.event == "end"}
    return len(begun - ended) > 0


def wait_for_an_end(running: Environment) -> None:
    def ends() -> int:
        return sum(line.event == "end" for line in running.ledger())

    before = ends()
    wait_until(lambda: ends() > before)


def cut_short(running: Environment) -> int:
    lines = running.ledger()
    return sum(1 if line.event == "begin" else -1 for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_send_of_a_killed_worker_is_rescued_and_sent(environment: Maker) -> None:
    running = environment()
    with Load(running.settings, recipients=20, ahead=2.0, seconds=0.3) as load:
        for kill in range(1, 3):
            wait_until(lambda: sending_now(running), every=0.001)
            running.kill("worker")
            assert cut_short(running) >= kill, "the kill hit no send"
            wait_for_an_end(running)
    running.wait_until_ended()
    assert load.failures == []
    running.check(load.accepted)
    unknown = [each for each in running.stored() if Outcome.UNKNOWN in each.outcomes]
    assert len(unknown) >= 2


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


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_while_no_beat_lives_nothing_is_lost_and_then_all_is_sent(environment: Maker) -> None:
    running = environment()
    beyond = running.settings.horizon.total_seconds() + 2

    running.down("beat-1", "beat-2")
    near = [running.submit(f"person-{number}", 1) for number in range(20)]
    far = [running.submit(f"person-{number}", beyond) for number in range(20, 40)]

    def all_sent(messages: list[Message]) -> bool:
        sent = {each.id for each in running.stored() if each.status is Status.SENT}
        return all(message.id in sent for message in messages)

    # What was near at the submit needs no beat, unless it is put back; what was far waits for one.
    wait_until(running.ledger)
    wait_until(lambda: datetime.now(UTC) > far[-1].send_at + timedelta(seconds=1))
    assert not any(line.id == message.id for line in running.ledger() for message in far)
    running.up("beat-1", "beat-2")
    wait_until(lambda: all_sent(near + far))
    running.check(near + far)
