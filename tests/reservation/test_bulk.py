"""Many messages are booked in one pipeline; lines break, replies are lost, scripts forgotten."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from dispatcher.message import new_id
from dispatcher.quota import CalendarQuota, Quota
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation import Answer, BookingRequest, Slot, Terms, shards
from dispatcher.reservation.booking import Leg
from dispatcher.reservation.shards import Shards
from dispatcher.reservation.terms import Rules
from dispatcher.scope import OWN_SCOPE, Scope
from dispatcher.times.quiet_hours import Hours
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


def test_a_server_that_forgot_the_script_is_given_it_again(through: Reserving) -> None:
    windows, wanted = through.windows, requests()
    windows.book(requests(NOON + 86_400_000))
    through.client.script_flush()
    assert times(windows.book(wanted)) == [NOON] * len(PEOPLE)


def test_no_connection_is_lost_whatever_happens_to_the_replies(
    through: Reserving, proxy: Proxy
) -> None:
    windows = through.windows
    windows.book(requests())
    before = proxy.accepted
    for _ in range(10):
        windows.book(requests())
    assert proxy.accepted == before
    for _ in range(10):
        through.client.script_flush()
        windows.book(requests())
    pool = cast(Any, through.client.connection_pool)
    assert not pool._in_use_connections


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


def test_arguments_that_depend_on_a_time_are_not_cached() -> None:
    """A batch may have hundreds of different periods, and none may ever be asked for again."""
    rules = Rules({OWN_SCOPE: [CalendarQuota(10, "day", None)], "rolling": [Quota(7, 61_003)]})
    asked = Shards(cast(Any, None), rules, under_way_ms=60_000)
    rolling = Terms((Scope("rolling", "ada", "ada"),))
    before = shards._encoded_once.cache_info().misses
    for each in (Terms.own("ada"), rolling._replace(quiet=Hours.parse("22:00-08:00"))):
        asked._reserve_call([_request(rolling), _request(each)])
    assert shards._encoded_once.cache_info().misses == before
    asked._reserve_call([_request(rolling)])
    assert shards._encoded_once.cache_info().misses == before + 1


def _request(terms: Terms) -> tuple[Leg, BookingRequest]:
    leg = Leg(ShardKeys("test", 0), terms, terms.scopes)
    return (leg, BookingRequest(new_id(), terms, 10**12, 10**12))
