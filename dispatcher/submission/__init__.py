"""The use cases of those who submit.

``schedule`` judges a draft, ``submission`` accepts it, ``bulk`` accepts thousands, ``changes``
moves, alters and cancels what was accepted, ``handover`` gives Celery what is near.
"""

from dispatcher.submission.bulk import BulkSubmission, OnProgress, Result, Unread
from dispatcher.submission.changes import Changes, Wish
from dispatcher.submission.handover import Handover
from dispatcher.submission.schedule import ValidDraft, judge_times, schedule, terms_for
from dispatcher.submission.submission import Submission

__all__ = [
    "BulkSubmission",
    "Changes",
    "Handover",
    "OnProgress",
    "Result",
    "Submission",
    "Unread",
    "ValidDraft",
    "Wish",
    "judge_times",
    "schedule",
    "terms_for",
]
