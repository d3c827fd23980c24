"""The dispatcher: three quotas and two limits a message, each attempt recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from delivery import BODY, prepare

from dispatcher import Dispatcher, Draft, Message, Settings
from peers import Submit

COMMANDS = [[sys.executable, "-m", "dispatcher", name] for name in ("worker", "beat")]


@contextmanager
def opened(settings: Settings) -> Iterator[Submit]:
    """Build the tables; yield what submits."""
    prepare(settings)
    with Dispatcher(settings) as dispatcher:

        def submit(names: Sequence[str], at: datetime) -> list[str]:
            drafts = [Draft(channel="sms", recipient=name, body=BODY, send_at=at) for name in names]
            answers = dispatcher.submit_many(drafts)
            accepted = [str(each.id) for each in answers if isinstance(each, Message)]
            if len(accepted) != len(names):
                raise SystemExit("a draft was refused")
            return accepted

        yield submit
