"""The use cases of those who submit.

``schedule`` judges a draft, ``submission`` accepts it, ``joined`` does so in a transaction of the
caller's, ``bulk`` accepts thousands, ``plan`` tells what would come of them (``cases``: what both
share), ``changes`` reschedules, alters and cancels what was accepted, ``moves`` gives messages
other times, ``cancelling`` cancels many at once, ``held`` releases or drops what is held,
``failed`` tries again what had failed, ``catch_up`` ends or moves what is overdue, ``suppressing``
lets people opt out, ``handover`` gives Celery what is near, ``outlook`` tells why times are free or
not, ``telling`` what became of a message.
"""

from dispatcher.submission.bulk import BulkSubmission
from dispatcher.submission.cancelling import Cancelling
from dispatcher.submission.cases import OnProgress, Result
from dispatcher.submission.catch_up import CatchUp, CaughtUp
from dispatcher.submission.changes import Changes, Wish
from dispatcher.submission.failed import Failed
from dispatcher.submission.handover import Handover
from dispatcher.submission.held import Held
from dispatcher.submission.joined import JoinedSubmission
from dispatcher.submission.moves import Moves
from dispatcher.submission.outlook import Outlook
from dispatcher.submission.plan import Planning
from dispatcher.submission.schedule import ValidDraft, judge_times, schedule, terms_for
from dispatcher.submission.submission import Submission
from dispatcher.submission.suppressing import Suppressing
from dispatcher.submission.telling import Reservation, Story, Telling
from dispatcher.submission.unread import Unread

__all__ = [
    "BulkSubmission",
    "Cancelling",
    "CatchUp",
    "CaughtUp",
    "Changes",
    "Failed",
    "Handover",
    "Held",
    "JoinedSubmission",
    "Moves",
    "OnProgress",
    "Outlook",
    "Planning",
    "Reservation",
    "Result",
    "Story",
    "Submission",
    "Suppressing",
    "Telling",
    "Unread",
    "ValidDraft",
    "Wish",
    "judge_times",
    "schedule",
    "terms_for",
]
