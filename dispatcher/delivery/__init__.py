"""Deliver a group of messages: claim, permit, send, record.

``delivery`` claims, a ``round`` leads one group from its permits to its records, ``senders`` hand
over side by side, ``hand_overs`` calls the transport, ``outcomes`` writes down what came of it and
``returns`` puts back what did not go. ``stragglers`` are rounds whose last hand-overs take their
time. ``lanes`` keep the channels of one worker apart.
"""

from dispatcher.delivery.delivery import Delivery
from dispatcher.delivery.lanes import Lanes

__all__ = ["Delivery", "Lanes"]
