"""Asks a channel's transport whether a message could be sent at all, before it is accepted."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dispatcher.channel import Channel
from dispatcher.errors import InvalidDraft, InvalidSettings, InvalidValue
from dispatcher.message import Body
from dispatcher.transports.registry import find

log = logging.getLogger(__name__)

Check = Callable[..., object]


class Checks:
    """Calls the ``check`` of a channel's transport, which is found but not made.

    So a process that only submits needs no secrets of the transport's. One whose check has a
    parameter ``options`` is given those that this process knows of the channel. Where it cannot
    even import the transport, nothing is checked: the message is judged when it is sent.
    """

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels = channels
        self._found: dict[str, Check | None] = {}

    def __call__(self, channel: str, recipient: str, body: Body) -> None:
        """Raise InvalidDraft where the transport says that it could never send this."""
        try:
            check = self._found[channel]
        except KeyError:
            check = self._found[channel] = self._find(channel)
        if check is None:
            return
        try:
            check(recipient, body)
        except InvalidDraft:
            raise
        except InvalidValue as refused:
            raise InvalidDraft(refused.field, refused.problem, refused.accepted) from None
        except Exception as error:  # noqa: BLE001 - the code of a transport may raise anything
            # Its text may quote the body.
            kind = type(error).__name__
            log.error("the check of channel %s raised %s", [channel], kind)  # noqa: TRY400 - same
            problem = f"the check of its transport raised {kind}"
            raise InvalidDraft("body", problem, "what the transport can send") from None

    def _find(self, channel: str) -> Check | None:
        known = self._channels.get(channel)
        if known is None:  # it was accepted under other settings
            return None
        try:
            check = check_of(channel, find(channel, known.transport))
        except InvalidSettings as error:
            log.info("nothing is checked for channel %s: %s", [channel], error.problem)
            return None
        if check is not None and takes(check, "options"):
            return partial(check, options=known.options)
        return check


def takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function or class has a parameter of that name."""
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some classes written in C show none
        return False


def check_of(channel: str, found: Any) -> Check | None:
    """Return the check of a transport that was found, None where it has none.

    Raises InvalidSettings for one that would need an instance.
    """
    check = getattr(found, "check", None)
    if check is None:
        return None
    if inspect.isclass(found):
        raw = inspect.getattr_static(found, "check")
        if not isinstance(raw, staticmethod | classmethod):
            field = f"channels.{channel}.transport"
            problem = f"the check of {found.__name__} needs an instance, and none is made to submit"
            raise InvalidSettings(field, problem, "a static method or a classmethod")
    return check if callable(check) else None
