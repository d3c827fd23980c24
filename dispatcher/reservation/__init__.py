"""Exact quotas over promised times: the windows in Redis, and what keeps them true.

``windows`` books, moves and gives back, ``shards`` does so in one shard, by the ``terms`` of a
message; ``plan`` books in copies; ``fence`` distrusts a server it has not met; ``upkeep`` rebuilds
windows from the store and looks after reservations that nobody confirmed; ``survey`` asks for those
who examine a deployment.
"""

from dispatcher.reservation.bulk import Booked, Bulk, UnderWay
from dispatcher.reservation.contents import Contents, Held, Seen
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.places import Blocked, Booking, Moving, Place, Request, Submit
from dispatcher.reservation.plan import Answered, Copies
from dispatcher.reservation.survey import (
    ClusterFacts,
    ForeignFacts,
    Readiness,
    RedisFacts,
    RedisSurvey,
)
from dispatcher.reservation.terms import Rules, Terms, longest_ms
from dispatcher.reservation.timeline import CELLS, Fill, QuotaTimeline, Span, Timeline, Timelines
from dispatcher.reservation.upkeep import Rebuild, Reserved, Stored, Unconfirmed, Upkeep
from dispatcher.reservation.windows import Windows

__all__ = [
    "CELLS",
    "Answered",
    "Blocked",
    "Booked",
    "Booking",
    "Bulk",
    "ClusterFacts",
    "Contents",
    "Copies",
    "Fence",
    "Fill",
    "ForeignFacts",
    "Held",
    "Moving",
    "Place",
    "QuotaTimeline",
    "Readiness",
    "Rebuild",
    "RedisFacts",
    "RedisSurvey",
    "Request",
    "Reserved",
    "Rules",
    "Seen",
    "Span",
    "Stored",
    "Submit",
    "Terms",
    "Timeline",
    "Timelines",
    "Unconfirmed",
    "UnderWay",
    "Upkeep",
    "Windows",
    "longest_ms",
]
