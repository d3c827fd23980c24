"""Exact quotas over promised times: the windows in Redis, and what keeps them true.

``windows`` books, moves and gives back, ``shards`` does so in one shard, by the ``terms`` of a
message; ``fence`` distrusts a server it has not met; ``upkeep`` rebuilds windows from the store and
looks after reservations that nobody confirmed.
"""

from dispatcher.reservation.bulk import Bulk, Request
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.places import Submit
from dispatcher.reservation.terms import Rules, Terms, longest_ms
from dispatcher.reservation.upkeep import Rebuild, Reserved, Unconfirmed, Upkeep
from dispatcher.reservation.windows import Booking, Moving, Windows

__all__ = [
    "Booking",
    "Bulk",
    "Fence",
    "Moving",
    "Rebuild",
    "Request",
    "Reserved",
    "Rules",
    "Submit",
    "Terms",
    "Unconfirmed",
    "Upkeep",
    "Windows",
    "longest_ms",
]
