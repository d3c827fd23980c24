"""Deliver a group of messages: claim, permit, send, record.

``task`` is what Celery calls: it claims a group. The ``group`` asks for permits, sends by the
``sender_pool`` of its channel, records what came of it and puts back what was not sent;
``send_log`` notes each send before it begins. ``sweep`` and ``reconciler`` are the
periodic maintenance.
"""

from dispatcher.delivery.group import Shared, StopFlag
from dispatcher.delivery.task import Delivery, GroupQueue

__all__ = ["Delivery", "GroupQueue", "Shared", "StopFlag"]
