"""Messages and attempts in SQL.

``database`` runs statements on an engine of ``engines``, the only package that knows differences
between databases. ``schema`` describes the tables that the migrations build, and turns messages
into rows and back.

For submission there are ``messages``, and ``outbox`` in a transaction of the caller's;
``suppressions`` are the recipients who have opted out. For delivery: ``claims``, which write by
``changes``; ``pauses`` keep messages back. For periodic maintenance: ``maintenance``,
``reservations`` and ``notifications``. For operators: ``decisions``, ``listing``, ``survey`` and
``migrate``. For the HTTP API: ``api``.
"""

from dispatcher.store.api import ApiKey as ApiKey
from dispatcher.store.api import ApiKeys as ApiKeys
from dispatcher.store.api import Sessions as Sessions
from dispatcher.store.claims import Claim as Claim
from dispatcher.store.claims import Claims as Claims
from dispatcher.store.claims import Failure as Failure
from dispatcher.store.claims import Success as Success
from dispatcher.store.database import Database as Database
from dispatcher.store.decisions import FailedMessages as FailedMessages
from dispatcher.store.decisions import HeldMessages as HeldMessages
from dispatcher.store.decisions import StoppedMessage as StoppedMessage
from dispatcher.store.engines.base import Backlog as Backlog
from dispatcher.store.engines.base import Days as Days
from dispatcher.store.engines.base import Durability as Durability
from dispatcher.store.engines.base import Housekeeping as Housekeeping
from dispatcher.store.engines.base import Slot as Slot
from dispatcher.store.listing import Counts as Counts
from dispatcher.store.listing import DueByMinute as DueByMinute
from dispatcher.store.listing import DueCount as DueCount
from dispatcher.store.listing import EndedInHour as EndedInHour
from dispatcher.store.listing import Figures as Figures
from dispatcher.store.listing import Listing as Listing
from dispatcher.store.listing import Load as Load
from dispatcher.store.listing import Of as Of
from dispatcher.store.listing import OverdueFigure as OverdueFigure
from dispatcher.store.listing import StoredVersion as StoredVersion
from dispatcher.store.maintenance import MOST_GRACES as MOST_GRACES
from dispatcher.store.maintenance import Due as Due
from dispatcher.store.maintenance import StoreMaintenance as StoreMaintenance
from dispatcher.store.maintenance import overdue as overdue
from dispatcher.store.messages import GivenUp as GivenUp
from dispatcher.store.messages import Messages as Messages
from dispatcher.store.messages import NewSlot as NewSlot
from dispatcher.store.migrate import SchemaStanding as SchemaStanding
from dispatcher.store.migrate import migrate as migrate
from dispatcher.store.notifications import Notifications as Notifications
from dispatcher.store.outbox import JoinedMessages as JoinedMessages
from dispatcher.store.outbox import JoinedTransaction as JoinedTransaction
from dispatcher.store.pauses import Pause as Pause
from dispatcher.store.pauses import Pauses as Pauses
from dispatcher.store.reservations import ReservationRow as ReservationRow
from dispatcher.store.reservations import ReservationState as ReservationState
from dispatcher.store.reservations import ReservedTime as ReservedTime
from dispatcher.store.reservations import Settled as Settled
from dispatcher.store.schema import EVERY_CHANNEL as EVERY_CHANNEL
from dispatcher.store.schema import PAUSED_CAMPAIGN as PAUSED_CAMPAIGN
from dispatcher.store.schema import PAUSED_CHANNEL as PAUSED_CHANNEL
from dispatcher.store.schema import PAUSED_RECIPIENT as PAUSED_RECIPIENT
from dispatcher.store.schema import Addition as Addition
from dispatcher.store.schema import Movable as Movable
from dispatcher.store.suppressions import REASON as REASON
from dispatcher.store.suppressions import Suppression as Suppression
from dispatcher.store.suppressions import Suppressions as Suppressions
from dispatcher.store.survey import LateCount as LateCount
from dispatcher.store.survey import StoreSurvey as StoreSurvey
