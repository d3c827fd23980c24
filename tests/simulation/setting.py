"""The settings of all stories: short lengths, so that everything happens within a minute or two."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from dispatcher.channel import ChannelSettings, ScopeKind
from dispatcher.quota import Kept, Limit, Quota
from dispatcher.settings import Settings

QUOTAS = (Quota(2, 3_000), Quota(5, 15_000, Kept(1, 10)))
CHANNEL_QUOTAS = (Quota(4, 5_000, Kept(2, -10)),)
PRIORITIES = (None, 10, -11)
"""What drafts have in turn. Places are kept from two of them, and from one."""
TENANT_QUOTAS = (Quota(3, 4_000), Quota(6, 14_000))
OWN_QUOTAS = (
    None, ("5/4 second", "6/14 second"), ("1/4 second", "9/14 second"),
    ("1/5 second", "5/30 second"),
)  # fmt: skip
"""What a tenant may have of its own, the longest one longer than any of its kind."""
LOOSEST = (Quota(5, 4_000), Quota(9, 14_000))
"""What all of these are within, whichever of them judged a booking."""
OWN_LIMITS = (None, ("1/2 second", "5/9 second"), ("3/3 second",), ("1/4 second",))
"""What the sends of a tenant may have: none longer than the quotas of recipients, as far back as
the judge looks for permits."""
CHANNEL_LIMITS = (Limit(2, 2_500), Limit(3, 8_000))
SCOPES = ("ada", "bob", "cyd")
REMINDED = ("dan", "eve")
"""Who gets nothing but reminders and occurrences of series."""
TENANTS = ("red", "blue")
BOOK_AHEAD, LEASE = timedelta(seconds=20), timedelta(seconds=5)
"""How far series are booked, and how long a pass has one for itself."""
RETENTION = timedelta(seconds=40)


def settings() -> Settings:
    """Return them. One channel does not send what is overdue."""
    channel: dict[str, Any] = {
        "transport": "memory", "max_attempts": 4, "senders": 2,
        "backoff_base": 0.5, "backoff_longest": 2.0,
    }  # fmt: skip
    made = Settings(
        data_dir=Path("nowhere"),
        namespace="sim",
        shards=3,
        quotas=QUOTAS,
        channels={
            "sms": ChannelSettings(
                **channel, limits=CHANNEL_LIMITS, fair_by="tenant", weights={"red": 2}
            ),
            "mail": ChannelSettings(**channel, on_unknown="hold", quotas=CHANNEL_QUOTAS),
            "push": ChannelSettings(**channel | {"max_attempts": 2}),
            "page": ChannelSettings(**channel | {"max_attempts": 2}, catch_up="expire"),
        },
        scopes={"tenant": ScopeKind(quotas=TENANT_QUOTAS)},
        horizon=timedelta(seconds=6),
        sweep_interval=timedelta(seconds=1),
        enqueue_grace=timedelta(seconds=2),
        overdue_after=timedelta(seconds=4),
        tell_delay_after=timedelta(seconds=2),
        claim_ttl=timedelta(seconds=5),
        transport_timeout=timedelta(seconds=2),
        reconcile_grace=timedelta(seconds=8),
        transaction_grace=timedelta(seconds=3),
        settle=timedelta(seconds=1),
        book_ahead=BOOK_AHEAD,
        groups_at_once=2,
        group_size=5,
    )
    # Nobody waits an hour here: it is longer than the longest quota, which is what counts.
    return made.model_copy(update={"retention": RETENTION})
