"""The send of one message: may it still be sent, what did the transport say, when to try again."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from datetime import timedelta

from dispatcher.delivery.group import NO_WAIT, EndedSend, Group, Report, Shared
from dispatcher.errors import LimitersUnavailable, PerhapsSent, PermanentFailure, TemporaryFailure
from dispatcher.faults import fault
from dispatcher.message import Outcome, storable_text
from dispatcher.store.claims import Claim, Failure, Success
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

_LONGEST_WAIT = timedelta(days=366)
_IN_TIME = 0.5
"""Share of the timeout after which a send that failed had no answer in time."""


class Sender:
    """Several threads may send by one at once."""

    def __init__(self, transport: Transport, shared: Shared) -> None:
        self._transport = transport
        self._shared = shared
        self._timeout = shared.settings.transport_timeout.total_seconds()

    def send(self, group: Group, claim: Claim) -> bool | None:
        """Send a message of a group if it still may be sent, and report what came of it.

        Return whether its destination answered in time, None where nothing was sent. After anything
        but an ``Exception`` of the transport no other message of the group is sent.
        """
        report: Report
        try:
            report = self._try_send(group, claim)
        except BaseException as error:  # noqa: BLE001 - the thread that leads the group raises it
            report = error
        group.report(claim, report)
        return report.in_time if isinstance(report, EndedSend) else None

    def _try_send(self, group: Group, claim: Claim) -> EndedSend | timedelta:
        clock = self._shared.clock
        fault("deliver.before_send")
        wait = group.refusal(claim, clock.monotonic())
        if wait is None and not group.begin(claim):
            wait = NO_WAIT
        if wait is not None:
            return wait
        fault("deliver.after_begin")
        now = clock.monotonic()
        wait = group.refusal(claim, now)  # the note may have waited for a slow disk
        if wait is not None:
            return wait
        record = self._call_transport(group, claim)
        fault("deliver.after_send")
        # Counted at its end: a send is never later than that, so never counted too early.
        ended_at = clock.monotonic()
        late_by = now - group.received_at + claim.late_by
        in_time = isinstance(record, Success) or ended_at - now < self._timeout * _IN_TIME
        return EndedSend(record, ended_at, late_by, in_time)

    def _call_transport(self, group: Group, claim: Claim) -> Success | Failure:
        spans = self._shared.spans
        record: Success | Failure
        with nullcontext() if spans is None else spans.delivering(claim.message) as came_to:
            try:
                receipt = self._transport.send(claim.message)
            except Exception as error:  # noqa: BLE001 - a transport may raise anything
                record = self._failure(group, claim, error)
            else:
                record = Success(claim, None if receipt is None else storable_text(receipt))
            if came_to is not None:
                came_to(record.outcome, record.error_type if isinstance(record, Failure) else None)
        return record

    def _failure(self, group: Group, claim: Claim, error: Exception) -> Failure:
        message, kind = claim.message, type(error).__name__
        text = storable_text(f"{kind}: {storable_text(error)}")
        outcome, asked, counts = Outcome.UNKNOWN, NO_WAIT, True
        match error:
            case PermanentFailure():
                return Failure(claim, Outcome.PERMANENT, text, None, kind)
            case TemporaryFailure():
                outcome = Outcome.TEMPORARY
                if isinstance(error.retry_after, timedelta):
                    asked = min(max(error.retry_after, NO_WAIT), _LONGEST_WAIT)
                if error.closes_channel and asked:
                    # It says nothing of the message, so it uses up none of its attempts.
                    counts = False
                    self._close(group, message.channel, asked)
            case PerhapsSent():
                ...
            case _:  # it may be with the provider: a line that broke, say
                log.warning(
                    "message %s: its transport raised %s, none of TemporaryFailure, "
                    "PermanentFailure and PerhapsSent; its outcome is unknown", message.id, kind,
                )  # fmt: skip
        wait = None
        if message.attempt_count < message.max_attempts or not counts:
            channel = self._shared.settings.channels[message.channel]
            wait = asked + backoff(
                message.attempt_count,
                base=channel.backoff_base,
                longest=channel.backoff_longest,
                jitter=self._shared.jitter(),
            )
        return Failure(claim, outcome, text, wait, kind, counts)

    def _close(self, group: Group, channel: str, wait: timedelta) -> None:
        """Send nothing more on the channel until its provider wants to be asked."""
        group.close(channel, self._shared.clock.monotonic() + wait.total_seconds())
        try:
            self._shared.permits.close(channel, wait)
        except LimitersUnavailable as error:
            log.warning("could not close channel %s to other workers: %s", channel, error)


def backoff(attempt: int, *, base: timedelta, longest: timedelta, jitter: float) -> timedelta:
    """Return the wait after attempt number ``attempt`` (from 1). ``jitter`` is 0 to 1, random.

    Full jitter spreads a herd that failed together better than any narrower one (M. Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    ceiling: timedelta = min(base * (1 << min(attempt - 1, 32)), longest)
    return ceiling * jitter
