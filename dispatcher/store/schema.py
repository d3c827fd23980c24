"""The tables, and messages as their rows.

The migrations build the tables; ``alembic check`` proves that both agree. They live beside those of
an application, so their names come from the settings; only values that do not depend on a name are
global.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, get_args
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

from dispatcher.message import (
    MAX_CAMPAIGN,
    MAX_EVENT,
    MAX_RECIPIENT,
    MAX_URL,
    Attempt,
    Message,
    OnUnknown,
    Outcome,
    Status,
    dump_json,
)
from dispatcher.store.engines.types import (
    Instant,
    Length,
    database_now,
    id_type,
    json_type,
    later,
    one_of,
    partial,
    where_partitioned,
)
from dispatcher.times.clock import to_length_ms
from dispatcher.times.zones import MAX_ZONE

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def _one_of(column: str, values: Iterable[str]) -> str:
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


NOTIFIED_STATUSES = (Status.SENT, Status.FAILED, Status.EXPIRED, Status.CANCELLED, Status.HELD)
"""The statuses that are reported to a status URL."""
NOTIFICATION_DUE = f"notified_status <> status AND {_one_of('status', NOTIFIED_STATUSES)}"
"""The condition that a report is due. ``notified_status`` is the status last reported.

It is ``scheduled`` before the first report, and NULL without a status URL.
"""
UNRELEASED = "reserved AND status IN ('cancelled', 'expired', 'void')"
"""The condition that a message does not need its reservation any more, and may still have it."""
UNSENT_STATUSES = (Status.FAILED, Status.EXPIRED, Status.CANCELLED)
UNSENT = _one_of("status", UNSENT_STATUSES)
"""The condition that a message has ended and was not sent: few are, so that they have an index."""

MAX_WISH = 64
MAX_DELAYED_BY = 255
"""Longest name of a limit that delays a message."""

MOST_ATTEMPTS = 32_767
"""What the column ``max_attempts`` holds."""

VOID = "void"
"""Status of a row that is no message: it keeps an id from being stored (``void_ids``).

It has no end, so that it lies with the live messages, where an id is unique; ``next_attempt_at`` is
when it became void.
"""

TAKEN_BACK = "its submit was refused: its reservation was lost while it was stored"
"""The ``last_error`` of a keyed message that its submit took back."""

AS_NAMED: Mapping[str, Any] = MappingProxyType({"schema_translate_map": None})
"""The execution options of statements on a connection that may be a caller's.

