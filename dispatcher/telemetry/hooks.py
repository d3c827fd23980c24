"""Hooks: functions of the administrator's that are called with messages after transitions.

After the commit, on a thread of their own, at most once. Nothing that a hook does reaches a submit
or a delivery.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from dispatcher.errors import InvalidSettings, StoreUnavailable, load_named, quoted
from dispatcher.message import Message, Status
from dispatcher.telemetry.journal import Event, Transition
from dispatcher.telemetry.threads import Backlog

log = logging.getLogger(__name__)

_MOST_WAITING = 10_000
_AT_HAND = frozenset({Transition.SCHEDULED, Transition.RESCHEDULED})
"""Reported with the message that the statement returned: nothing is read."""
_RETRY = dict.fromkeys((Status.SCHEDULED, Status.SENDING), "on_retry")
_NAMES: dict[Transition, dict[Status, str]] = {
    Transition.SCHEDULED: dict.fromkeys(Status, "on_scheduled"),
    Transition.RESCHEDULED: dict.fromkeys(Status, "on_rescheduled"),
    Transition.ENQUEUED: dict.fromkeys(_RETRY, "on_enqueued"),
    Transition.SENT: {Status.SENT: "on_sent"},
    Transition.RETRIED: _RETRY,
    Transition.RELEASED: _RETRY,
    Transition.RESCUED: _RETRY,
    Transition.SNOOZED: dict.fromkeys(_RETRY, "on_snoozed"),
    Transition.FAILED: {Status.FAILED: "on_failed"},
    Transition.EXPIRED: {Status.EXPIRED: "on_expired"},
    Transition.CANCELLED: {Status.CANCELLED: "on_cancelled"},
    Transition.HELD: {Status.HELD: "on_held"},
}
"""The hook of a transition, by how the message stands if nothing has come of it since.

What was enqueued, or is to be tried again, may be on its way already.
"""
KNOWN = tuple(dict.fromkeys(name for names in _NAMES.values() for name in names.values()))

Read = Callable[[Sequence[UUID]], Iterable[Message]]


class Hooks:
    """Calls ``target.on_sent(message)`` and its like with messages as ``read`` returns them."""

    def __init__(self, target: object, *, read: Read) -> None:
        self._read = read
        self._calls = {
            name: getattr(target, name) for name in KNOWN if callable(getattr(target, name, None))
        }
        self._hooked = {
            kind
            for kind, names in _NAMES.items()
            if not self._calls.keys().isdisjoint(names.values())
        }
        self._backlog = Backlog("hooks", self._call_all, most=_MOST_WAITING)
        self.close = self._backlog.close

    def on_event(self, event: Event) -> None:
        """Call the hook of an event later, unless the message has changed again by then."""
        if event.kind in self._hooked and (event.kind not in _AT_HAND or event.message is not None):
            # A message that is read later is not kept until then: its body may be long.
            self._backlog.add(event if event.kind in _AT_HAND else event._replace(message=None))

    def _call_all(self, events: Sequence[Event]) -> None:
        unread = [event.message_id for event in events if event.kind not in _AT_HAND]
        try:
            read = {message.id: message for message in self._read(unread)} if unread else {}
        except StoreUnavailable as error:
            log.warning("hooks not called for %d messages: %s", len(unread), error)
            read = {}
        for event in events:
            message = event.message or read.get(event.message_id)
            name = "" if message is None else _NAMES[event.kind].get(message.status, "")
            if message is None or name not in self._calls:
                continue
            try:
                self._calls[name](message)
            except BaseException as error:  # noqa: BLE001 - code of others may raise anything
                kind = type(error).__name__  # its text may quote the body
                log.error("message %s: %s raised %s", message.id, name, kind)  # noqa: TRY400 - same


def find(text: str) -> Any:
    """Return what the setting ``hooks`` names; a class is called. Raises InvalidSettings."""
    accepted = f"package.module:attribute of a class or an object with some of {', '.join(KNOWN)}"
    target = load_named("hooks", text, accepted)
    if inspect.isclass(target):
        try:
            target = target()
        except Exception as error:
            problem = f"cannot load {quoted(text)} ({type(error).__name__})"
            raise InvalidSettings("hooks", problem, accepted) from error
    strange = {name for name in dir(target) if name.startswith("on_")} - {*KNOWN}
    if strange:
        raise InvalidSettings("hooks", f"{quoted(text)} has {', '.join(sorted(strange))}", accepted)
    if not any(callable(getattr(target, name, None)) for name in KNOWN):
        raise InvalidSettings("hooks", f"{quoted(text)} has none of them", accepted)
    return target
