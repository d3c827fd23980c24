"""Known bugs that the soak, or a test, must catch: each replaces named attributes of the package.

``tests/simulation/bugs.py`` has those that the simulation catches. To run a module with a bug in
it: ``python -m tests.soak.seeded BUG MODULE [ARGUMENT ...]``.
"""

from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid5

from sqlalchemy import BinaryExpression, true
from sqlalchemy.sql.visitors import replacement_traverse

from dispatcher.errors import PerhapsSent, TemporaryFailure
from dispatcher.message import Status
from dispatcher.redis.scripts import Script
from dispatcher.store.claims import Failure
from dispatcher.transports.smtp import SmtpReply
from tests.simulation.bugs import without_key
from tests.support.planting import Seams, nothing, planted

Wrong = Callable[[Any], Any]


class Bug(NamedTuple):
    """A bug, and what must catch it: the soak by ``invariant``, with ``faults``; or ``test``.

    The bug is planted in the process of the test only, not in processes that the test starts.
    """

    seams: Seams
    invariant: str = ""
    faults: Sequence[str] = ("line.cut",)
    test: str = ""


def _also(*more: Status) -> Wrong:
    """Make a guard by status pass rows of these statuses as well."""

    def wrong(real: Any) -> Any:
        return lambda tables, *rest, **named: real(_loose(tables, *more), *rest, **named)

    return wrong


def _loose(tables: Any, *more: Status) -> Any:
    guard, loose = tables.has_status, copy(tables)
    loose.has_status = lambda *statuses: guard(*statuses, *more)
    loose.is_scheduled = guard(Status.SCHEDULED, *more)
    return loose


def _without(column: str) -> Wrong:
    """Replace every condition on a column by one that always holds."""

    def passes(element: Any, **_: Any) -> Any:
        is_on = isinstance(element, BinaryExpression) and element.left.key == column
        return true() if is_on else None

    def wrong(real: Any) -> Any:
        return lambda *arguments: replacement_traverse(real(*arguments), {}, passes)

    return wrong


def commands(lua: str, *scripts: str) -> Wrong:
    """Put ``lua`` before each Redis command of these scripts; it may answer instead of Redis.

    Raises FileNotFoundError where a script is gone.
    """
    shim = f"""local redis = setmetatable({{call = function(...)
      local word, key, low, high = ...
      {lua}
      return redis.call(...)
    end}}, {{__index = redis}})
    """

    def wrong(script: Any) -> Any:
        changed = {name: Script.of(shim + script(name).text) for name in scripts}
        return lambda name: changed.get(name) or script(name)

    return wrong


def _claimed_early(real: Any) -> Any:
    def claim(self: Any, message_ids: Any, **arguments: Any) -> Any:
        claims = real(self, message_ids, **arguments | {"ahead": timedelta(days=1)})
        return [replace(claim, due_in=0.0) for claim in claims]

    return claim


def _never_expired(real: Any) -> Any:
    return lambda self, claim, now: real(self, replace(claim, expires_in=None), now)


def _any_status(real: Any) -> Any:
    def changed(self: Any, *arguments: Any, **named: Any) -> Any:
        loose = copy(self)
        loose._tables = _loose(self._tables, *Status)
        return real(loose, *arguments, **named)

    return changed


def _any_content_recalled(_: Any) -> Any:
    return lambda valid, known: known.get(valid.idempotency_key, (None,))[0]


def _recipient_logged(real: Any) -> Any:
    def call(self: Any, transport: Any, claim: Any) -> Any:
        answer = real(self, transport, claim)
        if isinstance(answer, Failure):
            logging.getLogger("dispatcher").warning("could not send: %s", claim.message.recipient)
        return answer

    return call


def _where_unknown(answer: Callable[[str], Any]) -> Wrong:
    def wrong(real: Any) -> Any:
        def send(*arguments: Any) -> Any:
            try:
                return real(*arguments)
            except PerhapsSent as error:
                return answer(str(error))

        return send

    return wrong


def _refuse(reason: str) -> Any:
    raise TemporaryFailure(reason)


def _id_of_the_attempt(real: Any) -> Any:
    def compose(message: Any, **arguments: Any) -> Any:
        return real(replace(message, id=uuid5(message.id, str(message.attempt_count))), **arguments)

    return compose


def _taken_for_no_time(real: Any) -> Any:
    return lambda *arguments, **named: real(*arguments, **named | {"within": timedelta(0)})


def _without_reminders(real: Any) -> Any:
    def change(self: Any, name: str, decide: Any) -> Any:
        return real(self, name, lambda *present: decide(*present)._replace(moves=()))

    return change


