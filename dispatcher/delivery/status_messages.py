"""Tell callers who asked what became of their messages, by messages that the house delivers."""

from __future__ import annotations

from dispatcher.store import Untold
from dispatcher.telemetry.journal import Journal, Transition

_BATCH = 1_000
_MOST_BATCHES = 20


class StatusMessages:
    """The duty ``tell`` of the sweep. Any number may run side by side.

    What is to be told is read from how messages stand, never remembered: a status that lasted
    shorter than the time between two turns may be passed over, the one that stays is told. Without
    ``untold``, where the settings name no channel for it, nobody is told.
    """

    def __init__(self, *, untold: Untold | None, channel: str, journal: Journal) -> None:
        self._untold = untold
        self._channel = channel
        self._journal = journal

    def tell(self) -> int:
        """Make status messages, due at once, of what is yet to be told; return how many.

        The sweep hands them over like any others. Raises StoreUnavailable.
        """
        total = 0
        for _ in range(_MOST_BATCHES):
            made = [] if self._untold is None else self._untold.tell(at_most=_BATCH)
            for message_id in made:
                self._journal.tell_of(Transition.SCHEDULED, message_id, self._channel)
            total += len(made)
            if len(made) < _BATCH:
                break
        return total
