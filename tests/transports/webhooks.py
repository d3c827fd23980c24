"""Webhook transports for tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dispatcher.transports.webhook import WebhookTransport
from tests.support.http_receiver import Receiver

LOOPBACK = ["127.0.0.0/8"]
_NOT_HANGING = 3.0  # on a busy machine; what it guards against takes 5 s, 20 s or for ever


@contextmanager
def in_time() -> Iterator[None]:
    """Fail what does not end soon."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < _NOT_HANGING


def to(receiver: Receiver, **options: Any) -> WebhookTransport:
    """Return a transport whose channel has one URL."""
    return WebhookTransport(url=receiver.url, **{"http": True, "allow": LOOPBACK, **options})


def open_to(*ports: int, **options: Any) -> WebhookTransport:
    """Return a transport that posts to the recipients of messages."""
    return WebhookTransport(ports=ports, **{"http": True, "allow": LOOPBACK, **options})
