"""What :class:`~dispatcher.Dispatcher` offers to those who operate it, beside submitting.

``looking`` tells, ``deciding`` changes; ``base`` is what both stand on, ``awaiting`` lets threads
make their calls.
"""

from dispatcher.operation.awaiting import awaited, listed
from dispatcher.operation.base import check_at_most
from dispatcher.operation.deciding import Deciding
from dispatcher.operation.looking import Looking, SendTime
from dispatcher.selection import id_of

__all__ = ["Deciding", "Looking", "SendTime", "awaited", "check_at_most", "id_of", "listed"]