Whatever schemas its engine translates, the tables are those of the settings.
"""

CLOCK_STEP = timedelta(days=1)
"""How far clocks may be apart, or set back, where partitions of earlier days are not looked at."""

EVERY_CHANNEL = ""
"""Every channel, in a suppression: a primary key holds no NULL."""
PAUSED_CHANNEL, PAUSED_RECIPIENT = "channel", "recipient"
PAUSED_CAMPAIGN, PAUSED_EVENT = "campaign", "event"
"""The kinds of pauses besides the kinds of scopes of the settings."""


class _Index(NamedTuple):
    name: str
    columns: tuple[str, ...]
    where: str
    whole: tuple[str, ...]


# Where a database has no partial indexes they begin with the columns of the condition, or leave out
# NULL in a range (``whole``). Held messages are found there by the index of claims: they have none.
# Messages with a due report are found by ``unreleased``: no write pays for another index.
_PARTIAL = (
    _Index("enqueue_at", ("enqueue_at",), "status = 'scheduled'", ("status", "enqueue_at")),
    _Index(
        "claim_expires_at",
        ("claim_expires_at",),
        "status = 'sending'",
        ("status", "claim_expires_at"),
    ),
    _Index("finished_at", ("finished_at",), "finished_at IS NOT NULL", ("finished_at",)),
    _Index("unreleased", ("id",), UNRELEASED, ("status", "reserved", "notified_status")),
    _Index("held", ("id",), "status = 'held'", ()),
    _Index("void", ("next_attempt_at",), f"status = '{VOID}'", ()),
    _Index("notification_due", ("notified_status", "status", "id"), NOTIFICATION_DUE, ()),
    _Index("unsent", ("status", "id"), UNSENT, ()),
    _Index("campaign", ("campaign", "id"), "campaign IS NOT NULL", ("campaign", "id")),
    _Index("event", ("event", "id"), "event IS NOT NULL", ("event", "id")),
)


class Tables:
    """The tables by their names in one database, and the conditions that several modules share.

    ``prefix`` begins the name of each table, and so those of its constraints and indexes;
    ``schema`` is one of PostgreSQL's, None for the first one of the connection's ``search_path``.
    Without ``partial_indexes`` the database has none.
    """

    def __init__(self, prefix: str, schema: str | None, *, partial_indexes: bool) -> None:
        self.prefix = prefix
        self.schema = schema
        self.version = f"{prefix}alembic_version"
        """The table that holds the revision of the schema."""
        self.metadata = sa.MetaData(naming_convention=_NAMES, schema=schema)
        self.messages = messages = _messages(
            f"{prefix}messages", self.metadata, partial_indexes=partial_indexes
        )

        def table(name: str, *parts: SchemaItem) -> sa.Table:
            return sa.Table(f"{prefix}{name}", self.metadata, *parts)

        self.attempts = table(
            "attempts",
            sa.Column("message_id", id_type(), primary_key=True),
            sa.Column("token", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("started_at", Instant, nullable=False),
            sa.Column("finished_at", Instant),
            sa.Column("outcome", sa.String(9)),
            sa.Column("error", sa.Text),
            sa.Column("receipt", sa.Text),
            sa.CheckConstraint(_one_of("outcome", Outcome), name="outcome_known"),
            sa.CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="outcome_has_end"),
            sa.Index(f"ix_{prefix}attempts_finished_at", "finished_at"),
        )
        self.keys = table(
            "idempotency_keys",
            sa.Column("idempotency_key", sa.String(MAX_RECIPIENT), primary_key=True),
            sa.Column("message_id", id_type(), nullable=False),
            sa.Column("fingerprint", sa.String(64)),
        )
        self.suppressions = table(
            "suppressions",
            sa.Column("recipient", sa.String(MAX_RECIPIENT), primary_key=True),
            sa.Column("channel", sa.String(63), primary_key=True),
            sa.Column("created_at", Instant, nullable=False),
        )
        self.pauses = table(
            "pauses",
            sa.Column("kind", sa.String(63), primary_key=True),
            sa.Column("name", sa.String(MAX_RECIPIENT), primary_key=True),
            sa.Column("paused_at", Instant, nullable=False),
            sa.Column("resumed_at", Instant),
        )
        self.scope_settings = table(
            "scope_settings",
            sa.Column("kind", sa.String(63), primary_key=True),
            sa.Column("name", sa.String(MAX_RECIPIENT), primary_key=True),
            sa.Column("quotas", json_type(none_as_null=True)),
            sa.Column("limits", json_type(none_as_null=True)),
            sa.Column("changed_at", Instant, nullable=False, index=True),
        )
        self.events = table(
            "events",
            sa.Column("name", sa.String(MAX_EVENT), primary_key=True),
            # Another one whenever the event moves or is cancelled: it guards what is stored of it.
            sa.Column("token", sa.String(12), nullable=False),
            sa.Column("at", Instant),
            sa.Column("wish", sa.String(MAX_WISH)),
            sa.Column("zone", sa.String(MAX_ZONE)),
            sa.Column("cancelled_at", Instant),
            sa.Column("definition", json_type(none_as_null=True)),
            sa.Column("booked_until", Instant),
            sa.Column("due_at", Instant, index=True),
        )
        self.api_keys = table(
            "api_keys",
            sa.Column("id", sa.String(12), primary_key=True),
            sa.Column("name", sa.String(63), nullable=False),
            sa.Column("secret_digest", sa.String(64), nullable=False),
            sa.Column("rights", json_type(), nullable=False),
            sa.Column("channels", json_type(none_as_null=True)),
            sa.Column("scope_kind", sa.String(63)),
            sa.Column("scope_name", sa.String(MAX_RECIPIENT)),
            sa.Column("rate", sa.String(100)),
            sa.Column("created_at", Instant, nullable=False),
            sa.Column("expires_at", Instant),
            sa.Column("revoked_at", Instant),
            sa.Column("last_used_at", Instant),
            # The id of the key of that name that was the last before, '' for the first one: of two
            # calls that make a key of one name at the same time, one does.
            sa.Column("follows", sa.String(12), nullable=False),
            sa.UniqueConstraint("name", "follows"),
            sa.CheckConstraint(
                "(scope_kind IS NULL) = (scope_name IS NULL)", name="scope_is_whole"
            ),
        )
        self.sessions = table(
            "sessions",
            sa.Column("id", sa.String(64), primary_key=True),
            sa.Column("key_id", sa.String(12), nullable=False),
            sa.Column("created_at", Instant, nullable=False),
            sa.Column("expires_at", Instant, nullable=False),
        )
        self.message_columns = tuple(messages.c[name] for name in Message.__dataclass_fields__)
        """The columns of which a ``Message`` is made, in the order of its fields."""
        self.is_live = where_partitioned(messages.c.finished_at.is_(None))
        """Redundant beside the status of a live message: leads to its partition."""
        self.is_under_way = self.attempts.c.finished_at.is_(None).is_(sa.true())
        """An attempt without an end. No index fits: find attempts by their message's id."""
        self.has_ended = where_partitioned(messages.c.finished_at.is_not(None))
        """Redundant beside the status of an ended message: leads to the history's partitions."""
        self.is_message = messages.c.status != VOID
        self.is_void = messages.c.status == sa.literal_column(f"'{VOID}'")
        """The condition of the index of the same name."""
        self.stored = sa.select(*self.message_columns).where(self.is_message)
        """The query of messages."""
        self.movable = self.stored.add_columns(
            messages.c.move_token, messages.c.tail, database_now().label("read_at")
        )
        """The query whose rows ``to_movable`` reads."""
        self.of_id = self.stored.where(messages.c.id == sa.bindparam("of"))
        self.present = self.stored.with_only_columns(messages.c.id).where(self.has_id("values"))
        """The ids of ``values`` that messages have. The next two queries take ``values``, too."""
        has_key = one_of(self.keys.c.idempotency_key, "values")
        self.taken_keys = sa.select(self.keys.c.message_id).where(has_key)
        self.keyed = (
            sa.select(*self.message_columns, self.keys.c.fingerprint)
            .select_from(self.keys)
            .join(messages, messages.c.id == self.keys.c.message_id)
            .where(has_key)
        )
        """The query of the messages that have these idempotency keys."""
        self.is_scheduled = self.has_status(Status.SCHEDULED)
        self.is_notification_due: sa.ColumnElement[bool] = sa.literal_column(NOTIFICATION_DUE)
        self.is_unreleased: sa.ColumnElement[bool] = sa.literal_column(UNRELEASED)
        self.is_unsent: sa.ColumnElement[bool] = sa.literal_column(UNSENT)
        """The conditions of the indexes of the same names."""
        self.holds_no_reservation = messages.c.status.in_(
            [Status.CANCELLED.value, Status.EXPIRED.value, VOID]
        )
        self.is_prunable = sa.and_(
            ~sa.and_(self.holds_no_reservation, messages.c.reserved),
            sa.or_(
                messages.c.notified_status.is_(None),
                messages.c.notified_status == messages.c.status,
            ),
        )
        """Whether nothing that remains to be done needs the row of a message that has ended."""
        self.is_suppressed = self.suppressed(messages.c.recipient, messages.c.channel)
        """The condition that the recipient of a message has opted out."""
        names = (sa.bindparam(name, type_=sa.String()) for name in ("recipient", "channel"))
        self.opt_out = sa.select(self.suppressed(*names))
        """The query whether a recipient has opted out of a channel."""

    def has_id(self, ids: Sequence[UUID] | str) -> sa.ColumnElement[bool]:
        return one_of(self.messages.c.id, ids)

    def has_status(self, *statuses: Status) -> sa.ColumnElement[bool]:
        """Return the guard that a row has one of these statuses, for rows found by their id.

        No index fits it: PostgreSQL would read all scheduled messages where it expects few.
        """
        column = self.messages.c.status.concat("")
        known = sa.or_(*(column == status.value for status in statuses))
        may_have_ended = any(status.is_final for status in statuses)
        return known if may_have_ended else sa.and_(self.is_live, known)

    def is_plainly(self, status: Status) -> sa.ColumnElement[bool]:
        """Return the condition that a row has this status, so that its index is found.

        SQLite takes a partial index only where it sees the value.
        """
        return sa.and_(self.lies_with(status), self.is_in_index(status))

    def is_in_index(self, status: Status) -> sa.ColumnElement[bool]:
        return self.messages.c.status == sa.bindparam(None, status.value, literal_execute=True)

    def lies_with(self, status: Status) -> sa.ColumnElement[bool]:
        return self.has_ended if status.is_final else self.is_live

    def ended_since(self, memory: timedelta) -> sa.ColumnElement[bool]:
        """Return the condition that leads past the partitions of earlier days."""
        row, earliest = self.messages.c, later(database_now(), -memory - CLOCK_STEP)
        # Without IS true PostgreSQL 18 would leave out …_history_other too, whatever it holds.
        has_not_ended = row.finished_at.is_(None).is_(sa.true())
        return where_partitioned(sa.or_(has_not_ended, row.finished_at > earliest))

    def suppressed(
        self, recipient: sa.ColumnElement[str] | str, channel: sa.ColumnElement[str] | str
    ) -> sa.ColumnElement[bool]:
        row = self.suppressions.c
        return (
            sa.exists()
            .where(row.recipient == recipient, row.channel.in_([sa.literal_column("''"), channel]))
            .correlate_except(self.suppressions)
        )

    def paused(self, kinds: Iterable[str]) -> sa.ColumnElement[bool]:
        message, pause = self.messages.c, self.pauses.c
        names = {
            PAUSED_CHANNEL: message.channel,
            PAUSED_RECIPIENT: message.scope,
            PAUSED_CAMPAIGN: message.campaign,
            PAUSED_EVENT: message.event,
        } | {kind: message.scopes[kind].as_string() for kind in kinds}
        applies = sa.or_(
            *(sa.and_(pause.kind == kind, pause.name == names[kind]) for kind in names)
        )
        return sa.exists().where(pause.resumed_at.is_(None), applies).correlate_except(self.pauses)


