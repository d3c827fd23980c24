"""Plan: what submit many would answer. Books and stores nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dispatcher.message import Draft, Message, Plan, Rejection
from dispatcher.reservation import Answered, Copies
from dispatcher.settings import Settings
from dispatcher.store import BulkMessages, Suppressions
from dispatcher.submission.cases import (
    Case,
    OnProgress,
    Tally,
    batches,
    judge,
    renewed,
    requests_of,
    settle,
    undecided,
)
from dispatcher.submission.submission import Submission
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms


class Planning:
    """The use case of those who want to know before they submit."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        copies: Callable[[], Copies],
        store: BulkMessages,
        suppressions: Suppressions,
        submission: Submission,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._copies = copies
        self._store = store
        self._suppressions = suppressions
        self._submission = submission

    def plan(
        self, drafts: Iterable[Draft], *, total: int | None, progress: OnProgress | None
    ) -> Plan:
        """Return what would come of these drafts, which are read a batch at a time.

        Raises ReservationsUnavailable and StoreUnavailable.
        """
        tally = Tally(total, progress)
        rejections: list[Rejection] = []
        with self._copies() as copies:
            for cases in batches(drafts):
                self._decide(cases, copies)
                while again := renewed(cases):
                    self._decide(again, copies)
                rejections += [each for each in tally.add(cases) if isinstance(each, Rejection)]
        return Plan(
            accepted=tally.accepted,
            known=tally.known,
            shifted=tally.shifted,
            first_send_at=tally.first_send_at,
            last_send_at=tally.last_send_at,
            rejections=tuple(rejections),
        )

    def _decide(self, cases: list[Case], copies: Copies) -> None:
        now = self._clock.now()
        judge(
            cases,
            submission=self._submission,
            now=now,
            known=lambda keyed: self._known(keyed, copies),
            unwanted=self._suppressions.among,
        )
        waiting = undecided(cases)
        booked = settle(waiting, copies.reserve(requests_of(waiting)))
        created_at = from_ms(to_ms(now))
        for case in booked:
            message_id, at_ms, _ = case.place
            case.result = self._submission.message(
                case.valid_draft, message_id, from_ms(at_ms), created_at
            )
        copies.remember(_answered(booked))

    def _known(
        self, keyed: Mapping[str, Case], copies: Copies
    ) -> Mapping[str, tuple[Message, str]]:
        """Return what is stored under these keys, or what earlier batches would have stored."""
        known = self._store.with_keys(list(keyed))
        for key, answered in copies.recall(list(keyed)).items():
            valid = keyed[key].valid
            if key not in known and valid is not None:
                message = self._submission.message(valid, answered.message_id, valid.send_at)
                known[key] = message, answered.fingerprint
        return known


def _answered(booked: Iterable[Case]) -> Iterable[Answered]:
    for case in booked:
        valid = case.valid_draft
        if valid.idempotency_key is not None and valid.fingerprint is not None:
            yield Answered(valid.idempotency_key, case.place.message_id, valid.fingerprint)
