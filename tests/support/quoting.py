"""A transport that crashes and quotes all it knows, as careless ones do."""

from __future__ import annotations

from dispatcher.message import Message


class Quoting:
    """Raises at the first try of each message; takes the second."""

    def __init__(self, token: str) -> None:
        self._token = token

    def send(self, message: Message) -> str:
        if message.attempt_count == 1:
            raise RuntimeError(f"{self._token} {message.recipient} {dict(message.body)} {vars()}")
        return f"{self._token} {message.recipient}"
