"""What a transport must do and may do, and how a channel's settings become one."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from dispatcher.channel import Channel
from dispatcher.errors import InvalidSettings, cut, quoted
from dispatcher.message import Message
from dispatcher.settings import Settings
from dispatcher.transports import registry
from dispatcher.transports.checks import check_of, takes

log = logging.getLogger(__name__)


class Transport(Protocol):
    """Carries a channel's messages. One instance serves many threads at once.

    Beside ``send`` a transport may have:

    ``check(recipient, body)``
        A static method or a classmethod. It is called when a message is submitted, before anything
        is reserved, and raises InvalidDraft, naming ``recipient`` or ``body.…``, for what could
        never be sent. It connects to nothing. With a third parameter ``options`` it is given the
        channel's, as the submitting process knows them.
    ``destination(message)``
        Names what the message goes to: the host of a URL, the domain of an address; None where all
        messages of the channel go the same way. One that gives no answer then leaves senders to
        others. Called before ``send``, by many threads; it connects to nothing.
    ``probe()``
        Called by ``dispatcher doctor``, on an instance of its own that is closed after it. Asks the
        provider whether it is there and knows us, sends nothing, returns within some seconds, and
        raises TemporaryFailure or PermanentFailure, whose text says why not.
    ``close()``
        Called when a worker ends, after its last message was sent. May be called twice.

    A class whose parameters have a ``timeout`` is given ``settings.transport_timeout``, in seconds.
    """

    def send(self, message: Message) -> str | None:
        """Send ``message`` and return the provider's receipt, if it gives one.

        Must return within ``settings.transport_timeout``. ``message.id`` is the same on every
        try: pass it to the provider as idempotency key. Raises TemporaryFailure, PermanentFailure,
        or PerhapsSent where it is unknown whether the provider has it.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Function:
    function: Callable[[Message], str | None]

    def send(self, message: Message) -> str | None:
        return self.function(message)


def load(name: str, channel: Channel, settings: Settings) -> Transport:
    """Make the transport of the channel ``name``. Raises InvalidSettings."""
    found = registry.find(name, channel.transport)
    check_of(name, found)
    if inspect.isclass(found):
        found = _make(name, found, _options(name, channel, settings, found))
    elif channel.options:
        raise InvalidSettings(
            f"channels.{name}.options", "given for a transport that is no class", "none"
        )
    if callable(getattr(found, "send", None)):
        return cast("Transport", found)
    if callable(found):
        return _Function(found)
    problem = f"{quoted(channel.transport)} can not be called"
    raise InvalidSettings(f"channels.{name}.transport", problem, registry.accepted())


def close_all(transports: Iterable[object]) -> None:
    """Close those that can be closed. What one of them raises keeps no other one open."""
    for each in transports:
        close = getattr(each, "close", None)
        if not callable(close):
            continue
        try:
            close()
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            log.warning("%s was not closed: %s", type(each).__name__, type(error).__name__)


def _options(
    name: str, channel: Channel, settings: Settings, factory: Callable[..., Any]
) -> dict[str, Any]:
    """Return the options of a channel, with what the settings say elsewhere."""
    options = dict(channel.options)
    if channel.transport == "file":
        options.setdefault("path", settings.data_dir / "sent" / f"{name}.jsonl")
    if takes(factory, "timeout"):
        if "timeout" in options and registry.ships(channel.transport):
            problem = "a timeout, which is that of every transport"
            raise InvalidSettings(f"channels.{name}.options", problem, "transport_timeout instead")
        options.setdefault("timeout", settings.transport_timeout.total_seconds())
    return options


def _make(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> Any:
    _require_all(name, factory, options)
    try:
        return factory(**options)
    except InvalidSettings as error:  # the transport names the option itself
        field = f"channels.{name}.options.{error.field}"
        raise InvalidSettings(field, error.problem, error.accepted) from None
    except (TypeError, ValueError, OSError) as error:
        raise InvalidSettings(
            f"channels.{name}.options", cut(str(error)), "what the transport takes"
        ) from error


def _require_all(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a class without a signature that can be read
        return
    for each in parameters:
        may_be_named = each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}
        if may_be_named and each.default is each.empty and each.name not in options:
            raise InvalidSettings(
                f"channels.{name}.options.{each.name}", "is missing", "a value: it has no default"
            )
