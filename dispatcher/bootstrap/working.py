"""What a worker does: it delivers, runs the duties of the sweep and gives signs of life."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement

from dispatcher.bootstrap.built import built_once
from dispatcher.bootstrap.submitting import Submitting
from dispatcher.celery_app import sweeps_every
from dispatcher.delivery import Delivery, Lanes
from dispatcher.delivery.send_log import SendLogs
from dispatcher.delivery.status_messages import StatusMessages
from dispatcher.delivery.sweep import Sweep
from dispatcher.delivery.ticks import Ticks
from dispatcher.store import Claims, Overdue, StoreUpkeep, Untold, overdue
from dispatcher.submission import CatchUp
from dispatcher.telemetry.liveness import Pulse
from dispatcher.transports import Transport, load


class Working(Submitting):
    """The parts for a worker. They stand on those for submitting: to catch up is to book again."""

    @built_once
    def transports(self) -> Mapping[str, Transport]:
        """The transport of each channel."""
        return {
            name: load(name, channel, self.settings)
            for name, channel in self.settings.channels.items()
        }

    @built_once
    def delivery(self) -> Delivery:
        """The use case of the worker."""
        return Delivery(
            settings=self.settings,
            clock=self.clock,
            claims=Claims(self.database, ttl=self.settings.claim_ttl, leaves=self._left),
            permits=self.permits,
            transports=self.transports,
            queue=self.queue,
            journal=self.journal,
            send_logs=self.send_logs,
            tracing=self.tracing,
        )

    @built_once
    def lanes(self) -> Lanes:
        """What keeps the channels apart in a worker."""
        return Lanes(self.delivery, at_once=self.settings.groups_at_once)

    @built_once
    def ticks(self) -> Ticks:
        """What begins the duties of the beat job in a worker."""
        return Ticks(self.clock, sweeps_every(self.settings))

    @built_once
    def sweep(self) -> Sweep:
        """The duties of the beat job."""
        return Sweep(
            settings=self.settings,
            clock=self.clock,
            store=StoreUpkeep(self.database, leaves=self._left),
            messages=self.messages,
            windows=self.upkeep,
            permits=self.permits,
            queue=self.queue,
            journal=self.journal,
            send_logs=self.send_logs,
        )

    @built_once
    def send_logs(self) -> SendLogs:
        """What tells which sends of a worker that died had begun."""
        return SendLogs(self.settings.data_dir.resolve() / f"sends.{self.settings.namespace}")

    @built_once
    def catch_up(self) -> CatchUp:
        """The duty of the beat job that ends or moves what is overdue."""
        store = Overdue(
            self.database,
            after=self.settings.overdue_after,
            expire=self.settings.caught_up_by("expire"),
            reslot=self.settings.caught_up_by("reslot"),
        )
        return CatchUp(
            settings=self.settings,
            store=store,
            moves=self.moves,
            handover=self.handover,
            journal=self.journal,
        )

    @built_once
    def status_messages(self) -> StatusMessages:
        """The duty of the beat job that tells those who asked what became of their messages."""
        name = self.settings.status_channel
        untold = None
        if name:
            tries = self.settings.channels[name].max_attempts
            untold = Untold(
                self.database,
                channel=name,
                max_attempts=tries,
                tells_errors=self.settings.status_errors,
            )
        return StatusMessages(untold=untold, channel=name, journal=self.journal)

    @built_once
    def pulse(self) -> Pulse:
        """What gives signs of life of this process."""
        return Pulse(lambda: self.signs, clock=self.clock)

    @property
    def _left(self) -> ColumnElement[bool] | None:
        """What is overdue and not to be sent late is left to the one who catches up."""
        ways = self.settings.caught_up_by("expire") + self.settings.caught_up_by("reslot")
        return overdue(self.database.tables, ways, self.settings.overdue_after) if ways else None
