"""Deliver a group of messages: claim, permit, send, record.

``group`` has the use case: it claims what a task of Celery brings, asks for permits, sends by the
``sender_pool`` of the channel, records what came of it and puts back what was not sent. ``task``
has the threads that lead groups; ``send_log`` notes each send before it begins. ``sweep`` and
``reconciler`` are the periodic maintenance.
"""

from dispatcher.delivery.group import Delivery, StopFlag
from dispatcher.delivery.task import GroupQueue

__all__ = ["Delivery", "GroupQueue", "StopFlag"]
