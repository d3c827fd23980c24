"""The truth: messages and attempts in SQL.

``database`` runs statements and translates what can go wrong, ``messages`` is for those who
submit, ``joined`` for those who do so in a transaction of their own: ``callers`` judges it, and
``identity`` tells its database from others. ``claims`` is for those who deliver, ``held`` for those
who decide what a worker left open, ``failed`` for those who try again, ``listing`` and ``figures``
for those who operate, ``upkeep`` for the sweep: ``given_up`` keeps what lost its place from being
stored. ``overdue`` is for what it catches up with, ``untold`` for whom it tells, ``standings`` for
those who compare, ``survey`` for those who examine a deployment. ``suppressions`` tells who has
opted out. ``schema`` describes the tables that the migrations build; ``columns``, ``instants``,
``once`` and ``chosen`` are what databases do each in their way.
"""

from dispatcher.store.bulk import BulkMessages
from dispatcher.store.callers import Joinable
from dispatcher.store.claims import Claim, Claims, Failure, Result, Unclaimed
from dispatcher.store.copied import Addition
from dispatcher.store.database import Database
from dispatcher.store.failed import FailedMessages, Standstill
from dispatcher.store.figures import Busy, Counts, Figures, Load, Of, OverdueFigure
from dispatcher.store.given_up import GivenUp, Kept, Settled
from dispatcher.store.held import HeldMessages
from dispatcher.store.joined import JoinedMessages, JoinedTransaction
from dispatcher.store.listing import Listing
from dispatcher.store.messages import Messages, Movable, NewTime
from dispatcher.store.migrate import SchemaStanding, migrate
from dispatcher.store.overdue import Overdue, overdue
from dispatcher.store.standings import Standing, Standings
from dispatcher.store.suppressions import REASON, Suppression, Suppressions
from dispatcher.store.survey import Late, StoreSurvey
from dispatcher.store.untold import Untold
from dispatcher.store.upkeep import Due, Place, Rescued, StoreUpkeep, Unbegun

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
    "Untold",
    "migrate",
    "overdue",
]
