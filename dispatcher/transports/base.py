"""What a transport must do and may do, how a channel's settings become one, and what it is asked.

A transport is imported when a channel names it, so its libraries are needed only where it is used.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Annotated, Any, Protocol, cast

from pydantic import ConfigDict, GetPydanticSchema, ValidationError, validate_call

from dispatcher.channel import ChannelSettings
from dispatcher.errors import (
    DeliveryError,
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    cut,
    needs,
    quoted,
)
from dispatcher.message import Body, Message
from dispatcher.settings import Settings, like, refusal

log = logging.getLogger(__name__)

Check = Callable[..., object]
Texts = Annotated[Collection[str], GetPydanticSchema(lambda _, read: read(list[str]))]
"""An option that lists texts: a list, a tuple or a set."""
checked = validate_call(
    config=ConfigDict(
        arbitrary_types_allowed=True, hide_input_in_errors=True, validate_by_name=True
    )
)
"""Lets pydantic check what a constructor is given, by its annotations. Raises ValidationError."""
GROUP = "dispatcher.transports"
"""The entry points by which distributions of others offer transports."""


SHIPPED: dict[str, tuple[str, str | None]] = {
    "console": ("dispatcher.transports.local:ConsoleTransport", None),
    "file": ("dispatcher.transports.local:FileTransport", None),
    "memory": ("dispatcher.transports.local:MemoryTransport", None),
    "smtp": ("dispatcher.transports.smtp:SmtpTransport", None),
    "webhook": ("dispatcher.transports.webhook:WebhookTransport", "webhook"),
    "apprise": ("dispatcher.transports.apprise:AppriseTransport", "apprise"),
}
"""Where each transport that ships is, and the extra that installs what it needs."""


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


def load(name: str, channel: ChannelSettings, settings: Settings) -> Transport:
    """Make the transport of the channel ``name``. Raises InvalidSettings."""
    transport = find(name, channel.transport)
    check_of(name, transport, channel.options)
    if inspect.isclass(transport):
        transport = _make(name, channel, settings, transport)
    elif channel.options:
        field = f"channels.{name}.options"
        raise InvalidSettings(field, "given for a transport that is no class", "none")
    if callable(getattr(transport, "send", None)):
        return cast("Transport", transport)
    if callable(transport):
        return cast("Transport", SimpleNamespace(send=transport))
    problem = f"{quoted(channel.transport)} is neither a transport nor a function"
    raise InvalidSettings(f"channels.{name}.transport", problem, accepted_names())


def find(name: str, text: str) -> Any:
    """Return the class, object or function that a channel names. Raises InvalidSettings."""
    field, transport = f"channels.{name}.transport", f"the transport {quoted(text)}"
    if text in SHIPPED:
        path, extra = SHIPPED[text]
        with needs(extra, field, what=transport) if extra else nullcontext():
            return resolve_name(path)
    module, colon, attribute = text.partition(":")
    offers = [] if colon else [*entry_points(group=GROUP, name=text)]
    if not offers and not (module and attribute):
        raise InvalidSettings(field, f"there is no transport {quoted(text)}", accepted_names())
    paths = sorted({offer.value for offer in offers})
    if len(paths) > 1:
        problem = f"{transport} is offered more than once: {', '.join(map(_origin, offers))}"
        raise InvalidSettings(field, problem, f"the one you mean, as in {paths[0]}")
    try:
        return offers[0].load() if offers else resolve_name(text)
    except Exception as error:
        origin = f", {_origin(offers[0])}" if offers else ""
        problem = f"cannot load {quoted(text)}{origin} ({cut(str(error))})"
        raise InvalidSettings(field, problem, accepted_names()) from error


def accepted_names() -> str:
    """Return what may stand in a channel's ``transport``, as of now."""
    offered = {offer.name for offer in entry_points(group=GROUP)} - SHIPPED.keys()
    names = ", ".join([*SHIPPED, *sorted(offered)])
    return f"{names}, or package.module:attribute of a callable or a class"


def _origin(offer: EntryPoint) -> str:
    return f"{offer.value} of {offer.dist.name if offer.dist else 'an unknown distribution'}"


