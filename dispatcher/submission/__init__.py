"""The use cases of callers: submit messages, change them, read about them.

``pipeline`` accepts drafts, one or many: validate, recall, reserve, store, enqueue; ``sinks`` store
its result in a transaction of their own, in one of the caller's, or not at all. ``validation``
judges drafts, ``reserver`` reserves and looks again, ``enqueuer`` enqueues messages inside the
horizon. ``changes`` cancels, reschedules and updates messages, ``moves`` gives them other times,
``decisions`` retries failed messages and releases or drops held ones, ``lists`` keeps the pauses
and the suppressions, ``erasure`` erases recipients. ``timeline`` reads which times of a scope fit,
``story`` all about one message.
"""

from dispatcher.submission.changes import Cancellation, Changes, NewTime
from dispatcher.submission.decisions import Decisions
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.erasure import Erased, Erasure
from dispatcher.submission.lists import PauseList, SuppressionList
from dispatcher.submission.moves import Moves
from dispatcher.submission.pipeline import LazyResults, OnProgress, Result, Submitter
from dispatcher.submission.reserver import Reserver
from dispatcher.submission.sinks import CallersTransactions, DryRun, OwnTransaction
from dispatcher.submission.story import Reservation, Story, StoryReader, coming
from dispatcher.submission.timeline import TimelineReader
from dispatcher.submission.validation import (
    DraftValidator,
    ValidDraft,
    checked_scopes,
    known_channel,
    terms_for,
    validate,
)

__all__ = [
    "CallersTransactions",
    "Cancellation",
    "Changes",
    "Decisions",
    "DraftValidator",
    "DryRun",
    "Enqueuer",
    "Erased",
    "Erasure",
    "LazyResults",
    "Moves",
    "NewTime",
    "OnProgress",
    "OwnTransaction",
    "PauseList",
    "Reservation",
    "Reserver",
    "Result",
    "Story",
    "StoryReader",
    "Submitter",
    "SuppressionList",
    "TimelineReader",
    "ValidDraft",
    "checked_scopes",
    "coming",
    "known_channel",
    "terms_for",
    "validate",
]
