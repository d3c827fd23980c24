"""Exact quotas over promised times: the windows in Redis, and what keeps them true.

``windows`` books and gives back; ``fence`` distrusts a server it has not met; ``upkeep`` rebuilds
windows from the store and looks after reservations that nobody confirmed.
"""

from dispatcher.reservation.fence import Fence
from dispatcher.reservation.upkeep import Rebuild, Reserved, Upkeep
from dispatcher.reservation.windows import Booking, Submit, Windows

__all__ = ["Booking", "Fence", "Rebuild", "Reserved", "Submit", "Upkeep", "Windows"]
