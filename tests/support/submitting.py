"""Submits as many messages as each line of its standard input says, until that ends.

It takes the settings from the environment, so it runs with any version of the package that is on
the path. It prints the place of the package, then the id of each message that is accepted, and an
empty line where it has done what a line says. Only quotas may refuse a submit.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from datetime import timedelta

import dispatcher
from dispatcher import Dispatcher, Settings
from dispatcher.errors import QuotaExceeded
from tests.support.environment import CHANNEL

_RECIPIENTS = 3_000
_AHEAD_SECONDS = 4.0


def main() -> None:
    sys.stdout.write(f"{dispatcher.__file__}\n")
    sys.stdout.flush()
    choose = random.Random()  # noqa: S311 - no secret
    with Dispatcher(Settings.load()) as client:
        for line in sys.stdin:
            for _ in range(int(line)):
                with suppress(QuotaExceeded):
                    message = client.submit(
                        channel=CHANNEL,
                        recipient=f"person-{choose.randrange(_RECIPIENTS)}",
                        body={},
                        send_in=timedelta(seconds=choose.uniform(0, _AHEAD_SECONDS)),
                    )
                    sys.stdout.write(f"{message.id}\n")
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
