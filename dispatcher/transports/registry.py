"""How the ``transport`` of a channel names one: a shipped name, an entry point, an import path.

A transport is imported when a channel names it, so that its libraries are needed only where it is
used.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any, NamedTuple

from dispatcher.errors import InvalidSettings, cut, quoted
from dispatcher.extras import needs

GROUP = "dispatcher.transports"
"""The entry points by which distributions of others offer transports."""


class ShippedTransport(NamedTuple):
    """Where a transport that ships is, and the extra that installs what it needs."""

    path: str
    extra: str | None = None


SHIPPED = {
    "console": ShippedTransport("dispatcher.transports.local:ConsoleTransport"),
    "file": ShippedTransport("dispatcher.transports.local:FileTransport"),
    "memory": ShippedTransport("dispatcher.transports.local:MemoryTransport"),
    "smtp": ShippedTransport("dispatcher.transports.smtp:SmtpTransport"),
    "webhook": ShippedTransport("dispatcher.transports.webhook:WebhookTransport", "webhook"),
    "apprise": ShippedTransport("dispatcher.transports.apprise:AppriseTransport", "apprise"),
}


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
        raise InvalidSettings(field, f"there is no transport {quoted(text)}", accepted())
    paths = sorted({offer.value for offer in offers})
    if len(paths) > 1:
        names = ", ".join(f"{offer.value} of {_distribution(offer)}" for offer in offers)
        problem = f"{transport} is offered more than once: {names}"
        raise InvalidSettings(field, problem, f"the one you mean, as in {paths[0]}")
    try:
        return offers[0].load() if offers else resolve_name(text)
    except Exception as error:
        origin = f" of {_distribution(offers[0])}" if offers else ""
        problem = f"cannot load {quoted(text)}{origin} ({cut(str(error))})"
        raise InvalidSettings(field, problem, accepted()) from error


def accepted() -> str:
    """Return what may stand in a channel's ``transport``, as of now."""
    offered = {each.name for each in entry_points(group=GROUP)} - SHIPPED.keys()
    names = ", ".join([*SHIPPED, *sorted(offered)])
    return f"{names}, or package.module:attribute of a callable or a class"


def _distribution(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist else "an unknown distribution"
