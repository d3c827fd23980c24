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
    show,
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

_PANELS = {
    "Submit": ("submit", "import", "next-slot"),
    "Look": ("status", "top", "list", "show", "held", "timeline", "export", "suppressed", "doctor"),
    "Change": (
        "cancel",
        "reschedule",
        "update",
        "retry",
        "release",
        "drop",
        "suppress",
        "unsuppress",
    ),
}


def _panel_of(name: str) -> str:
    return next((panel for panel, names in _PANELS.items() if name in names), "Run")


for _command in app.registered_commands:
    _name = str(_command.name or getattr(_command.callback, "__name__", ""))
    _command.rich_help_panel = _panel_of(_name)
for _group in app.registered_groups:
    _group.rich_help_panel = _panel_of(str(_group.name))


def main() -> None:
    """Run the command line; errors are one sentence on standard error, and JSON if asked for."""
    show.written.clear()
    try:
        app()
    except DispatcherError as error:
        if "--json" in sys.argv and not show.written:
            show.as_line(show.error_data(error))
        say_error(error)
        sys.exit(exit_code(error))
