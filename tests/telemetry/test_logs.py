"""Nothing that is said in a log, at any level, carries a body, a recipient or a secret."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import IdempotencyConflict, Message, QuotaExceeded, TemporaryFailure
from dispatcher.app import App
from dispatcher.errors import Unavailable
from dispatcher.limiters.permits import Permit
from tests.support.examining import doctor_for
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.http_receiver import receiving
from tests.support.mail import ScriptedServer
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer

BODY = "canary-body-4711"
RECIPIENT = "canary-recipient-4712"
SCOPE = "canary-scope-4713"
PASSWORD = "canary-password-4714"  # noqa: S105 - looked for where it must not be
SECRETS = (BODY, RECIPIENT, SCOPE, PASSWORD)
MINUTE = timedelta(minutes=1)


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


def leaks(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [
        f"{record.name}: {record.getMessage()} {record.exc_text or ''}" for record in caplog.records
    ]
    assert lines
    return [line for line in lines if any(secret in line for secret in SECRETS)]


@pytest.mark.every_database
def test_no_library_says_it_for_us_at_debug(
    build: Build, everything: pytest.LogCaptureFixture
) -> None:
    play(build(clock=hour_ago(), log_key=PASSWORD * 2))
    assert leaks(everything) == []
    named = [vars(record).get("recipient") for record in everything.records]
    assert any(named), "a line names its recipient, but by a digest"


def test_neither_mail_nor_webhooks_say_it_at_debug(
    build: Build, everything: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "whsec_" + base64.b64encode(f"{PASSWORD} and more".encode()).decode()
    address = f"{RECIPIENT}@example.org"
    script: dict[str, str | list[str]] = {
        "EHLO": "250-scripted\r\n250-AUTH PLAIN\r\n250 8BITMIME",
        "AUTH": "235 welcome",
        "RCPT": [f"451 not now, {address}", "250 ok", f"550 5.1.1 no {address}"],
    }
    with ScriptedServer(script) as mail, receiving() as receiver:
        smtp = {
            "url": f"smtp://{RECIPIENT}:{PASSWORD}@127.0.0.1:{mail.port}",
            "from": "Shop <mail@shop.example>",
        }
        hook = {
            "http": True, "allow": ["127.0.0.1"], "secrets": [secret], "ports": [receiver.port],
            "url": f"{receiver.url}?token={PASSWORD}",
        }  # fmt: skip
        channels = {
            "email": {"transport": "smtp", "options": smtp},
            "hook": {"transport": "webhook", "options": hook},
        }
        house = build(clock=hour_ago(), quotas="100/minute", channels=channels)
        body = {"subject": BODY, "text": BODY}
        mails = [house.submit(address, channel="email", body=body) for _ in range(3)]
        house.deliver(*mails)
        hooks = [house.submit(RECIPIENT, channel="hook", body=body) for _ in range(3)]
        for status, message in zip((500, 202, 410), hooks, strict=True):
            receiver.answers(status)
            house.deliver(message)
    assert len(mail.got) == 1
    assert [request.headers.get("webhook-id") for request in receiver.received]
    assert secret not in str([record.getMessage() for record in everything.records])
    assert leaks(everything) == []
    written = "".join(capfd.readouterr())
    assert not [secret for secret in SECRETS if secret in written], "not past the log either"


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


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_passwords_of_addresses_are_not_said(
    build: Build,
    postgres: PostgresServer,
    postgres_name: str,
    postgres_proxy: Proxy,
    everything: pytest.LogCaptureFixture,
) -> None:
    url = postgres.url(postgres_name, port=postgres_proxy.port)
    with_password = url.replace("postgres@", f"postgres:{PASSWORD}@")
    house = build(
        clock=hour_ago(),
        database_url=with_password,
        broker_url=f"redis://:{PASSWORD}@127.0.0.1:1/0",
    )
    house.submit("ada")
    postgres_proxy.refuse()
    postgres_proxy.cut_all()
    with pytest.raises(Exception, match="unavailable") as caught:
        house.submit("ben")
    assert PASSWORD not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert not [line for line in leaks(everything) if PASSWORD in line]
    assert PASSWORD not in repr(house.settings)
    assert PASSWORD not in repr(App(house.settings))
