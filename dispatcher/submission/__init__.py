"""The use cases of those who submit.

``submitter`` is the one pipeline (validate, recall, reserve, store, confirm), over a ``batch``;
``sinks`` store its result in a transaction of their own, in one of the caller's, or not at all;
``many`` sends many drafts through it. ``schedule`` judges a draft, ``reserver`` reserves, gives
back and looks again, ``enqueuer`` gives Celery what is near. ``changes`` reschedules, alters and
cancels what was accepted, ``moves`` gives messages other times, ``cancelling`` cancels many at
once, ``held`` releases or drops what is held, ``failed`` tries again what had failed, ``catch_up``
ends or moves what is overdue, ``suppressing`` lets people opt out, ``outlook`` tells why times are
free or not, ``telling`` what became of a message.
"""

from dispatcher.submission.batch import OnProgress, Result
from dispatcher.submission.cancelling import Cancelling
from dispatcher.submission.catch_up import CatchUp, CaughtUp
from dispatcher.submission.changes import Changes, Wish
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.failed import Failed
from dispatcher.submission.held import Held
from dispatcher.submission.many import Batches, Unread
from dispatcher.submission.moves import Moves
from dispatcher.submission.outlook import Outlook
from dispatcher.submission.reserver import Reserver
from dispatcher.submission.schedule import ValidDraft, judge_times, schedule, terms_for
from dispatcher.submission.sinks import CallersTransactions, DryRun, OwnTransaction
from dispatcher.submission.submitter import Submitter
from dispatcher.submission.suppressing import Suppressing
from dispatcher.submission.telling import Reservation, Story, Telling

__all__ = [
    "Batches",
    "CallersTransactions",
    "Cancelling",
    "CatchUp",
    "CaughtUp",
    "Changes",
    "DryRun",
    "Enqueuer",
    "Failed",
    "Held",
    "Moves",
    "OnProgress",
    "Outlook",
    "OwnTransaction",
    "Reservation",
    "Reserver",
    "Result",
    "Story",
    "Submitter",
    "Suppressing",
    "Telling",
    "Unread",
    "ValidDraft",
    "Wish",
    "judge_times",
    "schedule",
    "terms_for",
]
