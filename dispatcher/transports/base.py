"""The one method of a transport, and how a channel's settings become one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from dispatcher.channel import Channel
from dispatcher.errors import InvalidSettings
from dispatcher.message import Message
from dispatcher.settings import Settings
from dispatcher.transports.console import ConsoleTransport
from dispatcher.transports.file import FileTransport
from dispatcher.transports.memory import MemoryTransport

_ACCEPTED = "console, file, memory, or package.module:attribute of a callable or a class"


class Transport(Protocol):
    """Carries a channel's messages. One instance serves many threads at once."""

    def send(self, message: Message) -> str | None:
        """Hand ``message`` over and return the provider's receipt, if it gives one.

        Must return within ``settings.transport_timeout``. ``message.id`` is the same on every
        try: pass it to the provider as idempotency key. Raises TemporaryFailure or
        PermanentFailure.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Function:
    function: Callable[[Message], str | None]

    def send(self, message: Message) -> str | None:
        return self.function(message)


def load(name: str, channel: Channel, settings: Settings) -> Transport:
    """Make the transport of the channel ``name``. Raises InvalidSettings."""
    options = dict(channel.options)
    if channel.transport == "file":
        options.setdefault("path", settings.data_dir / "sent" / f"{name}.jsonl")
    builtin: dict[str, Callable[..., Transport]] = {
        "file": FileTransport,
        "console": ConsoleTransport,
        "memory": MemoryTransport,
    }
    if channel.transport in builtin:
        return cast(Transport, _make(name, builtin[channel.transport], options))
    found = _find(name, channel.transport)
    if inspect.isclass(found):
        found = _make(name, found, options)
    elif options:
        raise InvalidSettings(
            f"channels.{name}.options", "given for a transport that is no class", "none"
        )
    if callable(getattr(found, "send", None)):
        return cast("Transport", found)
    if callable(found):
        return _Function(found)
    raise InvalidSettings(
        f"channels.{name}.transport", f"{channel.transport!r} can not be called", _ACCEPTED
    )


def _find(name: str, text: str) -> Any:
    module, separator, attribute = text.partition(":")
    field = f"channels.{name}.transport"
    if not separator or not module or not attribute:
        raise InvalidSettings(field, f"there is no transport {text!r}", _ACCEPTED)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise InvalidSettings(field, f"cannot load {text!r} ({error})", _ACCEPTED) from error


def _make(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        return factory(**options)
    except (TypeError, ValueError, OSError) as error:
        raise InvalidSettings(
            f"channels.{name}.options", str(error), "what the transport takes"
        ) from error
