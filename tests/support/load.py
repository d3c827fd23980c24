"""Callers who never stop: they keep every quota full, and note what they were told."""

from __future__ import annotations

import random
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Self

from dispatcher import Dispatcher, Settings
from dispatcher.errors import (
    DispatcherError,
    InvalidSendTime,
    QuotaExceeded,
    ReservationsUnavailable,
)
from dispatcher.message import Message
from tests.support.environment import CHANNEL, Environment
from tests.support.waiting import wait_until

_PACE_SECONDS = 0.005
_AHEAD_SECONDS = 4.0
_RECIPIENTS = 40


class Load:
    """Submits from one thread for times up to some seconds away, until the exit.

    Every fourth submit asks to be shifted to the next slot. Where there are ``tenants``, each
    submit names one as a scope.
    """

    def __init__(self, settings: Settings, *, tenants: int = 0, seed: int = 1) -> None:
        self.accepted: list[Message] = []
        self.refused: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._settings = settings
        self._tenants = tenants
        self._random = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._leaving.set()
        self._thread.join(60)

    def unavailable(self) -> int:
        """How many submits were refused because the windows could not be trusted."""
        return self.refused[ReservationsUnavailable.__name__]

    def _run(self) -> None:
        with Dispatcher(self._settings) as dispatcher:
            while not self._leaving.wait(_PACE_SECONDS):
                try:
                    self._submit(dispatcher)
                except (QuotaExceeded, ReservationsUnavailable, InvalidSendTime) as error:
                    # A time is past where this machine took longer than the message had.
                    self.refused[type(error).__name__] += 1
                except (DispatcherError, Exception) as error:  # noqa: BLE001 - the test looks at them
                    self.failures.append(error)

    def _submit(self, dispatcher: Dispatcher) -> None:
        now = datetime.now(UTC)
        shift = self._random.random() < 0.25
        tenants = self._tenants
        scopes = {"tenant": f"tenant-{self._random.randrange(tenants)}"} if tenants else None
        message = dispatcher.submit(
            channel=CHANNEL,
            recipient=f"load-{self._random.randrange(_RECIPIENTS)}",
            body={},
            send_at=now + timedelta(seconds=self._random.uniform(0.1, _AHEAD_SECONDS)),
            on_conflict="shift" if shift else "reject",
            scopes=scopes,
            latest=now + timedelta(seconds=_AHEAD_SECONDS) if shift else None,
        )
        self.accepted.append(message)


def flow(running: Environment, *loads: Load) -> None:
    """Wait until messages are accepted and sent again."""

    def accepted() -> int:
        return sum(len(load.accepted) for load in loads)

    before, lines = accepted(), len(running.ledger())
    wait_until(lambda: accepted() > before + 60)
    wait_until(lambda: len(running.ledger()) > lines + 20)
