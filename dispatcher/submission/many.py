"""Submit and plan many drafts, a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from dispatcher.errors import IdempotencyConflict, QuotaExceeded
from dispatcher.message import Draft, Plan, Rejection, without_collector
from dispatcher.reservation import is_planned_id
from dispatcher.submission.batch import (
    MINUTE_MS,
    Batch,
    OnProgress,
    Result,
    Tally,
    batch_of,
    batches,
)
from dispatcher.submission.sinks import DryRun, OwnTransaction, Sink
from dispatcher.submission.submitter import Submitter
from dispatcher.telemetry.journal import Journal
from dispatcher.times.send_time import from_ms

if TYPE_CHECKING:
    from dispatcher.telemetry.spans import Answers, Spans


class Batches:
    """Sends drafts through the pipeline in batches."""

    def __init__(
        self,
        *,
        submitter: Submitter,
        own: OwnTransaction,
        dry_run: Callable[[], DryRun],
        journal: Journal,
        spans: Spans | None = None,
    ) -> None:
        self._submitter = submitter
        self._own = own
        self._dry_run = dry_run
        self._journal = journal
        self._spans = spans

    def submit_each(
        self, drafts: Iterable[Draft], *, total: int | None, progress: OnProgress | None
    ) -> Iterator[Result]:
        """Yield the result of each draft, in order, a batch at a time.

        Raises ReservationsUnavailable and StoreUnavailable: what was yielded is accepted or
        refused, of the batch under way some may be stored. Run again with the same idempotency
        keys, it ends as if run once.
        """
        return chain.from_iterable(self._traced(self._each(drafts, Tally(total, progress))))

    def submit_all(self, drafts: Sequence[Draft], *, progress: OnProgress | None) -> list[Result]:
        """Accept all drafts or none. Raises like :meth:`submit_each`; then none is accepted."""
        return [each for some in self._traced(self._all(drafts, progress)) for each in some]

    def plan(
        self,
        drafts: Iterable[Draft],
        *,
        total: int | None,
        progress: OnProgress | None,
        refuse: Callable[[Rejection], object] | None = None,
    ) -> Plan:
        """Return what a submit of these drafts would do. They are read a batch at a time.

        ``refuse`` is called with each refusal; the plan then lists none.
        Raises ReservationsUnavailable and StoreUnavailable.
        """
        tally = Tally(total, progress)
        rejections: list[Rejection] = []
        refuse = refuse or rejections.append
        dry_run = self._dry_run()
        with dry_run.reservations:
            for batch in batches(drafts):
                self._run(batch, dry_run)
                for each in tally.add(batch.entries):
                    if isinstance(each, Rejection):
                        refuse(_without_planned_ids(each))
        return Plan(
            accepted=tally.accepted,
            known=tally.known,
            shifted=tally.shifted,
            first_send_at=tally.first_send_at,
            last_send_at=tally.last_send_at,
            rejections=tuple(rejections),
            asked=_by_minute(tally.asked),
            promised=_by_minute(tally.promised),
        )

    def _traced(self, answers: Answers) -> Answers:
        return answers if self._spans is None else self._spans.submitting_many(answers)

    def _each(self, drafts: Iterable[Draft], tally: Tally) -> Answers:
        for batch in batches(drafts):
            yield self._answered(batch, tally)

    def _all(self, drafts: Sequence[Draft], progress: OnProgress | None) -> Answers:
        batch = batch_of(drafts, atomic=True)
        yield self._answered(batch, Tally(len(batch.entries), progress))

    def _answered(self, batch: Batch, tally: Tally) -> list[Result]:
        """Run a batch, tell the journal of its refusals, and return all results."""
        self._run(batch, self._own)
        results = tally.add(batch.entries)
        for each in results:
            if isinstance(each, Rejection):
                self._journal.refused(each.error)
        return results

    def _run(self, batch: Batch, sink: Sink) -> None:
        """Run a batch, and again the entries that are judged anew because of a refusal.

        Every entry has a result then.
        """
        with without_collector():
            self._submitter.run(batch, sink)
            while again := batch.renewed():
                self._submitter.run(Batch(again), sink)
        batch.share_results()


def _without_planned_ids(refused: Rejection) -> Rejection:
    """Return a refusal of a plan as it is shown: drafts in the way have no ids of messages."""
    error = refused.error
    if isinstance(error, IdempotencyConflict):
        is_planned = error.message_id is not None and is_planned_id(error.message_id)
        return (
            replace(refused, error=IdempotencyConflict(error.key, None)) if is_planned else refused
        )
    if not isinstance(error, QuotaExceeded) or not any(map(is_planned_id, error.conflicting)):
        return refused
    stored = [each for each in error.conflicting if not is_planned_id(each)]
    shown = QuotaExceeded(
        quota=error.quota,
        scope=error.scope,
        send_at=error.send_at,
        conflicting=stored,
        next_slot=error.next_slot,
        latest=error.latest,
        drafts=len(error.conflicting) - len(stored),
    )
    return replace(refused, error=shown)


def _by_minute(counted: Mapping[int, int]) -> dict[datetime, int]:
    return {from_ms(minute * MINUTE_MS): counted[minute] for minute in sorted(counted)}


class LazyResults(Iterator[Result]):
    """Results that are computed while they are read. Warns when they are never read."""

    def __init__(self, results: Iterator[Result]) -> None:
        self._results = results
        self._begun = False

    def __next__(self) -> Result:
        self._begun = True
        return next(self._results)

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(
                "submit_many was given an iterable and its results were never read: "
                "nothing was submitted",
                RuntimeWarning,
                stacklevel=2,
            )
