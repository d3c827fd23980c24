"""The command line.

Exit codes: 0 done; 1 a step failed; 2 bad input; 3 refused by a quota; 4 no such message; 5 too
late, or the idempotency key has other content; 6 a server is unavailable; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from errno import EDQUOT, EFBIG, EIO, ENOSPC, EPIPE
from pathlib import Path
from typing import Any

from typer.main import get_group

from dispatcher.cli import output
from dispatcher.cli.app import UsageError, app, exit_code, name_options, say_error, usage_error
from dispatcher.errors import DispatcherError

__all__ = ["app", "every_command", "main"]

_NO_MORE_OUTPUT = frozenset({EDQUOT, EFBIG, EIO, ENOSPC})
"""Why standard output takes no more, other than a reader that has gone (EPIPE)."""


def every_command() -> Any:
    group: Any = get_group(app)
    group.load()
    return group


def main() -> None:
    """Run the command line; errors are one sentence on standard error, and JSON if asked for."""
    output.has_written = False
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - stays
    try:
        try:
            sys.exit(app(prog_name="dispatcher", standalone_mode=False))
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in {*_NO_MORE_OUTPUT, EPIPE}:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        if error.errno != EPIPE:
            say_error(
                f"cannot write to standard output ({error.strerror}); the command may be done"
            )
        sys.exit(1)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(2)  # it has shown the help
        _fail(usage_error(error))
    except DispatcherError as error:
        _fail(error)


def _fail(error: DispatcherError) -> None:
    name_options(error)
    if "--json" in sys.argv and not output.has_written:
        output.write_json(output.error_data(error), indent=None)
    say_error(error)
    sys.exit(exit_code(error))
