"""``python -m tests.support.hour_ahead worker``: the command line on a clock an hour ahead.

``time.time`` and the dispatcher's clock are ahead: Celery then starts each task with an ETA at
once. The monotonic clocks are right, as on a machine whose date is wrong.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

_AHEAD = timedelta(hours=1)


def main() -> None:
    real = time.time
    time.time = lambda: real() + _AHEAD.total_seconds()
    # Celery and the dispatcher are imported with the clock above.
    from dispatcher.cli import main as command_line  # noqa: PLC0415
    from dispatcher.times.clock import SystemClock  # noqa: PLC0415

    now = SystemClock.now

    def ahead(self: SystemClock) -> datetime:
        return now(self) + _AHEAD

    SystemClock.now = ahead  # type: ignore[method-assign]  # a double
    command_line()


if __name__ == "__main__":
    main()
