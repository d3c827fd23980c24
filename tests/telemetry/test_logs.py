"""Nothing that is said in a log, at any level, carries a body, a recipient or a secret."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import IdempotencyConflict, Message, QuotaExceeded, TemporaryFailure
from dispatcher.errors import Unavailable
from dispatcher.limiters import Permit
from tests.support.examining import doctor_for
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

BODY = "canary-body-4711"
RECIPIENT = "canary-recipient-4712"
SCOPE = "canary-scope-4713"
PASSWORD = "canary-password-4714"  # noqa: S105 - looked for where it must not be
MINUTE = timedelta(minutes=1)
SECRETS = (BODY, RECIPIENT, SCOPE, PASSWORD)


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Let every logger speak at DEBUG."""
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("celery").setLevel(logging.DEBUG)
        logging.getLogger("kombu").setLevel(logging.DEBUG)
        yield caplog
    for name in ("celery", "kombu"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def submit(house: House, minute: int, **more: Any) -> Message:
    at = house.clock.now() + minute * MINUTE
    return house.submit(RECIPIENT, **{"scope": SCOPE, "body": {"text": BODY}, "send_at": at} | more)


def play(house: House) -> None:
    """Submit, refuse, repeat, cancel, send, fail, retry, rescue, flush, reconcile, prune."""
    sent = submit(house, 0, idempotency_key="k")
    with pytest.raises(QuotaExceeded):
        submit(house, 0)
    with pytest.raises(IdempotencyConflict):
        submit(house, 0, idempotency_key="k", body={"text": BODY + BODY})
    house.dispatcher.cancel(submit(house, 1).id)
    failing = submit(house, 2)
    snoozed = submit(house, 3)
    house.deliver(sent, snoozed)

    def fail(message: Message) -> None:
        text = f"the provider refused {message.recipient} {message.body}"
        raise TemporaryFailure(text) if message.attempt_count == 1 else RuntimeError(text)

    house.memory.before = fail
    house.redis.flushall()
    house.deliver(failing)
    house.open()
    for _ in range(2):
        house.redis.delete(house.permit_keys(SCOPE).scope(SCOPE))
        house.change([failing], next_attempt_at=failing.send_at)
        house.deliver(failing)
    assert house.again(failing).attempt_count == 2
    house.parts.sweep.enqueue_due()
    house.parts.sweep.rescue()
    house.parts.sweep.prune()
    [*house.dispatcher.select(recipient=RECIPIENT)]
    with doctor_for(house.settings, clock=house.clock) as doctor:
        doctor.examine()


def leaks(caplog: pytest.LogCaptureFixture, *, of: str = "") -> list[str]:
    lines = [
        f"{record.name}: {record.getMessage()} {record.exc_text or ''}"
        for record in caplog.records
        if record.name.startswith(of)
    ]
    assert lines or of
    return [line for line in lines if any(secret in line for secret in SECRETS)]


@pytest.mark.every_database
def test_no_library_says_it_for_us_at_debug(
    build: Build, everything: pytest.LogCaptureFixture
) -> None:
    play(build(clock=hour_ago(), log_key=PASSWORD * 2))
    assert leaks(everything) == []
    named = [vars(each).get("recipient") for each in everything.records]
    assert any(named), "a line names its recipient, but by a digest"


def test_no_traceback_quotes_the_key_of_a_command_that_redis_refused(house: House) -> None:
    message = submit(house, 1)
    house.dispatcher.cancel(message.id)
    log = house.permit_keys(SCOPE).scope(SCOPE)
    for key in (house.keys(SCOPE).window(SCOPE), log):
        house.redis.set(key, "no sorted set")
    permit = Permit(message.id, 1, SCOPE, message.channel)
    house.change([message], reserved=True)
    for act in (house.parts.reconciler.reconcile, lambda: house.parts.permits.give_back([permit])):
        with pytest.raises(Unavailable, match="WRONGTYPE") as caught:
            act()
        assert SCOPE not in "".join(traceback.format_exception(caught.value))