@cache
def tables_named(prefix: str, schema: str | None, *, partial_indexes: bool = True) -> Tables:
    return Tables(prefix, schema, partial_indexes=partial_indexes)


_NOW = database_now()
_OF_MARIADB: dict[str, Any] = {"mysql_length": MAX_RECIPIENT, "mariadb_length": MAX_RECIPIENT}


def _messages(name: str, metadata: sa.MetaData, *, partial_indexes: bool) -> sa.Table:
    table = sa.Table(
        name,
        metadata,
        sa.Column("id", id_type(), primary_key=True),
        sa.Column("channel", sa.String(63), nullable=False),
        sa.Column("recipient", sa.String(MAX_URL), nullable=False),
        sa.Column("scope", sa.String(MAX_RECIPIENT), nullable=False),
        sa.Column("body", json_type(), nullable=False),
        sa.Column("send_at", Instant, nullable=False, default=_NOW),
        sa.Column("next_attempt_at", Instant, nullable=False, default=_NOW),
        sa.Column("enqueue_at", Instant, nullable=False, default=_NOW),
        sa.Column("expires_at", Instant),
        sa.Column("status", sa.String(9), nullable=False),
        sa.Column("attempt_count", sa.SmallInteger, nullable=False, default=0),
        sa.Column("max_attempts", sa.SmallInteger, nullable=False),
        sa.Column("claim_token", sa.Integer, nullable=False, default=0),
        sa.Column("claimed_by", id_type()),
        sa.Column("claim_expires_at", Instant),
        sa.Column("reserved", sa.Boolean, nullable=False, default=False),
        sa.Column("idempotency_key", sa.String(MAX_RECIPIENT)),
        sa.Column("created_at", Instant, nullable=False, default=_NOW),
        sa.Column("finished_at", Instant),
        sa.Column("last_error", sa.Text),
        sa.Column("scopes", json_type(none_as_null=True)),
        sa.Column("zone", sa.String(MAX_ZONE)),
        sa.Column("quiet_hours", sa.Text),
        sa.Column("on_unknown", sa.String(5), nullable=False, server_default="retry"),
        sa.Column("expire_after", Length),
        sa.Column("asked_at", Instant),
        sa.Column("move_token", sa.Integer, nullable=False, server_default="0"),
        sa.Column("tail", sa.String(8), nullable=False, server_default=""),
        sa.Column("status_url", sa.String(MAX_URL)),
        sa.Column("notified_status", sa.String(9)),
        sa.Column("trace", sa.String(55)),  # all that version 00 of a traceparent has
        sa.Column("enqueued_at", Instant),
        sa.Column("campaign", sa.String(MAX_CAMPAIGN)),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("delayed_by", sa.String(MAX_DELAYED_BY)),
        sa.Column("event", sa.String(MAX_EVENT)),
        sa.Column("wish", sa.String(MAX_WISH)),
        sa.CheckConstraint(_one_of("status", [*Status, VOID]), name="status_known"),
        sa.CheckConstraint("attempt_count >= 0 AND max_attempts >= 1", name="attempts_counted"),
        sa.CheckConstraint(
            "(status = 'sending') = (claim_expires_at IS NOT NULL AND claimed_by IS NOT NULL)",
            name="sending_has_claim",
        ),
        sa.CheckConstraint(
            "(status IN ('scheduled', 'sending', 'held', 'void')) = (finished_at IS NULL)",
            name="final_has_end",
        ),
        sa.CheckConstraint("expires_at IS NULL OR expires_at > send_at", name="expires_after_send"),
        sa.CheckConstraint(_one_of("on_unknown", get_args(OnUnknown)), name="on_unknown_known"),
        sa.CheckConstraint(
            "expire_after IS NULL OR (expire_after > 0 AND expires_at IS NOT NULL)",
            name="expire_after_has_expiry",
        ),
        sa.CheckConstraint(
            "(notified_status IS NULL) = (status_url IS NULL) AND "
            "(notified_status IS NULL OR "
            f"{_one_of('notified_status', [Status.SCHEDULED, *NOTIFIED_STATUSES])})",
            name="notified_status_known",
        ),
    )
    for index in _PARTIAL:
        if columns := index.columns if partial_indexes else index.whole:
            indexed = (table.c[column] for column in columns)
            sa.Index(f"ix_{name}_{index.name}", *indexed, **partial(index.where))
    # MariaDB's keys end at 3,072 bytes.
    sa.Index(f"ix_{name}_recipient", table.c.recipient, **_OF_MARIADB)
    return table


