"""Scheduled messages for Celery teams.

Quotas are exact when a message is submitted, limits are exact when it is sent, and no accepted
message is lost. Start with :class:`Dispatcher`.
"""

import importlib
import logging
import typing

if typing.TYPE_CHECKING:
    from dispatcher.body_types import Channel
    from dispatcher.celery.install import install
    from dispatcher.channel import ChannelSettings
    from dispatcher.client import Dispatcher, Events, SeriesCalls, SeriesFields
    from dispatcher.errors import (
        BatchRefused,
        DeliveryError,
        DispatcherError,
        DuplicateUnderWay,
        IdempotencyConflict,
        InvalidDraft,
        InvalidSendTime,
        InvalidSettings,
        InvalidValue,
        LimitersUnavailable,
        LimitReached,
        MessageChanged,
        MessageNotFound,
        MissingExtra,
        OutcomeUnknown,
        PerhapsSent,
        PermanentFailure,
        QueueUnavailable,
        QuietHours,
        QuotaExceeded,
        ReservationsUnavailable,
        SlotRefused,
        StoreUnavailable,
        Suppressed,
        TemporaryFailure,
        TooLate,
        Unavailable,
        UnknownChannel,
    )
    from dispatcher.limiters.permits import ChannelFill, LimitFill
    from dispatcher.message import (
        Attempt,
        Draft,
        Message,
        Outcome,
        Plan,
        Progress,
        Rejection,
        Status,
    )
    from dispatcher.operations.overview import (
        ChannelLoad,
        FullestQuota,
        LoadedMinute,
        LoadToCome,
        Overview,
        Top,
        Tops,
    )
    from dispatcher.operations.verification import Difference, Fault, Verified
    from dispatcher.reservation.refusals import LastRefusal, Refusals, RuleRefusals
    from dispatcher.reservation.timeline import Timeline
    from dispatcher.selection import Page, Wanted
    from dispatcher.settings import Settings
    from dispatcher.store.listing import Counts, Load, OverdueFigure
    from dispatcher.store.lists import Pause, Suppression
    from dispatcher.store.schema import Event
    from dispatcher.submission.lists import Erased
    from dispatcher.submission.quotas import ScopeQuotas
    from dispatcher.submission.reads import Reservation, Story
    from dispatcher.submission.series import Recipient, Series, Skipped
    from dispatcher.telemetry.liveness import Sign

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Attempt",
    "BatchRefused",
    "Channel",
    "ChannelFill",
    "ChannelLoad",
    "ChannelSettings",
    "Counts",
    "DeliveryError",
    "Difference",
    "Dispatcher",
    "DispatcherError",
    "Draft",
    "DuplicateUnderWay",
    "Erased",
    "Event",
    "Events",
    "Fault",
    "FullestQuota",
    "IdempotencyConflict",
    "InvalidDraft",
    "InvalidSendTime",
    "InvalidSettings",
    "InvalidValue",
    "LastRefusal",
    "LimitFill",
    "LimitReached",
    "LimitersUnavailable",
    "Load",
    "LoadToCome",
    "LoadedMinute",
    "Message",
    "MessageChanged",
    "MessageNotFound",
    "MissingExtra",
    "Outcome",
    "OutcomeUnknown",
    "OverdueFigure",
    "Overview",
    "Page",
    "Pause",
    "PerhapsSent",
    "PermanentFailure",
    "Plan",
    "Progress",
    "QueueUnavailable",
    "QuietHours",
    "QuotaExceeded",
    "Recipient",
    "Refusals",
    "Rejection",
    "Reservation",
    "ReservationsUnavailable",
    "RuleRefusals",
    "ScopeQuotas",
    "Series",
    "SeriesCalls",
    "SeriesFields",
    "Settings",
    "Sign",
    "Skipped",
    "SlotRefused",
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
    "Unavailable",
    "UnknownChannel",
    "Verified",
    "Wanted",
    "install",
]

_MODULES = (
    "errors", "message", "selection", "body_types", "channel", "settings", "celery.install",
    "limiters.permits", "reservation.refusals", "reservation.timeline", "client",
    "operations.overview", "operations.verification",
    "store.listing", "store.lists", "submission.lists", "submission.quotas", "submission.reads",
    "submission.series", "telemetry.liveness",
)  # fmt: skip
"""The modules of the public names, the light ones first: the first use of a name looks for it."""


if not typing.TYPE_CHECKING:  # with it a type checker would accept any name

    def __getattr__(name: str) -> object:
        for module in _MODULES if name in __all__ else ():
            names = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in names:
                return globals().setdefault(name, names[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
