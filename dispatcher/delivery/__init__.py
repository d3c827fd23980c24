"""Deliver a group of messages: claim, permit, send, record."""

from dispatcher.delivery.delivery import Delivery

__all__ = ["Delivery"]
