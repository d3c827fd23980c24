"""Exact quotas over promised times: the windows in Redis.

``windows`` books, moves and releases messages leg by leg through ``shards``; ``plan`` books in
copies of windows. ``upkeep`` rebuilds windows from the store and settles what the store did not
confirm, ``fence`` closes those of a server that may have lost data. ``contents``, ``timeline`` and
``survey`` read; ``refusals`` notes refused submits; ``booking`` has the values, ``encoding``
the words of the scripts.
"""

from dispatcher.reservation.booking import (
    Answer,
    BookingRequest,
    Slot,
    Submit,
    Terms,
    is_planned_id,
)
from dispatcher.reservation.contents import Contents, MemberState
from dispatcher.reservation.encoding import Rules, longest_ms, member_of
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.plan import Copies
from dispatcher.reservation.refusals import (
    LastRefusal,
    RefusalLog,
    Refusals,
    RuleRefusals,
)
from dispatcher.reservation.shards import CLOSED
from dispatcher.reservation.survey import RedisNode, RedisSurvey
from dispatcher.reservation.timeline import (
    Fill,
    QuotaTimeline,
    Span,
    Timeline,
    Timelines,
    WindowTimeline,
)
from dispatcher.reservation.upkeep import Rebuild, Reserved, Unconfirmed, Upkeep
from dispatcher.reservation.windows import Windows

__all__ = [
    "CLOSED",
    "Answer",
    "BookingRequest",
    "Contents",
    "Copies",
    "Fence",
    "Fill",
    "LastRefusal",
    "MemberState",
    "QuotaTimeline",
    "Rebuild",
    "RedisNode",
    "RedisSurvey",
    "RefusalLog",
    "Refusals",
    "Reserved",
    "RuleRefusals",
    "Rules",
    "Slot",
    "Span",
    "Submit",
    "Terms",
    "Timeline",
    "Timelines",
    "Unconfirmed",
    "Upkeep",
    "WindowTimeline",
    "Windows",
    "is_planned_id",
    "longest_ms",
    "member_of",
]
