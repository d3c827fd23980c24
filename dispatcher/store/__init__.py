"""Messages and attempts in SQL.

``database`` runs statements on an engine of ``engines``, the only package that knows differences
between databases. ``schema`` describes the tables that the migrations build, and turns messages
into rows and back.

For submission there are ``messages``, and ``outbox`` in a transaction of the caller's;
``lists`` has the recipients who have opted out, and pauses. For delivery: ``claims``. For periodic
maintenance: ``maintenance``, ``reservations`` and ``notifications``. For operators: ``decisions``,
``listing``, ``survey`` and ``migrate``. For the HTTP API: ``api``. ``changes`` are UPDATEs
that a condition guards, of many rows at once.
"""

from dispatcher.store.api import ApiKey, ApiKeys, Sessions
from dispatcher.store.claims import Claim, Claims, Failure, Success
from dispatcher.store.database import Database
from dispatcher.store.decisions import FailedMessages, HeldMessages, StoppedMessage
from dispatcher.store.engines.base import Housekeeping
from dispatcher.store.listing import (
    Counts,
    DueByMinute,
    DueCount,
    EndedInHour,
    Figures,
    Listing,
    Load,
    Of,
    OverdueFigure,
    StoredVersion,
)
from dispatcher.store.lists import REASON, Pause, Pauses, Suppression, Suppressions
from dispatcher.store.maintenance import (
    MOST_GRACES,
    Due,
    StoreMaintenance,
    overdue,
)
from dispatcher.store.messages import GivenUp, Messages, NewSlot
from dispatcher.store.migrate import SchemaStanding, migrate
from dispatcher.store.notifications import Notifications
from dispatcher.store.outbox import JoinedMessages, JoinedTransaction
from dispatcher.store.reservations import (
    ReservationRow,
    ReservationState,
    ReservedTime,
    Settled,
)
from dispatcher.store.schema import (
    EVERY_CHANNEL,
    PAUSED_CAMPAIGN,
    PAUSED_CHANNEL,
    PAUSED_RECIPIENT,
    Addition,
    Movable,
)
from dispatcher.store.survey import LateCount, StoreSurvey

__all__ = [
    "EVERY_CHANNEL",
    "MOST_GRACES",
    "PAUSED_CAMPAIGN",
    "PAUSED_CHANNEL",
    "PAUSED_RECIPIENT",
    "REASON",
    "Addition",
    "ApiKey",
    "ApiKeys",
    "Claim",
    "Claims",
    "Counts",
    "Database",
    "Due",
    "DueByMinute",
    "DueCount",
    "EndedInHour",
    "FailedMessages",
    "Failure",
    "Figures",
    "GivenUp",
    "HeldMessages",
    "Housekeeping",
    "JoinedMessages",
    "JoinedTransaction",
    "LateCount",
    "Listing",
    "Load",
    "Messages",
    "Movable",
    "NewSlot",
    "Notifications",
    "Of",
    "OverdueFigure",
    "Pause",
    "Pauses",
    "ReservationRow",
    "ReservationState",
    "ReservedTime",
    "SchemaStanding",
    "Sessions",
    "Settled",
    "StoppedMessage",
    "StoreMaintenance",
    "StoreSurvey",
    "StoredVersion",
    "Success",
    "Suppression",
    "Suppressions",
    "migrate",
    "overdue",
]
