"""The settings of a Django project, ``DISPATCHER = {…}``, as those of the dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.conf import settings as project
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy import URL

from dispatcher.errors import InvalidDraft, InvalidSettings, kind_of, quoted
from dispatcher.settings import Settings
from dispatcher.transports.mail import read_sender

NAME = "DISPATCHER"
_DATABASE, _EMAIL_CHANNEL = "database", "email_channel"
_OWN = "another database_url in DISPATCHER"
_OF_DJANGO = {
    "sqlite": {"timeout", "init_command", "transaction_mode", "check_same_thread"},
    "postgresql": {
        "pool", "isolation_level", "server_side_binding", "prepare_threshold", "cursor_factory",
        "client_encoding",
    },
    "mysql": {"charset", "init_command", "sql_mode", "isolation_level", "conv", "use_unicode"},
}  # fmt: skip
"""Options that concern Django's own connections: the dispatcher has values of its own."""


def load() -> Settings:
    """Return the settings: ``DISPATCHER``, then environment, then file. Raises InvalidSettings.

    Where none of these has a ``database_url`` it is that of Django's database.
    """
    alias = database_alias()
    if alias is None or "database_url" in without_djangos_database().model_fields_set:
        return _for_emails(Settings.load(**_of_dispatcher()))
    url = database_url(connections[alias])
    return _for_emails(Settings.load(**_of_dispatcher(), database_url=url))


def without_djangos_database() -> Settings:
    """Return the settings of :func:`load` without Django's database, and without a schema."""
    return _for_emails(Settings.load(**_of_dispatcher() | {"table_schema": ""}))


def senders() -> list[str]:
    """Return the addresses among the senders that Django's settings name."""
    named = []
    for text in (project.DEFAULT_FROM_EMAIL, project.SERVER_EMAIL):
        with suppress(InvalidDraft):
            read_sender(text)
            named.append(str(text))
    return named


def _for_emails(settings: Settings) -> Settings:
    """Let channels carry e-mails of Django's as Django would.

    Bodies by SMTP may name Django's senders, unless the channel says which; and the channel of the
    e-mails takes them without quotas, unless it has some.
    """
    channels = dict(settings.channels)
    for name, channel in channels.items():
        if channel.transport == "smtp":
            options = {"senders": senders()} | channel.options
            channels[name] = channel.model_copy(update={"options": options})
    emails = channels.get(email_channel())
    has_quotas = emails is not None and bool(emails.quotas or emails.recipient_quotas)
    if emails is not None and emails.without_quotas == "never" and not has_quotas:
        channels[email_channel()] = emails.model_copy(update={"without_quotas": "allowed"})
    return settings.model_copy(update={"channels": channels})


def is_in_memory_here() -> bool:
    """Whether Django's database is in memory, as in a test run. Raises InvalidSettings."""
    alias = database_alias()
    return alias is not None and is_in_memory(connections[alias])


def database_alias() -> str | None:
    """Return which of ``DATABASES`` has the tables; None if none has. Raises InvalidSettings."""
    alias: str | None = _given().get(_DATABASE, DEFAULT_DB_ALIAS)
    if alias is not None and alias not in connections.settings:
        raise InvalidSettings(
            f"{NAME}.{_DATABASE}", f"there is no {quoted(alias)} in DATABASES",
            f"one of {', '.join(connections.settings)}, or None",
        )  # fmt: skip
    return alias


def email_channel() -> str:
    """Return the channel of :class:`~dispatcher.django.EmailBackend`. Raises InvalidSettings."""
    name = _given().get(_EMAIL_CHANNEL, "email")
    if not isinstance(name, str):
        raise InvalidSettings(f"{NAME}.{_EMAIL_CHANNEL}", kind_of(name), "the name of a channel")
    return name


def is_in_memory(connection: BaseDatabaseWrapper) -> bool:
    """Whether it is an SQLite in memory, as in tests: only Django's own connection has it."""
    name = str(connection.settings_dict["NAME"])
    return connection.vendor == "sqlite" and (":memory:" in name or "mode=memory" in name)


def database_url(connection: BaseDatabaseWrapper) -> str:
    """Return the ``database_url`` of a database of Django's. Raises InvalidSettings."""
    entry, kind = connection.settings_dict, connection.vendor
    where = f"DATABASES.{connection.alias}"
    if kind not in _OF_DJANGO:
        accepted = f"SQLite, PostgreSQL, MariaDB, or {_OWN}"
        raise InvalidSettings(f"{where}.ENGINE", f"is {kind}", accepted)
    name = str(entry["NAME"])
    if kind == "sqlite" and (is_in_memory(connection) or name.startswith("file:")):
        accepted = f'the path of a file (for tests TEST = {{"NAME": …}}), or {_OWN}'
        raise InvalidSettings(f"{where}.NAME", "is no path of a file", accepted)
    query = _query(where, kind, entry.get("OPTIONS") or {})
    host = str(entry.get("HOST") or "")
    if host.startswith("/"):
        query["host" if kind == "postgresql" else "unix_socket"] = host
        host = ""
    url = URL.create(
        kind,
        username=entry.get("USER") or None,
        password=entry.get("PASSWORD") or None,
        host=host or None,
        port=int(entry["PORT"]) if entry.get("PORT") else None,
        database=name,
        query=query,
    )
    return url.render_as_string(hide_password=False)


def _query(where: str, kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    query = {name: value for name, value in options.items() if name not in _OF_DJANGO[kind]}
    for name, value in query.items():
        is_plain = isinstance(value, str | int) and not isinstance(value, bool)
        if name == "assume_role" or not is_plain:
            field, accepted = f"{where}.OPTIONS.{name}", f"no such option, or {_OWN}"
            raise InvalidSettings(field, "cannot be written into a URL", accepted)
    return {name: str(value) for name, value in query.items()}


def _of_dispatcher() -> dict[str, Any]:
    ours = (_DATABASE, _EMAIL_CHANNEL)
    return {name: value for name, value in _given().items() if name not in ours}


def _given() -> Mapping[str, Any]:
    settings = getattr(project, NAME, {})
    if not isinstance(settings, Mapping):
        raise InvalidSettings(NAME, kind_of(settings), "a dict of settings by their names")
    return settings
