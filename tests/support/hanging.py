"""``python -m dispatcher``, but its main thread hangs for ever at SIGUSR2, and is judged sooner.

The other threads, which answer probes, go on.
"""

from __future__ import annotations

import runpy
import signal
import threading
from datetime import timedelta

from dispatcher import app
from dispatcher.telemetry import liveness

HANGS_AFTER = timedelta(seconds=6)


def _hang(*_: object) -> None:
    threading.Event().wait()


if __name__ == "__main__":
    vars(app)["HANGS_AFTER"] = HANGS_AFTER
    vars(liveness)["_RECONNECTS_WITHIN_SECONDS"] = 1.0
    signal.signal(signal.SIGUSR2, _hang)
    runpy.run_module("dispatcher", run_name="__main__", alter_sys=True)
