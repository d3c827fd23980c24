"""A process that submits until its standard input ends: ``python -m tests.support.submitting``.

It takes the settings from the environment, so it runs with any version of the package that is on
the path. Arguments: a file, how many submits a second, a seed. The file gets the place of the
package, and then the id of each message that was accepted. Only quotas may refuse one: any other
error ends the process.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import dispatcher
from dispatcher import Dispatcher, Settings
from dispatcher.errors import QuotaExceeded
from tests.support.environment import CHANNEL

_RECIPIENTS = 3_000
_AHEAD_SECONDS = 4.0


def _run(path: Path, rate: float, seed: int) -> None:
    leaving = threading.Event()
    threading.Thread(target=_wait_for_end, args=(leaving,), daemon=True).start()
    choose = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
    with path.open("w", buffering=1) as file, Dispatcher(Settings.load()) as client:
        print(dispatcher.__file__, file=file)
        begun, number = time.monotonic(), 0
        while not leaving.wait(max(0.0, begun + number / rate - time.monotonic())):
            number += 1
            with suppress(QuotaExceeded):
                message = client.submit(
                    channel=CHANNEL,
                    recipient=f"person-{choose.randrange(_RECIPIENTS)}",
                    body={},
                    send_in=timedelta(seconds=choose.uniform(0, _AHEAD_SECONDS)),
                )
                print(message.id, file=file)


def _wait_for_end(leaving: threading.Event) -> None:
    sys.stdin.read()
    leaving.set()


if __name__ == "__main__":
    _run(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
