"""A made-up shop that keeps sending, with its page, on servers of its own.

::

    pip install '<path of the clone>[embedded,web]'
    python -m examples.shop

It has three channels, two tenants, a mailing that overbooks a minute, and a provider on a bad day.
"""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

from dispatcher import (
    Dispatcher,
    DispatcherError,
    Draft,
    Message,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
)
from dispatcher.embedded import environment
from dispatcher.transports import MemoryTransport
from dispatcher.web import Loopback, Right, page
from dispatcher.web.pages import beside

ZONE = "Europe/Berlin"
SETTINGS: Mapping[str, Any] = {
    "zone": ZONE,
    "log_key": "a made-up shop has nothing to hide",
    "quotas": "1/minute, 5/hour, 12/day",
    "scopes": {"tenant": {"quotas": "500/hour"}},
    "channels": {
        "email": {"transport": "file", "recipients": "email", "limits": ["2/second"]},
        "sms": {
            "recipients": "phone",
            "transport": "examples.shop:FailingTransport",
            "quotas": "200/hour",
            "limits": ["2/second"],
            "max_attempts": 3,
            "on_unknown": "hold",
        },
        "push": {"transport": "memory", "limits": ["50/second"], "quiet_hours": "22:00-07:00"},
    },
}
_REGULARS = (
    "ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana", "ivo", "june", "kai", "lea", "mio",
    "nora", "otto", "pia",
)  # fmt: skip
_CUSTOMERS = 1_000
_TENANTS = ("bakery", "bookshop")
_CAMPAIGN = "advent"
_TEXTS = {
    "email": "Thank you for your order",
    "sms": "Your parcel arrives today",
    "push": "Something in your basket is on sale",
}
_FIRST = 300
_EVERY_SECONDS = 3.0
_BEFORE_THE_MAILING = timedelta(hours=3)
_DAY = timedelta(days=1).total_seconds()
_MAILING = 200


class FailingTransport(MemoryTransport):
    """A provider on a bad day: some sends fail, and of a few the outcome is unknown."""

    def send(self, message: Message) -> str | None:
        """Send, or fail: by the id, so that a message fares the same each time."""
        luck = message.id.bytes[-1] % 16
        if luck == 0:
            raise PerhapsSent("the line broke after the provider had it")
        if luck == 4:  # noqa: PLR2004 - one in sixteen
            raise PermanentFailure("550 the provider knows no such number")
        if luck < 4 and message.attempt_count < luck:  # noqa: PLR2004 - a fifth of them
            raise TemporaryFailure("503 the provider is overloaded")
        return super().send(message)


class Shop:
    """Submits what a shop submits. What quotas and quiet hours refuse is left out."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._luck = random.Random(7)  # noqa: S311 - a play

    def open(self) -> None:
        """Fill the next day."""
        for number in range(_FIRST):
            self._submit(
                self._luck.uniform(5, 90 if number % 6 == 0 else _DAY), customers=len(_REGULARS)
            )
        with suppress(DispatcherError):
            self._dispatcher.suppress("zoe@example.org")
            self._dispatcher.submit_many(_mailing())

    def run(self, stopped: Event) -> None:
        """Submit something every three seconds, most of it for soon, until the event is set."""
        while not stopped.wait(_EVERY_SECONDS):
            soon = self._luck.random() < 0.7  # noqa: PLR2004 - most of it
            self._submit(
                self._luck.uniform(3, 120) if soon else self._luck.uniform(120, _DAY),
                customers=len(_REGULARS) if self._luck.random() < 0.2 else _CUSTOMERS,  # noqa: PLR2004 - a fifth
            )

    def _submit(self, seconds: float, *, customers: int) -> None:
        channel = self._luck.choice(tuple(_TEXTS))
        with suppress(DispatcherError):
            self._dispatcher.submit(
                channel=channel,
                recipient=_recipient(channel, self._luck.randrange(customers)),
                body={"text": _TEXTS[channel]},
                send_in=timedelta(seconds=seconds),
                scopes={"tenant": self._luck.choice(_TENANTS)},
                campaign=_CAMPAIGN if channel == "email" else None,
                on_conflict="shift" if self._luck.random() < 0.5 else "reject",  # noqa: PLR2004 - half
            )


def _recipient(channel: str, number: int) -> str:
    """Return a customer; telephone numbers are those that Germany reserves for films."""
    if channel == "sms":
        return f"+49 30 23125 {number:03}"
    name = _REGULARS[number] if number < len(_REGULARS) else f"customer{number}"
    return f"{name}@example.com" if channel == "email" else name


def _mailing() -> list[Draft]:
    """Return mails for one time, more than their channel may send within that minute."""
    at = (datetime.now(UTC) + _BEFORE_THE_MAILING).replace(minute=0, second=0, microsecond=0)
    first = len(_REGULARS)
    return [
        Draft(
            channel="email",
            recipient=_recipient("email", number),
            body={"text": "Our candles are here"},
            send_at=at,
            scopes={"tenant": _TENANTS[number % len(_TENANTS)]},
            campaign=_CAMPAIGN,
        )
        for number in range(first, first + _MAILING)
    ]


def main() -> None:
    """Play it until Ctrl-C."""
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-shop-") as folder,
        environment(folder, **SETTINGS) as settings,
        Dispatcher(settings) as dispatcher,
        beside(page(dispatcher, access=Loopback(name="shop", rights=Right))) as address,
    ):
        shop = Shop(dispatcher)
        shop.open()
        print(f"page: {address} – Ctrl-C ends it", flush=True)  # noqa: T201 - a command
        shop.run(stopped)


if __name__ == "__main__":
    main()