_LATER = ("finished_at", "last_error", "delayed_by")
_CONVERTED = ("body", "status", "scopes", "expire_after")
_UNCHANGED = tuple(
    name for name in Message.__dataclass_fields__ if name not in {*_LATER, *_CONVERTED}
)
_unchanged = attrgetter(*_UNCHANGED)
WRITTEN = (
    *_UNCHANGED, *_CONVERTED,
    "enqueue_at", "claim_token", "reserved", "status_url", "notified_status",
)  # fmt: skip
"""The columns of a new message, in the order in which they are written."""
KEYED = ("idempotency_key", "message_id", "fingerprint")
"""The columns of an idempotency key, in the order in which they are written."""


class Event(NamedTuple):
    """What messages remind of: when it is, ``zone`` and the local time that it was given in.

    ``token`` is another one whenever it is moved or cancelled.
    """

    name: str
    at: datetime
    zone: str | None = None
    wish: str | None = None
    cancelled_at: datetime | None = None
    token: str = ""


class Addition(NamedTuple):
    """A message to store, and from which message it takes its idempotency key over.

    With an ``event_token`` it is stored only while its event has that token; ``new_event`` is that
    event where none is stored yet.
    """

    message: Message
    enqueue_at: datetime
    fingerprint: str | None
    body_json: str
    status_url: str | None = None
    supersedes: UUID | None = None
    event_token: str | None = None
    new_event: Event | None = None


