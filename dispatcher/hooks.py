"""Tells the code of the administrator's what became of messages.

After the transition is committed, on a thread of its own, at most once: what the process has not
told when it ends, or when more waits than it keeps, is told by nobody. Nothing that a hook does
reaches a submit or a delivery.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from dispatcher.errors import InvalidSettings, StoreUnavailable
from dispatcher.journal import Transition
from dispatcher.message import Message, Status

log = logging.getLogger(__name__)

_MOST_WAITING = 10_000
_LAST_WORDS_SECONDS = 2.0
_AT_ONCE = 500
_NAMES = {
    Status.SCHEDULED: "on_retry",
    Status.SENDING: "on_retry",  # it is being tried again already
    Status.SENT: "on_sent",
    Status.FAILED: "on_failed",
    Status.EXPIRED: "on_expired",
    Status.CANCELLED: "on_cancelled",
    Status.HELD: "on_held",
}
_ACCEPTED = "on_scheduled"
KNOWN = (_ACCEPTED, *dict.fromkeys(_NAMES.values()))
_AGAIN = frozenset({Status.SCHEDULED, Status.SENDING})
_STATUSES = {
    Transition.SENT: frozenset({Status.SENT}),
    Transition.FAILED: frozenset({Status.FAILED}),
    Transition.EXPIRED: frozenset({Status.EXPIRED}),
    Transition.CANCELLED: frozenset({Status.CANCELLED}),
    Transition.HELD: frozenset({Status.HELD}),
    Transition.RETRIED: _AGAIN,
    Transition.RELEASED: _AGAIN,
    Transition.RESCUED: _AGAIN,
}
"""How a message stands after a transition, if nothing has come of it since. Of others none hear."""

Read = Callable[[Sequence[UUID]], Iterable[Message]]


class _Event(NamedTuple):
    message_id: UUID
    accepted: Message | None
    statuses: frozenset[Status]


class Hooks:
    """Calls ``target.on_sent(message)`` and its like.

    ``read`` returns messages as they are stored. Shared by threads; after a fork make a new one.
    """

    def __init__(self, target: object, *, read: Read) -> None:
        self._read = read
        self._calls = {
            name: getattr(target, name) for name in KNOWN if callable(getattr(target, name, None))
        }
        self._waiting: deque[_Event] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._dropped = self._in_hand = 0

    def told(self, transition: Transition, message_id: UUID, message: Message | None) -> None:
        """Tell of a transition that is committed, if the message still stands as it left it."""
        statuses = _STATUSES.get(transition, frozenset())
        if transition is Transition.SCHEDULED and _ACCEPTED in self._calls:
            self._add(_Event(message_id, message, statuses))
        elif any(_NAMES[each] in self._calls for each in statuses):
            self._add(_Event(message_id, None, statuses))

    def close(self, timeout: float = _LAST_WORDS_SECONDS) -> None:
        """Tell what waits, for so many seconds at most."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
            if thread.is_alive():
                log.warning(
                    "hooks: %d messages are told of by nobody", len(self._waiting) + self._in_hand
                )

    def _add(self, event: _Event) -> None:
        with self._changed:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append(event)
            else:
                self._dropped += 1
            if self._thread is None and not self._is_ending:
                self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_ending:
                        return
                    self._changed.wait()
                self._in_hand = min(_AT_ONCE, len(self._waiting))
                some = [self._waiting.popleft() for _ in range(self._in_hand)]
                dropped, self._dropped = self._dropped, 0
            if dropped:
                log.warning("hooks: too slow; %d messages are told of by nobody", dropped)
            try:
                self._tell(some)
            except Exception as error:  # noqa: BLE001 - its thread must not end
                # Its text may quote a body.
                log.error("hooks: not told, %s", type(error).__name__)  # noqa: TRY400 - same

    def _tell(self, some: Sequence[_Event]) -> None:
        asked = [each.message_id for each in some if each.accepted is None]
        try:
            found = {each.id: each for each in self._read(asked)} if asked else {}
        except StoreUnavailable as error:
            log.warning("hooks: %d messages are told of by nobody: %s", len(asked), error)
            found = {}
        for event in some:
            if event.accepted is not None:
                self._call(_ACCEPTED, event.accepted)
            elif event.message_id in found:
                message = found[event.message_id]
                if message.status in event.statuses:
                    self._call(_NAMES[message.status], message)
            self._in_hand -= 1

    def _call(self, name: str, message: Message) -> None:
        call = self._calls.get(name)
        if call is None:
            return
        try:
            call(message)
        except BaseException as error:  # noqa: BLE001 - code of others may raise anything
            # Its text may quote the body.
            kind = type(error).__name__
            log.error("message %s: %s raised %s", message.id, name, kind)  # noqa: TRY400 - same


def find(text: str) -> Any:
    """Return what the setting ``hooks`` names; a class is called. Raises InvalidSettings."""
    accepted = f"package.module:attribute of a class or an object with some of {', '.join(KNOWN)}"
    module, _, attribute = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        target = found() if inspect.isclass(found) else found
    except Exception as error:
        problem = f"cannot load {text!r} ({type(error).__name__})"
        raise InvalidSettings("hooks", problem, accepted) from error
    strange = {name for name in dir(target) if name.startswith("on_")} - {*KNOWN}
    if strange:
        raise InvalidSettings("hooks", f"{text!r} has {', '.join(sorted(strange))}", accepted)
    if not any(callable(getattr(target, name, None)) for name in KNOWN):
        raise InvalidSettings("hooks", f"{text!r} has none of them", accepted)
    return target
