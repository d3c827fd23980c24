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
    LimitReached,
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
    TwinUnderWay,
    Unavailable,
    UnknownChannel,
)
from dispatcher.message import Attempt, Draft, Message, Outcome, Plan, Progress, Rejection, Status
from dispatcher.reservation import Timeline
from dispatcher.selection import Page, Wanted
from dispatcher.settings import Settings
from dispatcher.submission import Reservation, Story
from dispatcher.verification import Difference, Fault, Verified

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Attempt",
    "BatchRefused",
    "Channel",
    "DeliveryError",
    "Difference",
    "Dispatcher",
    "DispatcherError",
    "Draft",
    "Fault",
    "IdempotencyConflict",
    "InvalidDraft",
    "InvalidSendTime",
    "InvalidSettings",
    "InvalidValue",
    "LimitReached",
    "LimitersUnavailable",
    "Message",
    "MessageNotFound",
    "NoPlace",
    "Outcome",
    "OutcomeUnknown",
    "Page",
    "PermanentFailure",
    "Plan",
    "Progress",
    "QueueUnavailable",
    "QuietHours",
    "QuotaExceeded",
    "Rejection",
    "Reservation",
    "ReservationsUnavailable",
    "Settings",
    "Status",
    "StoreUnavailable",
    "Story",
    "TemporaryFailure",
    "Timeline",
    "TooLate",
    "TwinUnderWay",
    "Unavailable",
    "UnknownChannel",
    "Verified",
    "Wanted",
]
