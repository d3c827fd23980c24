"""A certificate authority, receivers, and webhooks to them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import certifi
import pytest
import trustme

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


@dataclass(frozen=True)
class Authority:
    """Signs certificates; ``file`` is what those trust who trust it."""

    ca: trustme.CA
    file: str

    def server(self, *names: str) -> ssl.SSLContext:
        """Return what a server needs that is known by these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names).configure_cert(context)
        return context


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return Authority(ca, str(path))


@pytest.fixture(autouse=True)
def little_to_read(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the authority be all that is known here: reading hundreds of them takes 0.1 s."""
    monkeypatch.setattr(certifi, "where", lambda: authority.file)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
