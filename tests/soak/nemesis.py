"""The nemesis: a schedule of faults from a seed, and the hand that carries it out."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.soak.faults import BY_NAME, FAULTS, Done, in_cluster
from tests.soak.stage import Stage
from tests.support.history import now_us

FAULTS_A_MINUTE = 215.0
ROUND_SECONDS, CALM_SECONDS = 8.0, 1.5
"""Each round hits some places and ends with a calm: where all suffer always, nothing happens."""
PLACES = ("windows", "broker", "store", "worker", "beat", "client")
_AT_ONCE = 10
_PATIENCE_SECONDS = 1.0
"""How long a fault waits for another one to leave its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault of a schedule: when (seconds from the start), what, whom, and for how long."""

    at: float
    fault: str
    target: str
    seconds: float
    salt: int


def schedule(
    seed: int,
    seconds: float,
    *,
    only: Sequence[str] = (),
    clustered: bool = False,
) -> list[Strike]:
    """Return the faults of a seed, in order. The same seed gives the same schedule."""
    chance = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
    pairs = [
        (fault, target, fault.share / len(fault.targets))
        for fault in (in_cluster() if clustered else FAULTS)
        for target in fault.targets
        if not only or fault.name in only
    ]
    active = ROUND_SECONDS - CALM_SECONDS
    rate = FAULTS_A_MINUTE / 60 * ROUND_SECONDS / active
    strikes: list[Strike] = []
    start = 0.0
    while start < seconds:
        places = PLACES if only else chance.sample(PLACES, chance.randint(2, 4))
        hit = [pair for pair in pairs if pair[1].rpartition("/")[2].startswith(tuple(places))]
        at = chance.expovariate(rate)
        while at < active and hit:
            ((fault, target, _),) = chance.choices(hit, [share for *_, share in hit])
            lasts = chance.uniform(*fault.lasts)
            salt = chance.randrange(1 << 32)
            if start + at < seconds:
                strikes.append(
                    Strike(at=start + at, fault=fault.name, target=target, seconds=lasts, salt=salt)
                )
            at += chance.expovariate(rate)
        start += ROUND_SECONDS
    return strikes


class Nemesis:
    """Carries out a schedule; every target suffers one fault at a time."""

    def __init__(self, stage: Stage) -> None:
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self._stage = stage
        self._busy: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._leaving = threading.Event()

    def run(self, strikes: Sequence[Strike]) -> None:
        start = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as hands:
            running = []
            for strike in strikes:
                self._leaving.wait(max(0.0, start + strike.at - time.monotonic()))
                running.append(hands.submit(self._strike, strike))
        for future in running:
            future.result()

    def _strike(self, strike: Strike) -> None:
        lock = self._busy[strike.target]
        if not lock.acquire(timeout=_PATIENCE_SECONDS):
            self.missed[strike.fault] += 1
            return
        try:
            self._do(strike)
        finally:
            lock.release()

    def _do(self, strike: Strike) -> None:
        chance = random.Random(strike.salt)  # noqa: S311 - a repeatable choice, no secret
        at = now_us()
        done: Done | None = BY_NAME[strike.fault].act(self._stage, strike.target, chance)
        if done is None:
            self.missed[strike.fault] += 1
            return
        self._leaving.wait(strike.seconds)
        done.heal()
        self.done[strike.fault] += 1
        self._stage.recorder.write(
            "fault",
            at=at,
            until=now_us(),
            fault=strike.fault,
            target=strike.target,
            pids=done.pids,
            done=True,
        )
