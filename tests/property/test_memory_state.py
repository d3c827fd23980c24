"""The dispatcher in memory does what the one on Redis and PostgreSQL does, whatever is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dispatcher import Message, Settings
from dispatcher.times.send_time import to_ms
from tests.support.house_model import SETTINGS, Ask, asks, offsets, rooms
from tests.support.limiters import Clocked
from tests.support.memory_twins import Servers, Side, Twins
from tests.support.servers import PostgresServer, RedisServer
from tests.support.soak import ALL, SOAKING, examples, play

START = datetime(2026, 11, 26, 15, 50, tzinfo=UTC)
CHANNELS = SETTINGS["channels"]
_SETTINGS: dict[str, Any] = SETTINGS | {
    "shards": 1,
    "status_channel": "hooks",
    "channels": {
        "hooks": {"transport": "webhook", "options": {"payload": "body"}},
        "memory": CHANNELS["memory"]
        | {"limits": ["1/2 minute", "3/hour in Europe/Berlin"], "max_attempts": 3},
        "console": CHANNELS["console"]
        | {"limits": ["2/minute"], "concurrency": 1, "max_attempts": 2, "on_unknown": "hold",
           "backoff_base": 300},
    },
}  # fmt: skip
_PARTS, _STORIES = (20, examples(50)) if SOAKING or os.environ.get(ALL) else (1, 12)
"""Tests, which several processes share, and the stories that each plays."""
LENGTHS = [0, 1, 20, 60, 61, 600, 3_600, 3 * 86_400]
WAYS = ["temporary", "later", "closed", "permanent", "unknown", "strange"]
choices = st.integers(0, 1_000)
recipients = st.sampled_from(["ada", "ben"])
pauses = st.sampled_from(
    [
        ("channel", "memory"),
        ("recipient", "ada"),
        ("tenant", "acme"),
        ("channel", "console"),
        ("campaign", "summer"),
    ]
)
SOMETHING = precondition(lambda self: bool(self.known))


class TwinsMachine(RuleBasedStateMachine):
    """Everything that callers may ask, in any order, while time passes."""

    servers: Servers
    chosen: Settings

    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins(self.servers, self.chosen, START)
        self.known: list[UUID] = []

    def teardown(self) -> None:
        try:
            if not self.twins.is_broken:
                self.twins.ask(lambda side: side.travel.until_idle())
        finally:
            self.twins.close()

    @initialize(some=st.lists(asks, min_size=4, max_size=12))
    def submit_some(self, some: list[Ask]) -> None:
        self.submit_many(some, atomic=False)

    @rule(ask=asks)
    def submit(self, ask: Ask) -> None:
        self.learn([self.twins.ask(lambda side: _submitted(side, ask))])

    @rule(
        recipient=recipients,
        seconds=st.sampled_from(LENGTHS),
        campaign=st.sampled_from([None, "summer"]),
    )
    def submit_with_reports(self, recipient: str, seconds: int, campaign: str | None) -> None:
        answer = self.twins.ask(
            lambda side: side.dispatcher.submit(
                channel="console", recipient=recipient, body={"text": "hello"},
                send_in=timedelta(seconds=seconds), status_url="https://example.org/hook",
                campaign=campaign,
            )
        )  # fmt: skip
        self.learn([answer])

    @rule(some=st.lists(asks, max_size=5), atomic=st.booleans())
    def submit_many(self, some: list[Ask], *, atomic: bool) -> None:
        drafts = [each.draft(self.start) for each in some]
        answer = self.twins.ask(lambda side: side.dispatcher.submit_many(drafts, atomic=atomic))
        self.learn(answer if isinstance(answer, list) else [])

    @rule(some=st.lists(asks, max_size=4))
    def plan(self, some: list[Ask]) -> None:
        drafts = [each.draft(self.start) for each in some]
        self.twins.ask(lambda side: side.dispatcher.plan(drafts))

    @rule(ask=asks)
    def next_slot(self, ask: Ask) -> None:
        self.twins.ask(
            lambda side: side.dispatcher.next_slot(
                recipient=ask.recipient, channel=ask.channel, zone=ask.zone,
                scopes={"tenant": ask.tenant} if ask.tenant else None,
                quiet_hours=ask.quiet_hours,
            )
        )  # fmt: skip

    @rule(recipient=recipients)
    def timeline(self, recipient: str) -> None:
        self.twins.ask(lambda side: side.dispatcher.timeline(recipient, channel="memory"))

    @SOMETHING
    @rule(choice=choices)
    def cancel(self, choice: int) -> None:
        message_id = self.pick(choice)
        self.twins.ask(lambda side: side.dispatcher.cancel(message_id))

    @SOMETHING
    @rule(choice=choices, offset=offsets, room=st.one_of(st.none(), rooms))
    def reschedule(self, choice: int, offset: int, room: int | None) -> None:
        message_id, at = self.pick(choice), self.twins.now + timedelta(milliseconds=offset)
        shift: dict[str, Any] = {}
        if room is not None:
            shift = {"on_conflict": "shift", "latest": at + timedelta(milliseconds=room)}
        self.twins.ask(lambda side: side.dispatcher.reschedule(message_id, send_at=at, **shift))

    @SOMETHING
    @rule(picked=st.lists(choices, max_size=3), minutes=st.integers(1, 30))
    def reschedule_many(self, picked: list[int], minutes: int) -> None:
        ids = [self.pick(each) for each in picked]
        later = timedelta(minutes=minutes)
        self.twins.ask(lambda side: side.dispatcher.reschedule_many(ids, later=later))

    @SOMETHING
    @rule(picked=st.lists(choices, max_size=3))
    def cancel_many(self, picked: list[int]) -> None:
        ids = [self.pick(each) for each in picked]
        self.twins.ask(lambda side: side.dispatcher.cancel_many(ids))

    @SOMETHING
    @rule(choice=choices, word=st.sampled_from(["hello", "goodbye"]))
    def update(self, choice: int, word: str) -> None:
        message_id = self.pick(choice)
        self.twins.ask(lambda side: side.dispatcher.update(message_id, body={"text": word}))

    @SOMETHING
    @rule(choice=choices, call=st.sampled_from(["retry", "release", "drop", "get", "attempts"]))
    def decide(self, choice: int, call: str) -> None:
        message_id = self.pick(choice)
        self.twins.ask(lambda side: getattr(side.dispatcher, call)(message_id))

    @rule(call=st.sampled_from(["release", "release", "drop"]))
    def decide_on_held(self, call: str) -> None:
        for each in self.twins.memory.dispatcher.held():
            message_id = each.id
            self.twins.ask(lambda side: getattr(side.dispatcher, call)(message_id))  # noqa: B023

    @rule(perhaps_sent=st.booleans())
    def retry_failed(self, perhaps_sent: bool) -> None:
        failed = [each.id for each in self.twins.memory.dispatcher.select(status="failed")]
        self.twins.ask(lambda side: side.dispatcher.retry_many(failed, perhaps_sent=perhaps_sent))

    @SOMETHING
    @rule(choice=choices)
    def story(self, choice: int) -> None:
        message_id = self.pick(choice)
        self.twins.ask(lambda side: side.dispatcher.story(message_id))

    @rule(recipient=recipients, channel=st.sampled_from([None, "memory"]), again=st.booleans())
    def opt_out(self, recipient: str, channel: str | None, again: bool) -> None:
        self.twins.ask(lambda side: side.dispatcher.suppress(recipient, channel=channel))
        if again:
            self.twins.ask(
                lambda side: [tuple(each)[:2]
                              for each in side.dispatcher.unsuppress(recipient, channel=channel)]
            )  # fmt: skip

    @rule(what=pauses, again=st.booleans())
    def pause(self, what: tuple[str, str], again: bool) -> None:
        self.twins.ask(lambda side: side.dispatcher.pause(*what))
        if again:
            self.twins.ask(lambda side: side.dispatcher.resume(*what))

    @rule(what=pauses)
    def resume(self, what: tuple[str, str]) -> None:
        self.twins.ask(lambda side: side.dispatcher.resume(*what))

    @rule(
        status=st.sampled_from([None, "scheduled", "sent", "failed", "held"]),
        recipient=st.one_of(st.none(), recipients),
        overdue=st.booleans(),
        campaign=st.sampled_from([None, None, "summer"]),
    )
    def select(
        self, status: str | None, recipient: str | None, overdue: bool, campaign: str | None
    ) -> None:
        wanted: dict[str, Any] = {
            "status": status, "recipient": recipient, "campaign": campaign,
        }  # fmt: skip
        if overdue and status in (None, "scheduled"):
            wanted["overdue"] = True
        self.twins.ask(lambda side: side.dispatcher.counts(**wanted))
        self.twins.ask(lambda side: list(side.dispatcher.list(**wanted, limit=4)))

    @rule(recipient=recipients, way=st.sampled_from(WAYS), until=st.integers(1, 3))
    def fail(self, recipient: str, way: str, until: int) -> None:
        self.twins.failing[recipient] = (way, until)

    @rule(recipient=recipients)
    def fail_no_more(self, recipient: str) -> None:
        self.twins.failing.pop(recipient, None)

    @rule(seconds=st.sampled_from(LENGTHS))
    def travel(self, seconds: int) -> None:
        self.twins.ask(lambda side: side.travel(seconds=seconds))

    @rule()
    def until_idle(self) -> None:
        self.twins.ask(lambda side: side.travel.until_idle())

    @property
    def start(self) -> int:
        return to_ms(self.twins.now)

    def learn(self, results: list[Any]) -> None:
        self.known += [each.id for each in results if isinstance(each, Message)]

    def pick(self, choice: int) -> UUID:
        return self.known[-1 - choice % min(len(self.known), 8)]


def _submitted(side: Side, ask: Ask) -> Message:
    draft = ask.draft(to_ms(side.clock.now()))
    return side.app.submitter.submit(draft, side.app.own_transaction)


@pytest.fixture(scope="module")
def servers(
    redis_session: RedisServer, postgres: PostgresServer, postgres_template: str
) -> Iterator[Servers]:
    """Give a Redis and a PostgreSQL whose clocks tests move."""
    client = Clocked(unix_socket_path=str(redis_session.socket))
    client.flushall()
    made = Servers(client, postgres.url(postgres.create_database(postgres_template)))
    yield made
    made.close()


@pytest.mark.timeout(3_600 if SOAKING else 1_200)
@pytest.mark.parametrize("part", range(_PARTS))
def test_memory_does_what_redis_and_postgresql_do(part: int, servers: Servers) -> None:
    class Machine(TwinsMachine):
        pass

    Machine.servers = servers
    Machine.chosen = Settings.load(namespace="twins", **_SETTINGS)
    play(
        Machine,
        stories=_STORIES,
        steps=15,
        derandomize=False,  # else all parts would play the same stories
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        print_blob=True,
    )
