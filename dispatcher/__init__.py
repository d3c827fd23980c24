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
    PerhapsSent,
    PermanentFailure,
    QueueUnavailable,
    QuietHours,
    QuotaExceeded,
    ReservationsUnavailable,
    StoreUnavailable,
    Suppressed,
    TemporaryFailure,
    TooLate,
    TwinUnderWay,
    Unavailable,
    UnknownChannel,
)
from dispatcher.installation import install
from dispatcher.limiters import ChannelFill, LimitFill
from dispatcher.liveness import Sign
from dispatcher.message import Attempt, Draft, Message, Outcome, Plan, Progress, Rejection, Status
from dispatcher.overview import FullestQuota, Overview, Top, Tops
from dispatcher.reservation import Timeline
from dispatcher.selection import Page, Wanted
from dispatcher.settings import Settings
from dispatcher.store import Counts, Load, OverdueFigure, Suppression
from dispatcher.submission import Reservation, Story
from dispatcher.verification import Difference, Fault, Verified

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Attempt",
    "BatchRefused",
    "Channel",
    "ChannelFill",
    "Counts",
    "DeliveryError",
    "Difference",
    "Dispatcher",
    "DispatcherError",
    "Draft",
    "Fault",
    "FullestQuota",
    "IdempotencyConflict",
    "InvalidDraft",
    "InvalidSendTime",
    "InvalidSettings",
    "InvalidValue",
    "LimitFill",
    "LimitReached",
    "LimitersUnavailable",
    "Load",
    "Message",
    "MessageNotFound",
    "NoPlace",
    "Outcome",
    "OutcomeUnknown",
    "OverdueFigure",
    "Overview",
    "Page",
    "PerhapsSent",
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
    "Sign",
    "Status",
    "StoreUnavailable",
    "Story",
    "Suppressed",
    "Suppression",
    "TemporaryFailure",
    "Timeline",
    "TooLate",
    "Top",
    "Tops",
    "TwinUnderWay",
    "Unavailable",
    "UnknownChannel",
    "Verified",
    "Wanted",
    "install",
]
