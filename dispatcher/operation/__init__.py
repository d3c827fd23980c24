"""What :class:`~dispatcher.Dispatcher` offers to those who operate it, beside submitting.

``looking`` tells, ``deciding`` changes; ``base`` is what both stand on.
"""

from dispatcher.operation.base import check_at_most, id_of
from dispatcher.operation.deciding import Deciding
from dispatcher.operation.looking import Looking, SendTime

__all__ = ["Deciding", "Looking", "SendTime", "check_at_most", "id_of"]
