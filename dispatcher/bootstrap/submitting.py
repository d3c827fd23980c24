"""The use cases of those who submit, and change or end what was accepted."""

from __future__ import annotations

from dispatcher.bootstrap.built import built_once
from dispatcher.bootstrap.servers import Servers
from dispatcher.reservation import Bulk, Copies, Timelines
from dispatcher.store import BulkMessages, FailedMessages, HeldMessages, JoinedMessages
from dispatcher.submission import (
    BulkSubmission,
    Cancelling,
    Changes,
    Failed,
    Handover,
    Held,
    JoinedSubmission,
    Moves,
    Outlook,
    Planning,
    Submission,
    Suppressing,
)
from dispatcher.templating import Templates
from dispatcher.transports import Checks


class Submitting(Servers):
    """The parts for those who submit."""

    @built_once
    def checks(self) -> Checks:
        """What asks the transports about drafts."""
        return Checks(self.settings.channels)

    @built_once
    def templates(self) -> Templates:
        """What makes bodies of the channels' templates."""
        return Templates(
            self.settings.channels,
            max_bytes=self.settings.body_max_bytes,
            max_depth=self.settings.body_max_depth,
        )

    @built_once
    def submission(self) -> Submission:
        """The use cases of those who submit."""
        return Submission(
            settings=self.settings,
            clock=self.clock,
            windows=self.windows,
            messages=self.messages,
            suppressions=self.suppressions,
            handover=self.handover,
            check=self.checks,
            fill=self.templates.fill,
            journal=self.journal,
            tracing=self.tracing,
        )

    @built_once
    def joined(self) -> JoinedSubmission:
        """The use case of those who submit in a transaction of their own."""
        return JoinedSubmission(
            settings=self.settings,
            clock=self.clock,
            windows=self.windows,
            upkeep=self.upkeep,
            store=JoinedMessages(self.database),
            handover=self.handover,
            submission=self.submission,
            journal=self.journal,
            tracing=self.tracing,
        )

    @built_once
    def bulk(self) -> BulkSubmission:
        """The use case of those who submit by the thousand."""
        return BulkSubmission(
            settings=self.settings,
            clock=self.clock,
            bulk=Bulk(self.windows),
            store=BulkMessages(self.database),
            suppressions=self.suppressions,
            handover=self.handover,
            submission=self.submission,
            journal=self.journal,
            tracing=self.tracing,
        )

    @built_once
    def planning(self) -> Planning:
        """The use case of those who want to know before they submit."""

        def copies() -> Copies:
            return Copies(
                self.redis,
                self.rules,
                keys=self.fence.keys,
                under_way=self.settings.reconcile_grace * 2,
                clock=self.clock,
            )

        return Planning(
            settings=self.settings,
            clock=self.clock,
            copies=copies,
            store=BulkMessages(self.database),
            suppressions=self.suppressions,
            submission=self.submission,
        )

    @built_once
    def outlook(self) -> Outlook:
        """The use case of those who look before they submit."""
        timelines = Timelines(self.contents, self.windows, self.settings.quotas_of)
        return Outlook(settings=self.settings, clock=self.clock, timelines=timelines)

    @built_once
    def handover(self) -> Handover:
        """What hands a stored message to Celery at once."""
        return Handover(
            settings=self.settings, clock=self.clock, messages=self.messages, queue=self.queue
        )

    @built_once
    def moves(self) -> Moves:
        """What gives messages other times."""
        return Moves(
            settings=self.settings,
            clock=self.clock,
            windows=self.windows,
            messages=self.messages,
            handover=self.handover,
        )

    @built_once
    def changes(self) -> Changes:
        """The use cases of those who change what was accepted."""
        return Changes(
            settings=self.settings,
            clock=self.clock,
            messages=self.messages,
            suppressions=self.suppressions,
            moves=self.moves,
            handover=self.handover,
            check=self.checks,
            fill=self.templates.fill,
            journal=self.journal,
        )

    @built_once
    def cancelling(self) -> Cancelling:
        """The use case of those who cancel by the thousand."""
        return Cancelling(
            settings=self.settings,
            bulk=Bulk(self.windows),
            store=BulkMessages(self.database),
            journal=self.journal,
        )

    @built_once
    def suppressing(self) -> Suppressing:
        """The use cases of those who opt out."""
        return Suppressing(
            settings=self.settings, suppressions=self.suppressions, cancelling=self.cancelling
        )

    @built_once
    def held(self) -> Held:
        """The use cases of those who decide about unknown outcomes."""
        return Held(
            messages=self.messages,
            held=HeldMessages(self.database),
            suppressions=self.suppressions,
            journal=self.journal,
        )

    @built_once
    def failed(self) -> Failed:
        """The use case of those who try again what had failed."""
        return Failed(
            settings=self.settings,
            failed=FailedMessages(self.database),
            suppressions=self.suppressions,
            journal=self.journal,
        )
