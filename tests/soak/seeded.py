"""The bugs that the soak, or a test, must catch: each as text of the package and its replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Text of a file and what stands there instead; ``old`` must be found exactly once."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        path = root / "dispatcher" / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            found = text.count(self.old)
            raise ValueError(f"{self.file} has {found} times what the bug replaces: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug. ``faults`` are the kinds of the soak that is to catch it; or ``test`` is."""

    name: str
    changes: Sequence[Change]
    faults: Sequence[str] = ()
    test: str = ""


def _one(file: str, old: str, new: str) -> list[Change]:
    return [Change(file=file, old=old, new=new)]


CALM = ("line.cut",)
REPEATED = ("broker.repeat", "reply.task", "broker.no-queues")

BUGS = (
    Bug(
        name="claim without a check of the status",
        changes=[
            Change(
                file="store/claims.py",
                old="these,\n            tables.has_status(Status.SCHEDULED),",
                new="these,\n            tables.has_status(Status.SCHEDULED, Status.SENDING),",
            ),
            Change(
                file="store/claims.py",
                old=".where(tables.has_status(Status.SCHEDULED))\n        .values(",
                new=".where(tables.has_status(Status.SCHEDULED, Status.SENDING))\n        .values(",
            ),
        ],
        faults=REPEATED,
    ),
    Bug(
        name="due judged by the worker alone",
        changes=[
            Change(
                file="store/claims.py",
                old="            messages.c.next_attempt_at <= later(_NOW, ahead),\n",
                new="",
            ),
            Change(
                file="store/claims.py",
                old="max(0.0, (row[_NEXT_ATTEMPT_AT] - row[-1]).total_seconds())",
                new="0.0",
            ),
        ],
        faults=REPEATED,
    ),
    Bug(
        name="expiry not checked",
        changes=[
            Change(
                file="store/claims.py",
                old="            or_(messages.c.expires_at.is_(None), messages.c.expires_at > _NOW),\n",
                new="",
            ),
            Change(
                file="delivery/sender.py",
                old="if claim.expires_in is not None and now - group.claimed_at >= claim.expires_in:",
                new="if claim is None:",
            ),
        ],
        faults=("worker.freeze", "line.refuse", "broker.no-queues", "redis.freeze"),
    ),
    Bug(
        name="windows used without an epoch",
        changes=_one(
            "reservation/lua/reserve.lua",
            "if redis.call('EXISTS', KEYS[2]) == 0 then\n  return {{'closed'}}\nend\n",
            "",
        ),
        faults=("redis.flush-all",),
    ),
    Bug(
        name="permits taken without an epoch",
        changes=_one(
            "limiters/lua/take_permits.lua",
            "if redis.call('EXISTS', KEYS[1]) == 0 then\n  return {'closed'}\nend\n",
            "",
        ),
        faults=("redis.flush-all",),
    ),
    Bug(
        name="permits not restored by a rebuild",
        changes=_one(
            "delivery/reconciler.py",
            "self._permits.restore(known, marker=rebuild.marker, marker_life=life)",
            "known.clear()",
        ),
        test="tests/acceptance/test_redis_faults.py::"
        "test_a_backlog_keeps_the_limits_though_redis_forgets_what_was_sent",
    ),
    Bug(
        name="what submits left behind is not looked for",
        changes=_one(
            "delivery/reconciler.py",
            "        in_batches(lambda at_most: self._settle_some(at_most, did, waiting))\n",
            "",
        ),
        faults=("client.kill", "redis.freeze", "line.refuse", "reply.script"),
    ),
    Bug(
        name="no rescue",
        changes=_one(
            "delivery/sweep.py", "in_batches(self._rescue)", "0"
        ),
        faults=("worker.kill",),
    ),
    Bug(
        name="nothing handed over a second time",
        changes=_one(
            "store/maintenance.py",
            "enqueue_at=later(due_from, grace.total_seconds()), enqueued_at=now",
            "enqueue_at=later(due_from, grace.total_seconds() + 9e6), enqueued_at=now",
        ),
        faults=("broker.no-queues", "reply.task", "worker.kill"),
    ),
    Bug(
        name="cancel judged by the rows it changed",
        changes=_one(
            "store/database.py",
            "                connection.execute(change)\n",
            "                if not connection.execute(change).rowcount:\n"
            "                    return []\n",
        ),
        faults=("reply.update", "store.terminate"),
    ),
    Bug(
        name="cancel without a check of the status",
        changes=_one(
            "store/messages.py",
            ".where(these, tables.has_status(Status.SCHEDULED))\n"
            "        .values(status=Status.CANCELLED.value",
            ".where(these, messages.c.claimed_by.is_(None))\n"
            "        .values(status=Status.CANCELLED.value",
        ),
        faults=CALM,
    ),
    Bug(
        name="update without a check of the status",
        changes=_one(
            "store/messages.py",
            ".where(messages.c.id == message_id, tables.has_status(Status.SCHEDULED))\n"
            "            .values(body=body)",
            ".where(messages.c.id == message_id)\n            .values(body=body)",
        ),
        faults=CALM,
    ),
    Bug(
        name="an insert without an answer counts as not done",
        changes=_one(
            "store/messages.py",
            "                unknown = fault.perhaps_done\n",
            "                raise StoreUnavailable('not done') from fault\n",
        ),
        faults=("reply.insert",),
    ),
    Bug(
        name="limits of channels off",
        changes=_one(
            "app.py",
            "            for name, each in self.settings.channels.items()\n",
            "            for name, each in self.settings.channels.items()\n            if not name\n",
        ),
        faults=("worker.freeze", "line.refuse", "broker.no-queues"),
    ),
    Bug(
        name="limits of scopes off",
        changes=_one(
            "app.py",
            "return [Limit(each.count, each.length_ms) for each in rolling]",
            "return [Limit(1_000, each.length_ms) for each in rolling]",
        ),
        faults=("worker.freeze", "broker.no-queues", "line.refuse"),
    ),
    Bug(
        name="permits counted from when they were taken, and not settled",
        changes=[
            Change(file="limiters/lua/take_permits.lua", old="local hold = tonumber(ARGV[1])",
                   new="local hold = 0"),
            Change(file="limiters/lua/settle_permits.lua", old="redis.call('ZADD'",
                   new="at and 0 or redis.call('ZADD'"),
        ],
        test="tests/delivery/test_delivery_limits.py",
    ),
    Bug(
        name="quota judged on one side",
        changes=[
            Change(
                file="reservation/lua/rule.lua",
                old="redis.call('ZCOUNT', window, '(' .. t - length, '(' .. t + length)",
                new="redis.call('ZCOUNT', window, '(' .. t - length, t)",
            ),
            Change(
                file="reservation/lua/rule.lua",
                old="'ZRANGEBYSCORE', window, '(' .. t - length, '(' .. t + length, 'WITHSCORES')",
                new="'ZRANGEBYSCORE', window, '(' .. t - length, t, 'WITHSCORES')",
            ),
        ],
        faults=CALM,
    ),
    Bug(
        name="places of cancelled and expired messages not freed",
        changes=_one(
            "delivery/reconciler.py",
            "            self._windows.release(self._reserved(places))\n",
            "",
        ),
        faults=("worker.freeze", "worker.kill", "redis.freeze"),
    ),
    Bug(
        name="a retry forgets its attempt",
        changes=_one(
            "store/changes.py",
            "                    next_attempt_at=later(_NOW, given(\"wait\")),\n"
            "                    enqueue_at=later(_NOW, given(\"enqueue\")),\n"
            "                    last_error",
            "                    attempt_count=messages.c.attempt_count - 1,\n"
            "                    next_attempt_at=later(_NOW, given(\"wait\")),\n"
            "                    enqueue_at=later(_NOW, given(\"enqueue\")),\n"
            "                    last_error",
        ),
        faults=CALM,
    ),
    Bug(
        name="a key with other content answered with the message",
        changes=_one(
            "submission/batch.py", "if fingerprint != valid.fingerprint:", "if not message:"
        ),
        faults=CALM,
    ),
    Bug(
        name="a log tells who is written to",
        changes=_one(
            "delivery/sender.py",
            'log.warning("message %s: its transport raised %s", message.id,',
            'log.warning("message %s: its transport raised %s", message.recipient,',
        ),
        faults=CALM,
    ),
    Bug(
        name="an e-mail without an answer counts as sent",
        changes=_one(
            "transports/smtp/connection.py",
            'raise PerhapsSent(f"{self._server}: {why}") from None',
            "return Reply(_OK, why)",
        ),
        faults=CALM,
    ),
    Bug(
        name="a webhook without an answer counts as not taken",
        changes=_one(
            "transports/webhook/transport.py",
            "raise PerhapsSent(how) from None",
            "raise TemporaryFailure(how) from None",
        ),
        faults=CALM,
    ),
    Bug(
        name="each try of an e-mail under an id of its own",
        changes=_one(
            "transports/smtp/mail.py",
            'f"<{message.id}@{sender.domain}>"',
            'f"<{message.id}-{message.attempt_count}@{sender.domain}>"',
        ),
        faults=CALM,
    ),
    Bug(
        name="reserve not idempotent",
        changes=_one(
            "reservation/lua/reserve.lua",
            "local known = redis.call('ZSCORE', window, id)",
            "local known = false",
        ),
        test="tests/reservation/test_faults.py",
    ),
    Bug(
        name="token not checked in the record",
        changes=_one(
            "store/changes.py",
            'messages.c.id == given("id"), messages.c.claim_token == given("token")',
            'messages.c.id == given("id"), given("token") == given("token")',
        ),
        test="tests/store/test_claims.py",
    ),
    Bug(
        name="a late success forgotten once another has claimed",
        changes=_one(
            "store/changes.py",
            'messages.c.claim_token >= given("token")',
            'messages.c.claim_token == given("token")',
        ),
        test="tests/store/test_claims.py",
    ),
    Bug(
        name="the rest of the claim not checked before the send",
        changes=_one(
            "delivery/sender.py",
            "is_ours = claim.message.id not in group.lost and group.ends_at - now >= self._timeout",
            "is_ours = bool(claim)",
        ),
        test="tests/delivery/test_delivery.py",
    ),
)  # fmt: skip
