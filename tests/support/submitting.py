"""A process that submits until it is told to end: ``python -m tests.support.submitting``.

It takes the settings from the environment, so it runs with any version of the package that is on
the path. Arguments: a file for what came of each submit, how many submits a second, a seed. It ends
after the end of its standard input. A machine that cannot carry the rate submits as fast as it can.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import dispatcher
from dispatcher import Dispatcher, Settings
from dispatcher.errors import DispatcherError, QuotaExceeded
from tests.support.environment import CHANNEL

_RECIPIENTS = 3_000
_AHEAD_SECONDS = 4.0


@dataclass(frozen=True)
class Submits:
    package: Path
    accepted: list[UUID]
    failures: list[str]


def read(path: Path) -> Submits:
    first, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    return Submits(
        package=Path(first["package"]),
        accepted=[UUID(each["accepted"]) for each in lines if "accepted" in each],
        failures=[each["failure"] for each in lines if "failure" in each],
    )


def _run(path: Path, rate: float, seed: int) -> None:
    leaving = threading.Event()
    threading.Thread(target=_wait_for_end, args=(leaving,), daemon=True).start()
    choose = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
    with path.open("w", buffering=1) as file, Dispatcher(Settings.load()) as client:
        print(json.dumps({"package": dispatcher.__file__}), file=file)
        begun = time.monotonic()
        number = 0
        while not leaving.wait(max(0.0, begun + number / rate - time.monotonic())):
            number += 1
            print(json.dumps(_submit(client, choose)), file=file)


def _wait_for_end(leaving: threading.Event) -> None:
    sys.stdin.read()
    leaving.set()


def _submit(client: Dispatcher, choose: random.Random) -> dict[str, str]:
    try:
        message = client.submit(
            channel=CHANNEL,
            recipient=f"person-{choose.randrange(_RECIPIENTS)}",
            body={},
            send_in=timedelta(seconds=choose.uniform(0, _AHEAD_SECONDS)),
        )
    except QuotaExceeded as error:
        return {"refused": type(error).__name__}
    except DispatcherError as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    return {"accepted": str(message.id)}


if __name__ == "__main__":
    _run(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