class Movable(NamedTuple):
    """A message as it was at ``read_at``, by the database's clock, and the guard of its move.

    ``token`` is another one whenever its time or its body changes, or its moves are barred.
    """

    message: Message
    token: int
    tail: str
    read_at: datetime


def to_values(addition: Addition) -> tuple[Any, ...]:
    """Turn a new message into the values of ``WRITTEN``, as psycopg takes them."""
    message, enqueue_at, _, body_json, status_url, *_ = addition
    return (
        *_unchanged(message),
        body_json, message.status.value, dump_json(message.scopes) if message.scopes else None,
        None if message.expire_after is None else to_length_ms(message.expire_after),
        enqueue_at, 0, True, status_url,
        None if status_url is None else Status.SCHEDULED.value,
    )  # fmt: skip


def to_row(addition: Addition) -> dict[str, Any]:
    message = addition.message
    return dict(zip(WRITTEN, to_values(addition), strict=True)) | {
        "body": message.body,
        "scopes": message.scopes or None,
        "expire_after": message.expire_after,
    }


def to_keyed(addition: Addition) -> tuple[Any, ...]:
    message = addition.message
    return message.idempotency_key, message.id, addition.fingerprint


def to_message(row: Sequence[Any]) -> Message:
    values = dict(zip(Message.__dataclass_fields__, row, strict=False))
    values["status"] = Status(values["status"])
    values["scopes"] = values["scopes"] or {}
    return Message(**values)


def to_movable(row: sa.Row[Any]) -> Movable:
    return Movable(to_message(row), row.move_token, row.tail, row.read_at)


def to_attempt(row: sa.Row[Any]) -> Attempt:
    values = dict(row._mapping)
    values["outcome"] = Outcome(values["outcome"]) if values["outcome"] else None
    return Attempt(**values)
