"""Count the hops of a use case: our functions that run, the files they are in, our calls a message.

Of one submit, a batch of 100 drafts, and the delivery of one message, each warmed up before. A
generator counts as a call each time it goes on, a comprehension never. With ``--list`` it prints
the functions, too, each with its calls.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import CodeType, FrameType

from rounds import folder

import dispatcher
from dispatcher import Dispatcher, Draft
from dispatcher.app import App
from dispatcher.embedded import embedded

PACKAGE = Path(dispatcher.__file__).parent
BATCH = 100
COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}


def calls_of(work: Callable[[], object]) -> Counter[CodeType]:
    """Return how often each of our functions is called, in every thread that begins meanwhile."""
    calls = Counter[CodeType]()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_ours = event == "call" and code.co_filename.startswith(f"{PACKAGE}/")
        if is_ours and code.co_name not in COMPREHENSIONS:
            calls[code] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # it stops the profile of new threads
    return calls


def report(name: str, calls: Counter[CodeType], messages: int = 1) -> None:
    files = {code.co_filename for code in calls}
    print(f"| {name} | {len(calls)} | {len(files)} | {calls.total() / messages:.1f} |")
    if "--list" in sys.argv:
        for code, times in calls.items():
            file = Path(code.co_filename).relative_to(PACKAGE)
            print(f"    {times:6} {file}:{code.co_qualname}")


def main() -> None:
    at = datetime.now(UTC) + timedelta(days=2)
    print("| use case | functions | files | calls a message |\n|---|---|---|---|")
    with folder() as path, embedded(path) as settings, Dispatcher(settings) as client:
        drafts = [
            Draft(channel="memory", recipient=f"person-{number}", body={}, send_at=at)
            for number in range(2 * BATCH)
        ]
        warm, cold = drafts[:BATCH], drafts[BATCH:]
        client.submit("memory", recipient="warm", body={}, send_at=at)
        submit = calls_of(lambda: client.submit("memory", recipient="cold", body={}, send_at=at))
        client.submit_many(warm)
        many = calls_of(lambda: client.submit_many(cold))
        report("submit", submit)
        report(f"batch of {BATCH}", many, BATCH)
        deliver(App(settings), client)


def deliver(app: App, client: Dispatcher) -> None:
    """Deliver one message by a new sender thread, which the profile sees, on warm connections."""
    due = [
        client.submit("memory", recipient=f"due-{number}", body={}, send_in=timedelta(seconds=1))
        for number in range(2)
    ]
    app.delivery.deliver([due[0].id])
    app.delivery.close()
    del app.delivery  # another one is built
    delivery = app.delivery
    report("deliver of 1", calls_of(lambda: delivery.deliver([due[1].id])))
    app.close()


if __name__ == "__main__":
    main()