def _make(
    name: str, channel: ChannelSettings, settings: Settings, factory: Callable[..., Any]
) -> Any:
    field = f"channels.{name}.options"
    options, parameters = dict(channel.options), inspect.signature(factory).parameters
    is_shipped = channel.transport in SHIPPED
    if channel.transport == "file":
        options.setdefault("path", settings.data_dir / "sent" / f"{name}.jsonl")
    if "timeout" in parameters:
        if "timeout" in options and is_shipped:
            problem = "timeout is no option of shipped transports"
            raise InvalidSettings(field, problem, "transport_timeout instead")
        options.setdefault("timeout", settings.transport_timeout.total_seconds())
    # Some have a name that no parameter can have, such as "from".
    names = [name.removesuffix("_") if is_shipped else name for name in parameters]
    strange = sorted(options.keys() - set(names))
    takes_any = any(option.kind is option.VAR_KEYWORD for option in parameters.values())
    if strange and not takes_any:
        accepted = like(strange[0], names)
        raise InvalidSettings(f"{field}.{strange[0]}", "there is no such option", accepted)
    try:
        return factory(**options)
    except (InvalidValue, ValidationError) as error:  # they name the option
        refused = refusal(error) if isinstance(error, ValidationError) else error
        field = f"{field}.{refused.field}"
        raise InvalidSettings(field, refused.problem, refused.accepted) from None
    except (TypeError, ValueError, OSError) as error:
        raise InvalidSettings(field, cut(str(error)), "what the transport takes") from error


def close_all(transports: Iterable[object]) -> None:
    """Close those that can be closed. What one of them raises keeps no other one open."""
    for transport in transports:
        close = getattr(transport, "close", None)
        if not callable(close):
            continue
        try:
            close()
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            log.warning("%s was not closed: %s", type(transport).__name__, type(error).__name__)


def check_of(channel: str, transport: Any, options: Mapping[str, Any]) -> Check | None:
    """Return the check of a transport. Raises InvalidSettings where it needs an instance."""
    check = getattr(transport, "check", None)
    if not callable(check):
        return None
    if inspect.isclass(transport):
        raw = inspect.getattr_static(transport, "check")
        if not isinstance(raw, staticmethod | classmethod):
            field, name = f"channels.{channel}.transport", transport.__name__
            problem = f"check() of {name} needs an instance, and a submit makes none"
            raise InvalidSettings(field, problem, "a static method or a classmethod")
    takes_options = "options" in inspect.signature(check).parameters
    return partial(check, options=options) if takes_options else check


class Checks:
    """Calls the ``check`` of a channel's transport, which is found but not made.

    So a process that only submits needs no secrets of the transport's. Where it cannot even import
    the transport, nothing is checked: the message is judged when it is sent.
    """

    def __init__(self, channels: Mapping[str, ChannelSettings]) -> None:
        self._channels = channels
        self._checks: dict[str, Check | None] = {}

    def __call__(self, channel: str, recipient: str, body: Body) -> None:
        """Raise InvalidDraft where the transport says that it could never send this."""
        if channel not in self._checks:
            self._checks[channel] = self._find(channel)
        check = self._checks[channel]
        try:
            if check is not None:
                check(recipient, body)
        except InvalidDraft:
            raise
        except InvalidValue as refused:
            raise InvalidDraft(refused.field, refused.problem, refused.accepted) from None
        except Exception as error:  # noqa: BLE001 - the code of a transport may raise anything
            # Its text may quote the body.
            kind = type(error).__name__
            log.error("transport check of channel %s raised %s", [channel], kind)  # noqa: TRY400 - same
            problem = f"the check of its transport raised {kind}"
            raise InvalidDraft("body", problem, "what the transport can send") from None

    def _find(self, channel: str) -> Check | None:
        known = self._channels.get(channel)
        if known is None:  # it was accepted under other settings
            return None
        try:
            return check_of(channel, find(channel, known.transport), known.options)
        except InvalidSettings as error:
            log.info("no transport checks drafts of channel %s: %s", [channel], error.problem)
            return None


@dataclass(frozen=True, slots=True)
class Probed:
    """The channels whose providers can be asked: those that answer, and why others do not.

    ``unmade`` says of which channels a worker with these settings cannot make the transport, and
    why.
    """

    answer: list[str] = field(default_factory=list)
    refuse: dict[str, str] = field(default_factory=dict)
    unmade: dict[str, str] = field(default_factory=dict)


def probe_all(settings: Settings) -> Probed:
    """Make every transport as a worker does, and probe it. Raises nothing of theirs."""
    probed = Probed()
    for name, channel in settings.channels.items():
        try:
            transport = load(name, channel, settings)
        except Exception as error:  # noqa: BLE001 - it may raise anything
            probed.unmade[name] = _reason(error, InvalidSettings)
            continue
        probe = getattr(transport, "probe", None)
        if callable(probe):
            try:
                probe()
            except Exception as error:  # noqa: BLE001 - as above
                probed.refuse[name] = _reason(error, DeliveryError)
            else:
                probed.answer.append(name)
        close_all([transport])
    return probed


def _reason(error: Exception, named: type[Exception]) -> str:
    """Return the text of an error of that kind; the texts of others may hold secrets."""
    return (isinstance(error, named) and str(error)) or type(error).__name__
