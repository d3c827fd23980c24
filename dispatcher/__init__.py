"""Scheduled messages for Celery teams.

Quotas are judged exactly when a message is submitted, limits when it is sent, and what was
accepted is never lost. Start with :class:`Dispatcher`.
"""

import logging

from dispatcher.channel import Channel
from dispatcher.client import Dispatcher
from dispatcher.errors import (
    BatchRefused,
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
from dispatcher.message import Attempt, Draft, Message, Outcome, Progress, Rejection, Status
from dispatcher.settings import Settings

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Attempt",
    "BatchRefused",
    "Channel",
    "DeliveryError",
    "Dispatcher",
    "DispatcherError",
    "Draft",
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
    "Progress",
    "QueueUnavailable",
    "QuietHours",
    "QuotaExceeded",
    "Rejection",
    "ReservationsUnavailable",
    "Settings",
    "Status",
    "StoreUnavailable",
    "TemporaryFailure",
    "TooLate",
    "Unavailable",
    "UnknownChannel",
]
