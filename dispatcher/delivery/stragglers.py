"""Leads what is left of groups whose last hand-overs take their time."""

from __future__ import annotations

import logging
import threading

from dispatcher.delivery.round import Round

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 0.05


class Stragglers:
    """One thread for all of a process; it is there while there is something to lead.

    Each round here has a hand-over under way and nothing left to begin, so there are never more
    than the process has senders.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[Round] = []
        self._is_led = False
        self._none = threading.Event()
        self._none.set()
        self._looks = threading.Event()  # never set

    def take(self, straggler: Round) -> bool:
        """Lead this round to its end; False where the system gives no thread for it."""
        with self._lock:
            if not self._is_led:
                lead = threading.Thread(target=self._lead, name="lead stragglers", daemon=True)
                try:
                    lead.start()
                except RuntimeError:
                    return False
                self._is_led = True
            self._left.append(straggler)
            self._none.clear()
        return True

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left; tell whether that is so."""
        return self._none.wait(timeout)

    def _lead(self) -> None:
        while True:
            with self._lock:
                rounds = list(self._left)
                if not rounds:
                    self._is_led = False
                    self._none.set()
                    return
            over = [each for each in rounds if not _goes_on(each)]
            with self._lock:
                self._left = [each for each in self._left if each not in over]
            if not over:
                self._looks.wait(_LOOK_EVERY_SECONDS)


def _goes_on(straggler: Round) -> bool:
    try:
        if straggler.step():
            return True
        straggler.check()
    except BaseException as error:  # noqa: BLE001 - no other round may end with it
        told = type(error).__name__  # its text may quote a body
        log.error("a group was broken off (%s)", told)  # noqa: TRY400
    return False
