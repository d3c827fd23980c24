"""Reads of the page on a pool of their own, so that they never wait for a program's, nor it."""

from __future__ import annotations

from copy import copy

from dispatcher.app import App, built_once
from dispatcher.client import Dispatcher
from dispatcher.store import Database


class _Reading(App):
    """The parts of another ``App``, but those that read the store."""

    def __init__(self, whole: App) -> None:
        super().__init__(whole.settings, whole.clock)
        self._whole = whole
        # Their connections are not the store's, and a process has one journal.
        shared = ("fence", "redis", "plain_redis", "journal", "tracing", "checks", "templates")
        vars(self).update({name: getattr(whole, name) for name in shared})

    @built_once
    def database(self) -> Database:
        """The store, with few connections and a bound of a second for each statement."""
        return self._whole.page_database


def reading(dispatcher: Dispatcher) -> Dispatcher:
    """Return a dispatcher whose calls read the store on the pool for pages.

    Closing ``dispatcher`` closes that pool.
    """
    made = copy(dispatcher)
    made._app = _Reading(dispatcher._app)
    return made
