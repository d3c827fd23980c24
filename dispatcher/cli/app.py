"""The application object, exit codes, and how errors are said."""

from __future__ import annotations

import typer
from rich.console import Console

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    InvalidValue,
    MessageNotFound,
    NoPlace,
    TooLate,
    Unavailable,
)

_EXIT_CODES: tuple[tuple[type[DispatcherError], int], ...] = (
    (InvalidValue, 2),
    (NoPlace, 3),
    (MessageNotFound, 4),
    (TooLate, 5),
    (IdempotencyConflict, 5),
    (Unavailable, 6),
)

app = typer.Typer(
    name="dispatcher",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help=(
        "Scheduled messages: exact quotas at submit, exact limits at delivery, "
        "nothing accepted is lost.\n\n"
        "Exit codes: 0 done, 1 a step failed, 2 bad input, 3 refused by a quota, "
        "4 no such message, 5 too late or key in use, 6 something outside is unavailable, "
        "130 interrupted."
    ),
)


def exit_code(error: DispatcherError) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def say_error(said: str | DispatcherError) -> None:
    """Write one sentence to standard error; of an error with its notes."""
    text = "; ".join([str(said), *getattr(said, "__notes__", ())])
    Console(stderr=True, highlight=False, soft_wrap=True).print("[bold red]error:[/]", end=" ")
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(text)
