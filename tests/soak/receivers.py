"""A mail server and a web server that keep a ledger outside the system, and misbehave by a seed.

What they write down is ``accept`` and ``decline`` of a history, before they answer: whatever the
other side hears of it, they know what they have.
"""

from __future__ import annotations

import email
import email.policy
import json
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

from tests.soak.contents import EMAIL, WEBHOOK, digest_of, tag_of
from tests.soak.provider import ATTEMPT, PROCESS
from tests.support.history import Recorder
from tests.support.http_receiver import Handler, pause, receiving
from tests.support.mail import CLOSE, HANG, ScriptedServer

TEMPORARY, PERMANENT = "temporary", "permanent"
ANSWER, CUT, SILENCE = "answer", "cut", "silence"
"""What the other side hears of a message that was taken or lost."""


class Fate(NamedTuple):
    """What becomes of one message. ``kept``: the receiver has it, whatever it says."""

    kept: bool
    hears: str = ANSWER
    after: tuple[float, float] = (0.0, 0.0)
    """Between how many seconds it is decided and answered."""


FATES: Mapping[Fate, float] = {
    Fate(kept=True): 80,
    Fate(kept=True, after=(0.05, 0.5)): 5,
    Fate(kept=True, after=(1.2, 2.0)): 2,
    Fate(kept=True, hears=CUT): 2,
    Fate(kept=False, hears=CUT): 2,
    Fate(kept=True, hears=SILENCE): 1.5,
    Fate(kept=False, hears=SILENCE): 1.5,
    Fate(kept=False, hears=TEMPORARY): 4,
    Fate(kept=False, hears=PERMANENT): 2,
}
_BEFORE: Mapping[str, tuple[str, ...]] = {
    "connection": ("421 4.3.2 busy", CLOSE, HANG),
    "EHLO": ("451 4.3.0 not now", CLOSE),
    "MAIL": ("451 4.3.0 not now", CLOSE),
    "RCPT": ("452 4.5.3 too many recipients", CLOSE, HANG),
    "DATA": ("451 4.3.0 not now", "421 4.3.2 good-bye", CLOSE),
}
"""Ways to fail before there is a message. None says that the account is throttled: that closes the
channel for a minute, and a few of them outlast the drain."""
_SHARE_BEFORE = 0.008
_MAIL = email.policy.default


class Book:
    """The ledger of both receivers, and what they did to whom."""

    def __init__(self, path: Path, seed: int) -> None:
        self.did: Counter[str] = Counter()
        self._recorder = Recorder(path)
        self._lock = Lock()
        self._is_open = True
        self._seed = seed

    def decide(self, channel: str, *, tag: str | None, attempt: int, **named: Any) -> Fate:
        """Decide by the seed what becomes of a message, and write it down; wait for it."""
        chance = random.Random(f"{self._seed} {tag} {attempt}")  # noqa: S311 - repeatable
        (fate,) = chance.choices([*FATES], [*FATES.values()])
        pause(chance.uniform(*fate.after))
        how = fate.hears if fate.hears in {TEMPORARY, PERMANENT} else "lost"
        after = f" after {fate.after[0]:g} s" if fate.after[0] else ""
        with self._lock:
            if not self._is_open:
                raise ConnectionError
            self._recorder.write(
                "accept" if fate.kept else "decline",
                **named,
                attempt=attempt,
                tag=tag,
                answered=fate.hears == ANSWER,
                **({} if fate.kept else {"how": how}),
            )
            self.did[f"{channel}: {'kept' if fate.kept else 'not kept'}, {fate.hears}{after}"] += 1
        return fate

    def close(self) -> None:
        """Write nothing more: what is still to be decided is lost with its receiver."""
        with self._lock:
            self._is_open = False
            self._recorder.close()


class MailReceiver(ScriptedServer):
    """Fails at any word, now and then, and does with whole messages as the book decides."""

    def __init__(self, book: Book, seed: int) -> None:
        super().__init__()
        self._book = book
        self._chance = random.Random(f"{seed} words")  # noqa: S311 - repeatable

    def plan(self, word: str, content: bytes) -> str:
        if word == "message":
            return self._take(content)
        if word in _BEFORE and self._chance.random() < _SHARE_BEFORE:
            planned = self._chance.choice(_BEFORE[word])
            self._book.did[f"{EMAIL}: {word} {planned.split()[0]}"] += 1
            return planned
        return super().plan(word, content)

    def _take(self, content: bytes) -> str:
        mail = email.message_from_bytes(content, policy=_MAIL)
        recipient, text = str(mail["To"]), str(mail.get_content()).strip()
        body = {"subject": str(mail["Subject"]), "text": text}
        attempt, pid = (int(number) for number in str(mail[ATTEMPT]).split())
        id_ = str(mail["Message-ID"]).strip("<>").partition("@")[0]
        fate = self._book.decide(
            EMAIL, id=id_, attempt=attempt, pid=pid, tag=tag_of(body),
            digest=digest_of(EMAIL, recipient, body),
        )  # fmt: skip
        return {
            ANSWER: f"250 2.0.0 queued as {id_}",
            # Servers quote what no log may tell.
            TEMPORARY: f"451 4.3.0 <{recipient}> later: {text}",
            PERMANENT: f"554 5.7.1 <{recipient}> does not want {text}",
            CUT: CLOSE,
            SILENCE: HANG,
        }[fate.hears]


class WebReceiver:
    def __init__(self, book: Book) -> None:
        self._book = book

    def __call__(self, handler: Handler) -> None:
        got = handler.received
        payload = json.loads(got.content)
        key, id_ = got.headers["idempotency-key"], payload["id"]
        digest = digest_of(payload["channel"], payload["recipient"], payload["body"])
        fate = self._book.decide(
            WEBHOOK, id=id_ if id_ == key else f"{id_} under {key}", attempt=payload["attempt"],
            pid=int(got.headers[PROCESS]), tag=tag_of(payload["body"]), digest=digest,
        )  # fmt: skip
        if fate.hears == CUT:
            handler.hang_up()
        elif fate.hears == SILENCE:
            handler.wait_for_its_end()
        elif fate.hears == TEMPORARY:
            # The same again for the same message. One that asks to wait closes the channel.
            answers = [(500, {}), (429, {"Retry-After": "1"}), (503, {}), (503, {})]
            status, headers = answers[int(digest, 16) % len(answers)]
            handler.reply(status, headers, got.content)
        elif fate.hears == PERMANENT:
            handler.reply(410, body=got.content)
        else:
            handler.reply(200, {"X-Request-Id": id_})


class Receivers:
    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._seed = seed

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._book = Book(self._path, self._seed)
            stack.callback(self._book.close)
            self._mail = stack.enter_context(MailReceiver(self._book, self._seed))
            self._web = stack.enter_context(receiving())
            self._web.answer = WebReceiver(self._book)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def did(self) -> Mapping[str, int]:
        return dict(sorted(self._book.did.items()))

    def options(self) -> dict[str, dict[str, Any]]:
        mail = {"url": f"smtp://127.0.0.1:{self._mail.port}", "from": "Soak <soak@soak.example>"}
        web = {"url": self._web.url, "http": True, "allow": ["127.0.0.1"]}
        return {EMAIL: mail, WEBHOOK: web}
