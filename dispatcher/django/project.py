"""The dispatcher of a Django project, which is built when a process first uses it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from threading import RLock
from typing import Any, NamedTuple

from django.core.signals import setting_changed
from django.db import connections

from dispatcher.client import Dispatcher, app_of
from dispatcher.django import configuration
from dispatcher.django.transactions import AtomicBlocks
from dispatcher.errors import InvalidDraft
from dispatcher.message import Draft, Message

_OF_CLIENT = frozenset(
    {"settings", "_app", "_threads", "_state_lock", "_is_closed", "_turns", "_joined", "_lent"}
)


class _Built(NamedTuple):
    """A client and the entry of ``DATABASES`` that it is built for."""

    database: Mapping[str, Any] | None
    client: Dispatcher
    blocks: AtomicBlocks | None


class ProjectDispatcher(Dispatcher):
    """A :class:`~dispatcher.Dispatcher` with the settings of the Django project.

    A :meth:`submit` inside ``transaction.atomic()`` joins that transaction; the other calls have
    their own, whatever is open. Each process builds its own, also after a fork; it is built anew
    where the project's database is another one, as in a test run. Raises InvalidSettings at the
    first use.
    """

    _built: _Built | None = None

    def __init__(self) -> None:
        self._building = RLock()

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_CLIENT:
            raise AttributeError(
                f"{type(self).__name__!r} has no attribute {name!r}", name=name, obj=self
            )
        if name == "settings" and configuration.is_in_memory_here():
            # A test run on SQLite in memory: MemoryDispatcher needs the settings and no database.
            return configuration.without_djangos_database()
        return getattr(self._present().client, name)

    def _present(self) -> _Built:
        """Return what is built for the present database.

        It locks only to build: close() waits, with the lock, for awaited calls that come by here.
        """
        alias = configuration.database_alias()
        database = None if alias is None else dict(connections.settings[alias])
        built = self._built
        if built is not None and built.database == database:
            return built
        with self._building:
            built = self._built
            if built is None or built.database != database:
                client = Dispatcher(configuration.load())
                if built is not None:
                    # Not client.close(): it waits for awaited calls, of which this may be one.
                    app_of(built.client).close()
                blocks = None if alias is None else AtomicBlocks(alias)
                self._built = built = _Built(database, client, blocks)
            return built

    @property
    def joins(self) -> bool:
        """Whether a submit would join a transaction of Django's now."""
        blocks = self._present().blocks
        return blocks is not None and blocks.is_open()

    def close(self) -> None:
        """Close the connections; the next use builds everything anew."""
        with self._building:
            built = self._built
            self.forget()  # before it is closed, so that no other call begins on it
        if built is not None:
            built.client.close()

    def forget(self) -> None:
        """Let go of everything without closing it: after a fork the parent has it open."""
        vars(self).clear()
        self._building = RLock()

    def submit_many(self, drafts: Iterable[Draft], **options: Any) -> Any:
        """Submit many drafts; inside ``transaction.atomic()`` it raises InvalidDraft."""
        if self.joins:
            accepted = "submit for each draft, or transaction.on_commit(lambda: submit_many(…))"
            raise InvalidDraft("submit_many", "does not join transaction.atomic()", accepted)
        return super().submit_many(drafts, **options)

    def _submit(self, draft: Draft, session: object) -> Message:
        blocks = self._present().blocks
        if session is not None or blocks is None:
            return super()._submit(draft, session)
        with blocks.joined() as joined:
            return super()._submit(draft, joined)


dispatcher = ProjectDispatcher()
os.register_at_fork(after_in_child=dispatcher.forget)


def _settings_changed(*, setting: str, **_: object) -> None:
    if setting in (configuration.NAME, "DATABASES"):
        dispatcher.close()


setting_changed.connect(_settings_changed, dispatch_uid="dispatcher.django")
