"""Signing after the Standard Webhooks specification (standardwebhooks.com), with its library."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable
from datetime import datetime

from standardwebhooks import Webhook

from dispatcher.errors import InvalidSettings, kind_of

_PREFIX = "whsec_"
_SHORTEST_KEY, _LONGEST_KEY = 24, 64
_ACCEPTED = (
    f"{_PREFIX} and {_SHORTEST_KEY} to {_LONGEST_KEY} random bytes in base64, "
    "one for each key that receivers may hold"
)


class Signer:
    """Signs with each of ``secrets``, so that receivers can change from one to the next.

    Raises InvalidSettings, which tells nothing of a secret.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        if isinstance(secrets, str) or not isinstance(secrets, list | tuple):
            raise InvalidSettings("secrets", kind_of(secrets), "a list")
        self._keys = [_key(each) for each in secrets]

    def headers(
        self, message_id: str, at: datetime, content: bytes, *, receiver: str | None
    ) -> dict[str, str]:
        """Return the headers of an attempt that begins ``at``; no signature without a secret.

        ``receiver`` is the URL whose own key signs, None where there is one receiver.
        """
        headers = {"webhook-id": message_id, "webhook-timestamp": str(int(at.timestamp()))}
        if self._keys:
            text = content.decode()
            keys = (key if receiver is None else _derived(key, receiver) for key in self._keys)
            signatures = (Webhook(key).sign(message_id, at, text) for key in keys)
            headers["webhook-signature"] = " ".join(signatures)
        return headers


def receiver_secret(secret: str, url: str) -> str:
    """Return what the receiver at ``url`` verifies with, where a channel has many receivers.

    ``secret`` is one of the channel's. None of them can sign for another. Raises InvalidSettings.
    """
    return _PREFIX + base64.b64encode(_derived(_key(secret), url)).decode()


def _derived(key: bytes, url: str) -> bytes:
    return hmac.digest(key, url.encode(), "sha256")


def _key(secret: object) -> bytes:
    if not isinstance(secret, str) or not secret.startswith(_PREFIX):
        raise InvalidSettings("secrets", f"one does not begin with {_PREFIX}", _ACCEPTED)
    text = secret.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSettings("secrets", "one is not in base64", _ACCEPTED) from None
    if not _SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise InvalidSettings("secrets", f"one holds {len(key)} bytes", _ACCEPTED)
    return key
