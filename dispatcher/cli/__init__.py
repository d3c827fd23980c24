"""The command line, thin.

Exit codes: 0 done; 1 a step failed; 2 bad input; 3 refused by a quota; 4 no such message; 5 too
late, or the idempotency key has other content; 6 something outside is unavailable; 130 interrupted.
"""

from __future__ import annotations

import sys

from dispatcher.cli import (
    bulk,
    changing,
    demo,
    doctor,
    export,
    messages,
    services,
    status,
    suppressing,
    timeline,
    windows,
)
from dispatcher.cli.app import app, exit_code, say_error
from dispatcher.errors import DispatcherError

__all__ = ["app", "main"]

services.register(app)
messages.register(app)
changing.register(app)
suppressing.register(app)
status.register(app)
bulk.register(app)
export.register(app)
timeline.register(app)
windows.register(app)
doctor.register(app)
demo.register(app)


def main() -> None:
    """Run the command line; errors are one sentence on standard error."""
    try:
        app()
    except DispatcherError as error:
        say_error(str(error))
        sys.exit(exit_code(error))
