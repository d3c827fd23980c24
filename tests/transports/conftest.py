"""A certificate authority, and receivers that it has signed for."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import certifi
import pytest
import trustme

from tests.support.http_receiver import Receiver, receiving


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


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one
