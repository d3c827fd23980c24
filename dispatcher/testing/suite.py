"""A suite of tests that every transport must pass, and messages for tests of transports.

It needs no test framework.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from dispatcher.errors import DeliveryError, InvalidValue, kind_of
from dispatcher.message import Message, Status, new_id
from dispatcher.transports.base import Check, Transport, check_of

_AT = datetime(2100, 1, 1, 12, tzinfo=UTC)
_THREADS = 8
_EACH = 5
_GRACE_SECONDS = 1.0
_LONGEST_RECEIPT = 500


def a_message(**fields: Any) -> Message:
    """Return a message at its first attempt, with these fields.

    Each has a new id. By default ``recipient`` is ``ada``, ``body`` is ``{"text": "hello"}``.
    """
    recipient = fields.get("recipient", "ada")
    usual: dict[str, Any] = {
        "id": new_id(),
        "channel": "test",
        "recipient": recipient,
        "scope": recipient,
        "body": {"text": "hello"},
        "send_at": _AT,
        "next_attempt_at": _AT,
        "expires_at": None,
        "status": Status.SENDING,
        "attempt_count": 1,
        "max_attempts": 5,
        "idempotency_key": None,
        "created_at": _AT,
        "finished_at": None,
        "last_error": None,
    }
    return Message(**usual | fields)


class TransportSuite:
    """Tests of the contract of transports: make a subclass that makes your transport.

    ::

        class TestPigeons(TransportSuite):
            recipient = "loft 7"
            secrets = ("the code of the gate",)

            def make_transport(self):
                return Pigeons(code="the code of the gate")

    pytest finds the subclass, since its name begins with ``Test``; with another framework call
    :meth:`TransportSuite.run`. Only :meth:`make_transport` must be written.

    ``recipient`` and ``body`` are of a message that the transport can send; ``secrets`` are texts
    of its options that must stay secret. The other methods return nothing by default; then their
    tests check nothing.
    """

    recipient: str = "ada"
    body: Mapping[str, Any] = {"text": "hello"}
    secrets: Sequence[str] = ()
    options: Mapping[str, Any] = {}
    """The argument for a check with a parameter ``options``."""

    def make_transport(self) -> Transport:
        """Return a transport whose provider accepts everything."""
        raise NotImplementedError

    def make_failing(self) -> Iterable[Transport]:
        """Return transports whose providers refuse, cut the connection, or do not exist."""
        return ()

    def make_silent(self) -> tuple[Transport, float] | None:
        """Return a transport whose provider never answers, and its timeout in seconds."""
        return None

    def unsendable(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Return recipients and bodies that ``check`` must refuse."""
        return ()

    def keys_seen(self, transport: Transport) -> Sequence[str] | None:
        """Return the idempotency keys that the provider got, one a send; None without keys."""
        del transport
        return None

    def a_message(self, **fields: Any) -> Message:
        """Return a message that the transport can send."""
        return a_message(**{"recipient": self.recipient, "body": self.body} | fields)

    def test_it_answers_with_a_text_or_nothing(self) -> None:
        receipt = self._used(lambda transport: transport.send(self.a_message()))
        _see(receipt is None or isinstance(receipt, str), f"{kind_of(receipt)} as receipt")
        _see(
            len(receipt or "") <= _LONGEST_RECEIPT,
            f"a receipt of more than {_LONGEST_RECEIPT} characters",
        )

    def test_many_threads_share_it(self) -> None:
        def send_at_once(transport: Transport) -> list[str | None]:
            gate = threading.Barrier(_THREADS)

            def send(_: int) -> list[str | None]:
                gate.wait(30)
                return [transport.send(self.a_message()) for _ in range(_EACH)]

            with ThreadPoolExecutor(_THREADS) as pool:
                return [receipt for sent in pool.map(send, range(_THREADS)) for receipt in sent]

        receipts = self._used(send_at_once)
        _see(len(receipts) == _THREADS * _EACH, "messages without an answer")

    def test_a_repeated_message_can_be_told_by_its_key(self) -> None:
        def send_again(transport: Transport) -> Sequence[str] | None:
            first = self.a_message()
            transport.send(first)
            transport.send(replace(first, attempt_count=2))
            transport.send(self.a_message())
            return self.keys_seen(transport)

        keys = self._used(send_again)
        if keys is None:
            return
        _see(len(keys) == len("123"), f"{len(keys)} keys for three sends")
        _see(keys[0] == keys[1], "another key at the second attempt")
        _see(keys[0] != keys[2], "the same key for another message")

    def test_a_failure_has_a_name_and_tells_no_secret(self) -> None:
        """The transport raises only DeliveryErrors, whose texts quote neither body nor secrets."""
        for transport in self.make_failing():
            error = _raised(transport.send, self.a_message())
            _close(transport)
            _see(error is not None, "a failing provider, and nothing was raised")
            kind = type(error).__name__
            _see(isinstance(error, DeliveryError), f"{kind} was raised, which is no DeliveryError")
            self._see_no_secret(f"{error!s} {error!r}", kind)

    def test_a_silent_provider_is_left_in_time(self) -> None:
        """A send ends within the timeout, whatever the provider does."""
        made = self.make_silent()
        if made is None:
            return
        transport, timeout = made
        began = time.monotonic()
        error = _raised(transport.send, self.a_message())
        took = time.monotonic() - began
        _close(transport)
        _see(isinstance(error, DeliveryError), f"{error!r} from a provider that never answers")
        _see(took <= timeout + _GRACE_SECONDS, f"{took:.1f} s with a timeout of {timeout:g} s")

    def test_it_names_one_destination_or_none(self) -> None:
        def names(transport: Transport) -> list[object]:
            name_of = getattr(transport, "destination", lambda _: None)
            return [name_of(self.a_message()) for _ in range(2)]

        first, second = self._used(names)
        is_name = isinstance(first, str) and bool(first)
        _see(first is None or is_name, f"{kind_of(first)} as destination")
        _see(first == second, "another destination for the same recipient")

    def test_a_sendable_message_is_accepted(self) -> None:
        check = self._check()
        if check is not None:
            check(self.recipient, self.body)

    def test_an_unsendable_message_is_refused_at_submit(self) -> None:
        cases, check = list(self.unsendable()), self._check()
        if check is None:
            _see(not cases, "there is no check")
            return
        for recipient, body in cases:
            error = _raised(check, recipient, body)
            _see(error is not None, f"accepted: {recipient!r}, {body!r}")
            kind = type(error).__name__
            _see(isinstance(error, InvalidValue), f"{kind} instead of an InvalidDraft")
            field = getattr(error, "field", "")
            _see(field.split(".")[0] in ("recipient", "body"), f"the field {field!r}")
            _see(bool(getattr(error, "accepted", "")), "an error without accepted values")

    def test_it_can_be_closed_twice(self) -> None:
        transport = self.make_transport()
        transport.send(self.a_message())
        _close(transport)
        _close(transport)

    def test_it_shows_no_secret(self) -> None:
        transport = self.make_transport()
        self._see_no_secret(f"{transport!r} {transport!s}", "its repr")
        _close(transport)

    @classmethod
    def run(cls) -> None:
        """Run all tests. Raises the error of the first one that fails."""
        for name in dir(cls):
            if name.startswith("test_"):
                getattr(cls(), name)()

    def _used(self, act: Callable[[Transport], Any]) -> Any:
        transport = self.make_transport()
        try:
            return act(transport)
        finally:
            _close(transport)

    def _check(self) -> Check | None:
        transport = self.make_transport()
        _close(transport)
        return check_of("test", type(transport), self.options)

    def _see_no_secret(self, text: str, where: str) -> None:
        shown = [word for word in (*self.secrets, *_texts(self.body)) if word and word in text]
        _see(not shown, f"{where} shows {shown}")


def _texts(value: object) -> list[str]:
    """Return the texts of a body that are long enough to recognise."""
    if isinstance(value, str):
        return [value] if len(value) >= len("hello") else []
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    return []


def _raised(act: Callable[..., object], *arguments: object) -> BaseException | None:
    try:
        act(*arguments)
    except Exception as error:  # noqa: BLE001 - the tests examine it
        return error
    return None


def _close(transport: object) -> None:
    close = getattr(transport, "close", None)
    if callable(close):
        close()


def _see(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
