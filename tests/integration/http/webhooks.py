"""Webhook transports for tests."""

from __future__ import annotations

from typing import Any

from dispatcher.transports.webhook import WebhookTransport
from tests.support.http_receiver import Receiver

LOOPBACK = ["127.0.0.0/8"]


def to(receiver: Receiver, **options: Any) -> WebhookTransport:
    """Return a transport whose channel has one URL."""
    return WebhookTransport(url=receiver.url, **{"http": True, "allow": LOOPBACK, **options})


def open_to(*ports: int, **options: Any) -> WebhookTransport:
    """Return a transport that posts to the recipients of messages."""
    return WebhookTransport(ports=ports, **{"http": True, "allow": LOOPBACK, **options})
