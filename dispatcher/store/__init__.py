"""The truth: messages and attempts in SQL.

``database`` runs statements on an engine of ``engines``: what differs between databases is there
and nowhere else. ``schema`` describes the tables that the migrations build, ``rows`` turns messages
into rows and back.

For submitting there are ``messages`` and ``bulk``, and ``outbox`` in a transaction of the caller's;
``suppressions`` tells who has opted out. For delivery: ``claims``, which write by ``changes``. For
periodic maintenance: ``maintenance``, ``orphans``, ``catch_up``, ``notifications`` and ``places``.
For operators: ``decisions``, ``listing``, ``figures``, ``survey`` and ``migrate``.
"""

from dispatcher.store.bulk import BulkMessages
from dispatcher.store.catch_up import Overdue, overdue
from dispatcher.store.claims import Claim, Claims, Failure, Result, Unclaimed
from dispatcher.store.database import Database
from dispatcher.store.decisions import FailedMessages, HeldMessages, Standstill
from dispatcher.store.engines.base import Durability
from dispatcher.store.figures import Busy, Counts, Figures, Load, Of, OverdueFigure
from dispatcher.store.listing import Listing
from dispatcher.store.maintenance import Due, Rescued, StoreUpkeep, Unbegun
from dispatcher.store.messages import Messages, NewTime
from dispatcher.store.migrate import SchemaStanding, migrate
from dispatcher.store.notifications import Notifications
from dispatcher.store.orphans import GivenUp, Settled
from dispatcher.store.outbox import Joinable, JoinedMessages, JoinedTransaction
from dispatcher.store.places import Kept, Place, Standing, Standings
from dispatcher.store.rows import Addition, Movable
from dispatcher.store.suppressions import REASON, Suppression, Suppressions
from dispatcher.store.survey import Late, StoreSurvey

__all__ = [
    "REASON",
    "Addition",
    "BulkMessages",
    "Busy",
    "Claim",
    "Claims",
    "Counts",
    "Database",
    "Due",
    "Durability",
    "FailedMessages",
    "Failure",
    "Figures",
    "GivenUp",
    "HeldMessages",
    "Joinable",
    "JoinedMessages",
    "JoinedTransaction",
    "Kept",
    "Late",
    "Listing",
    "Load",
    "Messages",
    "Movable",
    "NewTime",
    "Notifications",
    "Of",
    "Overdue",
    "OverdueFigure",
    "Place",
    "Rescued",
    "Result",
    "SchemaStanding",
    "Settled",
    "Standing",
    "Standings",
    "Standstill",
    "StoreSurvey",
    "StoreUpkeep",
    "Suppression",
    "Suppressions",
    "Unbegun",
    "Unclaimed",
    "migrate",
    "overdue",
]
