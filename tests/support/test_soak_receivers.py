"""The receivers of a soak have what the transports that ship say that they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from dispatcher import Message
from dispatcher.errors import DeliveryError
from dispatcher.testing import a_message
from dispatcher.transports.base import Transport, close_all
from tests.soak.contents import EMAIL, PERSON, WEBHOOK, body_of, digest_of, people_of
from tests.soak.provider import Email, Webhook
from tests.soak.receivers import FATES, Receivers
from tests.support.history import History, read
from tests.support.judge import other_ids, strays, untrue_words
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

MANY = 300
SECONDS = 0.8
MAKE: Mapping[str, Callable[..., Transport]] = {EMAIL: Email, WEBHOOK: Webhook}


def messages(channel: str) -> list[Message]:
    return [
        a_message(
            id=uuid4(),
            channel=channel,
            recipient=people_of(channel)[number % 20],
            body=body_of(channel, f"a tag {number}"),
            attempt_count=number % 3 + 1,
        )
        for number in range(MANY)
    ]


@pytest.mark.parametrize("channel", MAKE)
def test_transports_tell_the_truth_of_what_receivers_have(channel: str, tmp_path: Path) -> None:
    said: list[str] = []
    sent = messages(channel)
    with Receivers(tmp_path / "receivers.jsonl", seed=6) as receivers:
        transport = MAKE[channel](
            path=str(tmp_path / "provider.jsonl"), timeout=SECONDS, **receivers.options()[channel]
        )

        def send(message: Message) -> None:
            try:
                transport.send(message)
            except DeliveryError as error:
                said.append(str(error))

        with ThreadPoolExecutor(16) as hands:
            list(hands.map(send, sent))
        close_all([transport])
        wait_until(lambda: sum("kept" in each for each in receivers.did) == len(FATES))
    history = History.of(
        line for name in ("provider", "receivers") for line in read(tmp_path / f"{name}.jsonl")
    )
    assert len(history.sends) == MANY
    assert {each.called and each.called["how"] for each in history.sends} == {
        "sent", "temporary", "permanent", "unknown",
    }  # fmt: skip
    for check in (untrue_words, strays, other_ids):
        assert list(check(history)) == []
    digests = {str(each.id): digest_of(channel, each.recipient, each.body) for each in sent}
    kept = [each for each in history.sends if each.accepted]
    assert kept
    assert all(each.end and each.end["digest"] == digests[each.id] for each in kept)
    assert said
    assert not [each for each in said if PERSON in each]
