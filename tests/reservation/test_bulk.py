"""Many messages are booked in one pipeline; lines break, replies are lost, scripts forgotten."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from dispatcher.message import new_id
from dispatcher.reservation import Answer, BookingRequest, Slot, Terms
from dispatcher.times.send_time import to_ms
from tests.support.proxy import Proxy
from tests.support.reserving import Reserving

NOON = to_ms(datetime(2100, 1, 1, 12, tzinfo=UTC))
PEOPLE = [f"to {number}" for number in range(40)]


def requests(at_ms: int = NOON) -> list[BookingRequest]:
    return [BookingRequest(new_id(), Terms.own(name), at_ms, at_ms) for name in PEOPLE]


def times(answers: Sequence[Answer]) -> list[int]:
    return [answer.at_ms for answer in answers if isinstance(answer, Slot)]


def test_a_lost_reply_is_asked_for_again(through: Reserving, proxy: Proxy) -> None:
    windows, wanted = through.windows, requests()
    windows.book(requests(NOON + 86_400_000))  # the line stands and knows the script
    proxy.drop_reply(wanted[17].message_id.bytes)
    assert times(windows.book(wanted)) == [NOON] * len(PEOPLE)
    assert proxy.dropped == 1


# What scripts are told, in the form in which it is sent.


SIGNALLED = """
import signal
import hiredis
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import ShardKeys
from dispatcher.redis.scripts import _command
from dispatcher.reservation.shards import Shards
from dispatcher.reservation.booking import BookingRequest, Leg
from dispatcher.reservation.terms import Rules, Terms
from dispatcher.scope import OWN_SCOPE

def stop(*_):
    raise TimeoutError

terms = Terms.own("ada")
leg = Leg(ShardKeys("test", 0), terms, terms.scopes)
asked = [(leg, BookingRequest(new_id(), terms, 10**12, 10**12 + 1))] * 5_000
rules = Rules({OWN_SCOPE: [Quota(1, 60_000)]})
names, words = Shards(None, rules, under_way_ms=60_000)._reserve_call(asked)
signal.signal(signal.SIGALRM, stop)
for _ in range(50):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True:
            hiredis.pack_command(tuple(_command("EVALSHA", "sha", names, words)))
    except TimeoutError:
        pass
"""


def test_a_signal_that_raises_while_words_are_packed_does_not_end_the_process() -> None:
    child = subprocess.run([sys.executable, "-c", SIGNALLED], check=False, timeout=60)
    assert child.returncode == 0
