"""How the ``transport`` of a channel names one: a word that ships, an entry point, or a place.

Nothing is imported before it is named, so that what a transport needs is needed only by those who
use it.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from dispatcher.errors import InvalidSettings, cut, quoted

GROUP = "dispatcher.transports"
"""The entry points by which distributions of others offer transports."""


class _Shipped(NamedTuple):
    """Where a transport that ships is, and the extra that installs what it needs."""

    place: str
    extra: str | None = None


_SHIPPED = {
    "console": _Shipped("dispatcher.transports.console:ConsoleTransport"),
    "file": _Shipped("dispatcher.transports.file:FileTransport"),
    "memory": _Shipped("dispatcher.transports.memory:MemoryTransport"),
    "smtp": _Shipped("dispatcher.transports.smtp:SmtpTransport"),
    "webhook": _Shipped("dispatcher.transports.webhook:WebhookTransport", "webhook"),
    "apprise": _Shipped("dispatcher.transports.apprise:AppriseTransport", "apprise"),
}


def ships(text: str) -> bool:
    """Whether a transport of that name comes with the dispatcher."""
    return text in _SHIPPED


def find(name: str, text: str) -> Any:
    """Return what the channel ``name`` names as its transport: a class, an object or a function.

    Raises InvalidSettings.
    """
    field = f"channels.{name}.transport"
    shipped = _SHIPPED.get(text)
    if shipped is not None:
        return _shipped(field, text, shipped)
    if ":" not in text:
        return _offered(field, text)
    module, _, attribute = text.partition(":")
    if not module or not attribute:
        raise InvalidSettings(field, f"there is no transport {quoted(text)}", accepted())
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        problem = f"cannot load {quoted(text)} ({cut(str(error))})"
        raise InvalidSettings(field, problem, accepted()) from error


def accepted() -> str:
    """Return what may stand in a channel's ``transport``, as of now."""
    offered = {each.name for each in entry_points(group=GROUP)} - _SHIPPED.keys()
    names = ", ".join([*_SHIPPED, *sorted(offered)])
    return f"{names}, or package.module:attribute of a callable or a class"


def _shipped(field: str, text: str, shipped: _Shipped) -> Any:
    module, _, attribute = shipped.place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if shipped.extra is None:
            raise
        problem = f"the transport {quoted(text)} needs {error.name}, which is not installed"
        install = f"pip install 'dispatcher[{shipped.extra}]'"
        raise InvalidSettings(field, problem, f"it after {install}") from error


def _offered(field: str, text: str) -> Any:
    offers = list(entry_points(group=GROUP, name=text))
    if not offers:
        raise InvalidSettings(field, f"there is no transport {quoted(text)}", accepted())
    places = sorted({each.value for each in offers})
    if len(places) > 1:
        found = ", ".join(f"{each.value} of {_distribution(each)}" for each in offers)
        problem = f"the transport {quoted(text)} is offered more than once: {found}"
        raise InvalidSettings(field, problem, f"the one you mean, as in {places[0]}")
    try:
        return offers[0].load()
    except Exception as error:
        problem = f"cannot load {quoted(text)} of {_distribution(offers[0])} ({cut(str(error))})"
        raise InvalidSettings(field, problem, accepted()) from error


def _distribution(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist else "an unknown distribution"
