"""What scripts are told, in the form in which it is sent."""

from __future__ import annotations

import subprocess
import sys

SIGNALLED = """
import signal
import hiredis
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import ShardKeys
from dispatcher.redis.scripts import _command
from dispatcher.reservation.arguments import Arguments
from dispatcher.reservation.booking import Leg, LegRequest
from dispatcher.reservation.terms import Rules, Terms
from dispatcher.scope import PLAIN

def stop(*_):
    raise TimeoutError

terms = Terms.plain("ada")
leg = Leg(ShardKeys("test", 0), terms, terms.scopes)
asked = [LegRequest(leg, new_id(), at_ms, at_ms + 1) for at_ms in range(10**12, 10**12 + 5_000)]
names, words = Arguments(Rules({PLAIN: [Quota(1, 60_000)]}), 60_000).reserve(asked)
signal.signal(signal.SIGALRM, stop)
for _ in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True:
            hiredis.pack_command(tuple(_command("sha", names, words)))
    except TimeoutError:
        pass
"""


def test_a_signal_that_raises_while_words_are_packed_does_not_end_the_process() -> None:
    child = subprocess.run([sys.executable, "-c", SIGNALLED], check=False, timeout=60)
    assert child.returncode == 0
