"""Messages and attempts in SQL.

``database`` runs statements on an engine of ``engines``, the only package that knows differences
between databases. ``schema`` describes the tables that the migrations build, ``rows`` turns
messages into rows and back.

For submission there are ``messages`` and ``bulk``, and ``outbox`` in a transaction of the caller's;
``suppressions`` are the recipients who have opted out. For delivery: ``claims``, which write by
``changes``. For periodic maintenance: ``maintenance``, ``orphans``, ``catch_up``, ``notifications``
and ``reservations``. For operators: ``decisions``, ``listing``, ``figures``, ``survey`` and
``migrate``.
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
from dispatcher.store.reservations import (
    ReservationRow,
    ReservationState,
    ReservationStates,
    ReservedTime,
)
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
    "Rescued",
    "ReservationRow",
    "ReservationState",
    "ReservationStates",
    "ReservedTime",
    "Result",
    "SchemaStanding",
    "Settled",
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
