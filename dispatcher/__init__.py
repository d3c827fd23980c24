"""Scheduled messages for Celery teams.

Quotas are judged exactly when a message is submitted, limits when it is sent, and what was
accepted is never lost. Start with :class:`Dispatcher`.
"""

import logging

from dispatcher.channel import Channel
from dispatcher.client import Dispatcher
from dispatcher.errors import (
    DeliveryError,
    DispatcherError,
    IdempotencyConflict,
    InvalidDraft,
    InvalidSendTime,
    InvalidSettings,
    InvalidValue,
    LimitersUnavailable,
    MessageNotFound,
    NoPlace,
    OutcomeUnknown,
    PermanentFailure,
    QueueUnavailable,
    QuietHours,
    QuotaExceeded,
    ReservationsUnavailable,
    StoreUnavailable,
    TemporaryFailure,
    TooLate,
    Unavailable,
    UnknownChannel,
)
from dispatcher.message import Attempt, Message, Outcome, Status
from dispatcher.settings import Settings

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Attempt",
    "Channel",
    "DeliveryError",
    "Dispatcher",
    "DispatcherError",
    "IdempotencyConflict",
    "InvalidDraft",
    "InvalidSendTime",
    "InvalidSettings",
    "InvalidValue",
    "LimitersUnavailable",
    "Message",
    "MessageNotFound",
    "NoPlace",
    "Outcome",
    "OutcomeUnknown",
    "PermanentFailure",
    "QueueUnavailable",
    "QuietHours",
    "QuotaExceeded",
    "ReservationsUnavailable",
    "Settings",
    "Status",
    "StoreUnavailable",
    "TemporaryFailure",
    "TooLate",
    "Unavailable",
    "UnknownChannel",
]
