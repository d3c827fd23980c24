"""Pauses: nothing of a channel, recipient, campaign or another scope is sent until resumed."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.errors import InvalidValue, UnknownChannel, quoted
from dispatcher.message import (
    MAX_CAMPAIGN,
    MAX_RECIPIENT,
    Message,
    check_recipient,
    check_text,
    scope_name,
)
from dispatcher.settings import Settings
from dispatcher.store import (
    PAUSED_CAMPAIGN,
    PAUSED_CHANNEL,
    PAUSED_RECIPIENT,
    Pause,
    Pauses,
)


class PauseList:
    """Begins and ends pauses, and reads them."""

    def __init__(self, *, settings: Settings, pauses: Pauses) -> None:
        self._settings = settings
        self._pauses = pauses

    def pause(self, kind: str, name: str) -> None:
        """Begin a pause. Raises InvalidValue, UnknownChannel and StoreUnavailable.

        That of a recipient is stored in each spelling of the channels, too.
        """
        kind, name = self._checked(kind, name)
        for each in sorted(self._names(kind, name)):
            self._pauses.add(kind, each)

    def resume(self, kind: str, name: str) -> None:
        """End a pause, if there is one, in every spelling. Raises as :meth:`pause` does."""
        kind, name = self._checked(kind, name)
        names = self._names(kind, name)
        found = {each.name for each in self.in_force() if each.kind == kind}
        like = {each for each in found if not names.isdisjoint(self._names(kind, each))}
        for each in sorted(names | like):
            self._pauses.end(kind, each)

    def in_force(self) -> Sequence[Pause]:
        """Return the pauses, by kind and name. Raises StoreUnavailable."""
        return self._pauses.in_force()

    def of(self, message: Message) -> tuple[Pause, ...]:
        """Return the pauses that keep a message. Raises StoreUnavailable."""
        names = {
            **message.scopes,
            PAUSED_CHANNEL: message.channel,
            PAUSED_RECIPIENT: message.scope,
            PAUSED_CAMPAIGN: message.campaign,
        }
        return tuple(each for each in self.in_force() if names.get(each.kind) == each.name)

    def _checked(self, kind: str, name: str) -> tuple[str, str]:
        kinds = (PAUSED_CHANNEL, PAUSED_RECIPIENT, PAUSED_CAMPAIGN, *self._settings.scopes)
        kind = check_text("kind", kind)
        if kind not in kinds:
            raise InvalidValue("kind", f"there is no kind {quoted(kind)}", ", ".join(kinds))
        if kind == PAUSED_RECIPIENT:
            name = check_recipient(name, name="name")
        else:
            longest = MAX_CAMPAIGN if kind == PAUSED_CAMPAIGN else MAX_RECIPIENT
            name = check_text("name", name, longest=longest)
        if kind == PAUSED_CHANNEL and name not in self._settings.channels:
            raise UnknownChannel(name, sorted(self._settings.channels))
        return kind, name

    def _names(self, kind: str, name: str) -> set[str]:
        """Return the names under which it is stored: a recipient may have several spellings."""
        if kind != PAUSED_RECIPIENT:
            return {name}
        try:
            return {*map(scope_name, (name, *self._settings.spellings.all(name)))}
        except InvalidValue:  # no address but another scope; or its rule cannot be loaded here
            return {scope_name(name)}