_REPEATED = ("broker.repeat", "reply.task", "broker.no-queues")
_LATE = ("worker.freeze", "line.refuse", "broker.no-queues")
_FLUSHED = (
    "tests/delivery/test_delivery_faults.py::"
    "test_after_a_flush_permits_are_refused_until_the_sends_are_counted_again"
)
_CANCELS = (
    "tests/submission/test_change_many.py::"
    "test_what_a_worker_has_is_not_cancelled_before_it_puts_it_back"
)
_UPDATES = "tests/submission/test_templates.py::test_an_update_by_a_template_that_cannot_be_used"
_ONE_SIDED = """
if word == 'ZCOUNT' or word == 'ZRANGEBYSCORE' then
  if string.sub(low, 1, 1) == '(' and string.sub(high, 1, 1) == '(' then
    local middle = (string.sub(low, 2) + string.sub(high, 2)) / 2
    return redis.call(word, key, low, middle, select(5, ...))
  end
end"""

BUGS = {
    "claim without a check of the status": Bug(
        dict.fromkeys(["store.claims._claimable", "store.claims._take"], _also(Status.SENDING)),
        "I4",
        _REPEATED,
    ),
    "due judged by the worker alone": Bug(
        {"store.claims.Claims.claim": _claimed_early}, "I7", _REPEATED
    ),
    "expiry not checked": Bug(
        {
            "store.claims._claimable": _without("expires_at"),
            "delivery.group.Group._refusal": _never_expired,
        },
        "I7",
        (*_LATE, "redis.freeze"),
    ),
    "windows used without an epoch": Bug(
        {
            "reservation.shards.script": commands(
                "if word == 'EXISTS' and key == KEYS[2] then return 1 end", "reservation/reserve"
            )
        },
        "I3",
        ["redis.flush-all"],
    ),
    "permits taken without an epoch": Bug(
        {
            "limiters.permits.script": commands(
                "if word == 'EXISTS' and key == KEYS[1] then return 1 end", "limiters/take_permits"
            )
        },
        test=_FLUSHED,
    ),
    "permits not restored by a rebuild": Bug(
        {"limiters.permits.Permits.restore": nothing}, test=_FLUSHED
    ),
    "cancel without a check of the status": Bug(
        {"store.messages.Messages.cancel": _any_status}, test=_CANCELS
    ),
    "update without a check of the status": Bug(
        {"store.messages.Messages.update": _any_status}, test=_UPDATES
    ),
    "limits of channels off": Bug(
        {"app.App.channel_limits": lambda _: property(lambda _: {})}, "I3", _LATE
    ),
    "limits of scopes off": Bug(
        {"app.App.scope_limits": lambda _: property(lambda _: [])}, "I3", _LATE
    ),
    "permits counted from when they were taken, and not settled": Bug(
        {
            "limiters.permits.Permits.acquire": _taken_for_no_time,
            "limiters.permits.Permits.settle": nothing,
        },
        test="tests/delivery/test_delivery_limits.py::"
        "test_no_more_are_in_hand_than_a_channel_takes",
    ),
    "quota judged on one side": Bug(
        {
            "reservation.shards.script": commands(
                _ONE_SIDED, "reservation/reserve", "reservation/next_slot"
            )
        },
        "I3",
    ),
    "a key with other content answered with the message": Bug(
        dict.fromkeys(
            ["submission.sinks.recalled", "submission.pipeline.recalled"], _any_content_recalled
        ),
        "I8",
    ),
    "an event moved without its reminders": Bug(
        {"store.events.EventRows.change": _without_reminders}, "I19"
    ),
    "occurrences booked by passes at once, without keys": Bug(
        {
            "submission.series._LEASE": lambda _: timedelta(0),
            "submission.series.Occurring": without_key,
        },
        "I20",
    ),
    "a log tells the recipient": Bug({"delivery.group.Group._call": _recipient_logged}, "I15"),
    "an e-mail without an answer counts as sent": Bug(
        {"transports.smtp.SmtpConnection.deliver": _where_unknown(partial(SmtpReply, 250))},
        "I17",
    ),
    "a webhook without an answer counts as not taken": Bug(
        {"transports.webhook.WebhookTransport._post": _where_unknown(_refuse)}, "I17"
    ),
    "each attempt of an e-mail under an id of its own": Bug(
        {"transports.smtp.compose": _id_of_the_attempt}, "I8"
    ),
    "reserve not idempotent": Bug(
        {
            "reservation.shards.script": commands(
                "if word == 'ZSCORE' then return false end", "reservation/reserve"
            )
        },
        test="tests/reservation/test_faults.py::test_calls_that_come_twice_book_and_release_once",
    ),
}

if __name__ == "__main__":
    _, bug, *sys.argv = sys.argv
    with planted(BUGS[bug].seams):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
