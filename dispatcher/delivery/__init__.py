"""Deliver a group of messages: claim, permit, send, record.

``task`` is what Celery calls: it claims, asks for permits and gives what has one to the
``sender_pool`` of its channel. A ``recorder`` writes down what came of each send and puts back what
was not sent. ``group_queue`` keeps the channels of one worker apart.
"""

from dispatcher.delivery.group_queue import GroupQueue
from dispatcher.delivery.task import Delivery

__all__ = ["Delivery", "GroupQueue"]
